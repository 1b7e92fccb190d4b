"""Greedy answers, and accuracies on easy-VQA questions and on composed conversations.

    python evaluate.py --data DIR --model OUT/model --suite suite.json

runs the exported folder over easy-VQA's test questions and the suite of composed conversations.
"""
import argparse
import json
import os
import re
from collections import defaultdict

import torch

from dialogues import render
from easyvqa import COLOURS, SHAPES, Split
from model import Config, SmolVLM


@torch.no_grad()
def image_rows(model, pixels):
    return torch.cat([model.image_rows(p) for p in pixels.split(250)])


@torch.no_grad()
def generate(model, encoder, prompts, rows, batch=200, limit=24):
    """Greedy continuations. `prompts` texts, `rows` for each prompt its images' rows (n, rows, width).

    Returns [(answer, smallest gap between the best and the second best logit)].
    """
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    out = [None] * len(prompts)
    for at in range(0, len(order), batch):
        part = order[at : at + batch]
        ids = [encoder.ids(prompts[i]) for i in part]
        starts, gaps, live = [len(x) for x in ids], [9e9] * len(part), list(range(len(part)))
        for _ in range(limit):
            length = max(len(ids[k]) for k in live)
            block = torch.zeros(len(live), length, dtype=torch.long)
            for j, k in enumerate(live):
                block[j, : len(ids[k])] = torch.tensor(ids[k])
            images = [rows[part[k]] for k in live if len(rows[part[k]])]
            hidden = model.hidden(block, torch.cat(images) if images else None)
            last = model.lm_head(hidden[torch.arange(len(live)), torch.tensor([len(ids[k]) - 1 for k in live])])
            best = last.topk(2)
            for j, k in enumerate(live):
                ids[k].append(int(best.indices[j, 0]))
                gaps[k] = min(gaps[k], float(best.values[j, 0] - best.values[j, 1]))
            live = [k for k in live if ids[k][-1] != encoder.end]
            if not live:
                break
        for j, k in enumerate(part):
            out[k] = (encoder.tok.decode(ids[j][starts[j] :], skip_special_tokens=True).strip(), gaps[j])
    return out


def question_type(text):
    if text.startswith("what"):
        return "what colour" if "color" in text.split("shape")[0] else "what shape"
    named = [w for w in re.findall(r"[a-z]+", text) if w in COLOURS or w in SHAPES][0]
    negated = "not" in text.split() or "no" in text.split()
    return ("not " if negated else "") + ("colour" if named in COLOURS else "shape") + " yes/no"


def single_questions(model, encoder, questions, rows):
    """{type: [right, asked]} for easy-VQA questions [(text, answer, image)]."""
    prompts = [render([(1, text, None)], model.config.rows, last_answer=False) for text, _, _ in questions]
    answers = generate(model, encoder, prompts, [rows[i][None] for _, _, i in questions])
    score = defaultdict(lambda: [0, 0])
    for (text, want, _), (got, _) in zip(questions, answers):
        for kind in ("all", question_type(text)):
            score[kind][0] += got == want
            score[kind][1] += 1
    return dict(score)


def conversations(model, encoder, suite, rows):
    """Plays the conversations turn by turn; the model hears its own earlier answers.

    Returns {kind: [right, scored, sum of order-blind accuracies]} and the wrong answers.
    """
    talks = suite["conversations"]
    said = [[] for _ in talks]
    score, wrong = defaultdict(lambda: [0, 0, 0.0]), []
    for k in range(max(len(t["turns"]) for t in talks)):
        live = [i for i, t in enumerate(talks) if k < len(t["turns"])]
        prompts, images = [], []
        for i in live:
            turns = talks[i]["turns"][: k + 1]
            prompts.append(render([(len(t["images"]), t["text"], a) for t, a in zip(turns, said[i] + [None])], model.config.rows, last_answer=False))
            images.append(rows[[n for t in turns for n in t["images"]]])
        for i, (got, _) in zip(live, generate(model, encoder, prompts, images)):
            said[i].append(got)
            turn = talks[i]["turns"][k]
            if turn["scored"]:
                for kind in ("all", talks[i]["kind"]):
                    score[kind][0] += got == turn["answer"]
                    score[kind][1] += 1
                    score[kind][2] += turn["order_blind"]
                if got != turn["answer"]:
                    wrong.append((talks[i]["kind"], [t["images"] for t in talks[i]["turns"][: k + 1]], turn["text"], turn["answer"], got))
    return dict(score), wrong


def show(title, score):
    print(title)
    for kind in sorted(score, key=lambda s: (s == "all", s)):
        right, asked, *blind = score[kind]
        floor = f"   order-blind {blind[0] / asked:.3f}" if blind else ""
        print(f"  {kind:18} {right:5}/{asked:<5} {right / asked:.4f}{floor}", flush=True)


def load(folder):
    """The exported folder -> (model, encoder)."""
    from safetensors.torch import load_file
    from tokenizers import Tokenizer

    from tokenizer import Encoder
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as f:
        c = json.load(f)
    v, t = c["vision_config"], c["text_config"]
    config = Config(vocab_size=t["vocab_size"], image_token_id=c["image_token_id"], image_size=v["image_size"], patch_size=v["patch_size"],
                    scale_factor=c["scale_factor"], vision_width=v["hidden_size"], vision_layers=v["num_hidden_layers"],
                    vision_heads=v["num_attention_heads"], vision_mlp=v["intermediate_size"], text_width=t["hidden_size"],
                    text_layers=t["num_hidden_layers"], text_heads=t["num_attention_heads"], text_kv_heads=t["num_key_value_heads"],
                    head_dim=t["head_dim"], text_mlp=t["intermediate_size"], rope_theta=t["rope_theta"], max_positions=t["max_position_embeddings"])
    model = SmolVLM(config)
    model.load_state_dict({k: w.float() for k, w in load_file(os.path.join(folder, "model.safetensors")).items()})
    return model.eval(), Encoder(Tokenizer.from_file(os.path.join(folder, "tokenizer.json")))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--suite", required=True)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    model, encoder = load(args.model)
    test = Split(args.data, "test")
    rows = image_rows(model, test.pixels)
    show("easy-VQA test questions", single_questions(model, encoder, test.questions, rows))
    with open(args.suite, encoding="utf-8") as f:
        score, wrong = conversations(model, encoder, json.load(f), rows)
    show("composed conversations on test images", score)
    for line in wrong:
        print("  wrong:", *line)


if __name__ == "__main__":
    main()
