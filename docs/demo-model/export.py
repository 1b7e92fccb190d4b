"""Writes a trained model as a SmolVLM folder, in the layout of the published checkpoints, with f16 weights.

    python export.py --check OUT/model      loads the folder with transformers and compares logits
"""
import argparse
import json
import os

import torch
from safetensors.torch import save_file

from dialogues import render

TEMPLATE = ("<|im_start|>{% for message in messages %}{{message['role'] | capitalize}}{% if message['content'][0]['type'] == 'image' %}{{':'}}"
            "{% else %}{{': '}}{% endif %}{% for line in message['content'] %}{% if line['type'] == 'text' %}{{line['text']}}"
            "{% elif line['type'] == 'image' %}{{ '<image>' }}{% endif %}{% endfor %}<end_of_utterance>\n{% endfor %}"
            "{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}")


def dump(folder, name, value):
    with open(os.path.join(folder, name), "w", encoding="utf-8") as f:
        json.dump(value, f, indent=1, ensure_ascii=True)
        f.write("\n")


def export(model, tok, folder):
    os.makedirs(folder, exist_ok=True)
    c, tid = model.config, tok.token_to_id
    text = dict(architectures=["VLlama3ForCausalLM"], model_type="llama", attention_bias=False, attention_dropout=0.0, bos_token_id=1, eos_token_id=2,
                pad_token_id=2, head_dim=c.head_dim, hidden_act="silu", hidden_size=c.text_width, intermediate_size=c.text_mlp, is_llama_config=True,
                max_position_embeddings=c.max_positions, mlp_bias=False, num_attention_heads=c.text_heads, num_hidden_layers=c.text_layers,
                num_key_value_heads=c.text_kv_heads, pixel_shuffle_factor=c.scale_factor, rms_norm_eps=1e-5, rope_scaling=None, rope_theta=c.rope_theta,
                rope_interleaved=False, tie_word_embeddings=False, torch_dtype="float16", use_cache=True, vocab_size=c.vocab_size)
    vision = dict(model_type="smolvlm_vision", attention_dropout=0.0, hidden_act="gelu_pytorch_tanh", hidden_size=c.vision_width, image_size=c.image_size,
                  intermediate_size=c.vision_mlp, layer_norm_eps=1e-6, num_attention_heads=c.vision_heads, num_channels=3, num_hidden_layers=c.vision_layers,
                  patch_size=c.patch_size, size=dict(longest_edge=c.image_size), max_image_size=dict(longest_edge=c.image_size), tie_word_embeddings=False,
                  use_base_siglip=True)
    dump(folder, "config.json", dict(
        architectures=["SmolVLMForConditionalGeneration"], model_type="smolvlm", image_token_id=tid("<image>"), pad_token_id=tid("<|im_end|>"),
        scale_factor=c.scale_factor, tie_word_embeddings=False, torch_dtype="float16", use_cache=True, vocab_size=c.vocab_size, text_config=text,
        vision_config=vision))
    dump(folder, "generation_config.json", dict(bos_token_id=1, eos_token_id=tid("<end_of_utterance>"), pad_token_id=tid("<|im_end|>")))
    dump(folder, "preprocessor_config.json", dict(
        do_convert_rgb=True, do_image_splitting=False, do_normalize=True, do_pad=True, do_rescale=True, do_resize=True, image_mean=[0.5] * 3,
        image_std=[0.5] * 3, image_processor_type="SmolVLMImageProcessor", max_image_size=dict(longest_edge=c.image_size),
        processor_class="SmolVLMProcessor", resample=1, rescale_factor=0.00392156862745098, size=dict(longest_edge=c.image_size)))
    dump(folder, "processor_config.json", dict(image_seq_len=c.rows, processor_class="SmolVLMProcessor"))
    dump(folder, "chat_template.json", {"chat_template": TEMPLATE})
    tok.save(os.path.join(folder, "tokenizer.json"))
    added = {str(i): dict(content=t.content, lstrip=t.lstrip, normalized=t.normalized, rstrip=t.rstrip, single_word=t.single_word, special=t.special)
             for i, t in sorted(tok.get_added_tokens_decoder().items())}
    dump(folder, "tokenizer_config.json", dict(
        added_tokens_decoder=added, additional_special_tokens=["<fake_token_around_image>", "<image>", "<end_of_utterance>"],
        bos_token="<|im_start|>", chat_template=TEMPLATE, clean_up_tokenization_spaces=False, eos_token="<end_of_utterance>",
        model_max_length=c.max_positions, pad_token="<|im_end|>", processor_class="SmolVLMProcessor", tokenizer_class="PreTrainedTokenizerFast",
        truncation_side="left"))
    save_file({k: v.detach().to(torch.float16).contiguous() for k, v in model.state_dict().items()}, os.path.join(folder, "model.safetensors"),
              metadata={"format": "pt"})
    os.chmod(os.path.join(folder, "model.safetensors"), 0o644)
    size = sum(os.path.getsize(os.path.join(folder, f)) for f in os.listdir(folder))
    print(f"exported {sum(p.numel() for p in model.parameters()):,} parameters, {size / 1e6:.2f} MB, to {folder}")


@torch.no_grad()
def check(folder):
    """transformers and this project's training code must agree: keys, token ids, pixels, logits."""
    import numpy as np
    from PIL import Image
    from transformers import AutoProcessor, SmolVLMForConditionalGeneration

    from evaluate import load
    theirs, info = SmolVLMForConditionalGeneration.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        assert not info[kind], (kind, info[kind])
    ours, encoder = load(folder)
    processor = AutoProcessor.from_pretrained(folder)
    rng = np.random.default_rng(0)
    images = [Image.fromarray(rng.integers(0, 255, (64, 64, 3), dtype=np.uint8)) for _ in range(3)]
    messages, turns = [], [(2, "which image has the red shape?", "the first image"), (0, "what shape was in the first image?", "circle"),
                           (1, "Is it the same color as the second?", None)]
    for new, question, answer in turns:
        messages.append({"role": "user", "content": [{"type": "image"}] * new + [{"type": "text", "text": question}]})
        if answer:
            messages.append({"role": "assistant", "content": [{"type": "text", "text": answer}]})
    batch = processor(text=processor.apply_chat_template(messages, add_generation_prompt=True), images=[images], return_tensors="pt")
    ids = encoder.ids(render(turns, ours.config.rows, last_answer=False))
    assert batch.input_ids[0].tolist() == ids, "token ids differ"
    pixels = torch.stack([torch.from_numpy(np.array(i)).permute(2, 0, 1) for i in images])
    assert (batch.pixel_values[0] - (pixels.float() / 127.5 - 1)).abs().max() < 1e-5, "pixels differ"
    a = theirs.eval()(**batch).logits[0]
    b = ours(torch.tensor([ids]), ours.image_rows(pixels))[0]
    print(f"transformers and the training code: {len(ids)} positions, largest difference of a logit {(a - b).abs().max():.1e}")
    assert (a - b).abs().max() < 1e-3


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", required=True)
    check(parser.parse_args().check)
