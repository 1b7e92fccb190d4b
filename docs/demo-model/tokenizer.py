"""A byte-level BPE tokenizer for the words of the conversations, with SmolVLM's special tokens in SmolVLM's order."""
import random

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from dialogues import conversation

FIRST = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<repo_name>", "<reponame>", "<file_sep>", "<filename>", "<gh_stars>", "<issue_start>",
         "<issue_comment>", "<issue_closed>", "<jupyter_start>", "<jupyter_text>", "<jupyter_code>", "<jupyter_output>", "<jupyter_script>",
         "<empty_output>"]
LAST = (["<global-img>"] + [f"<row_{r}_col_{c}>" for r in range(1, 7) for c in range(1, 7)]
        + ["<fake_token_around_image>", "<image>", "<end_of_utterance>"])
MERGED = 768            # ids before the image tokens


def train_tokenizer(seed):
    rng = random.Random(seed)
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                                                 pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=True, use_regex=True)])
    tok.decoder = decoders.ByteLevel(add_prefix_space=True, trim_offsets=True, use_regex=True)
    trainer = trainers.BpeTrainer(vocab_size=MERGED, special_tokens=FIRST, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())

    def lines():
        for _ in range(8000):
            for _, text, answer in conversation(rng)[1]:
                yield f"User:\nAssistant: {answer}"
                yield text          # right after an image
                yield " " + text    # after "User:"
    tok.train_from_iterator(lines(), trainer)
    tok.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in FIRST + LAST])
    return tok


class Encoder:
    """Rendered conversations to ids, and which of the ids are answers (with their `<end_of_utterance>`)."""

    def __init__(self, tok):
        self.tok = tok
        self.image, self.end, self.bos = (tok.token_to_id(t) for t in ("<image>", "<end_of_utterance>", "<|im_start|>"))
        self.assistant = tok.encode("Assistant:", add_special_tokens=False).ids
        assert len(self.assistant) == 2, self.assistant

    def ids(self, text):
        return self.tok.encode(text, add_special_tokens=False).ids

    def with_answers(self, text):
        ids = self.ids(text)
        mask, inside = [], False
        for k, t in enumerate(ids):
            mask.append(inside)
            if inside and t == self.end:
                inside = False
            elif ids[k - 1 : k + 1] == self.assistant:
                inside = True
        return ids, mask
