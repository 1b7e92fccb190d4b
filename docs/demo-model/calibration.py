"""Calibration samples for quantizing the demo model: `python calibration.py --data DIR --out FOLDER` (training images, one fixed seed).

FOLDER gets `samples.json`, conversations in the format that `etgenai quantize --calib-samples` reads, and the images they show: single easy-VQA
training questions, conversations of every kind of `suite.py`, and questions about four images at once.
"""
import argparse
import json
import random
import shutil
from pathlib import Path

import dialogues as d
import suite
from easyvqa import Split


def conversation(turns):
    """turns [(image numbers, question, answer)]"""
    messages = []
    for images, text, answer in turns:
        shown = [{"type": "image"} for _ in images]
        messages.append({"role": "user", "content": [*shown, {"type": "text", "text": text}]})
        messages.append({"role": "assistant", "content": [{"type": "text", "text": answer}]})
    return {"messages": messages, "files": [f"{i}.png" for images, _, _ in turns for i in images]}


def singles(questions, count, rng):
    return [conversation([([image], text, answer)]) for text, answer, image in rng.sample(questions, count)]


def fours(labels, count, rng):
    out = []
    for at in range(count):
        images = rng.sample(sorted(labels), 4)
        known = [labels[i] for i in images]
        _, text, rule = d.nth(rng, known, at=at % 4)
        out.append(conversation([(images, d.style(rng, text.rstrip("?")), rule(known))]))
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--singles", type=int, default=16)
    parser.add_argument("--each", type=int, default=2, help="conversations of every kind")
    parser.add_argument("--fours", type=int, default=4)
    args = parser.parse_args()
    train = Path(args.data) / "train"
    questions = json.loads((train / "questions.json").read_text())
    labels = Split(args.data, "train").labels
    rng = random.Random(args.seed)
    samples = singles(questions, args.singles, rng) + fours(labels, args.fours, rng)
    for composed in suite.build(labels, args.seed, args.each)["conversations"]:
        samples.append(conversation([(turn["images"], turn["text"], turn["answer"]) for turn in composed["turns"]]))
    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    for name in sorted({name for sample in samples for name in sample["files"]}):
        shutil.copyfile(train / "images" / name, out / name)
    lines = ",\n".join(json.dumps(sample) for sample in samples)
    (out / "samples.json").write_text(f"[\n{lines}\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main()
