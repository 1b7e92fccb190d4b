"""Trains the demo model and exports it: `python train.py --data DIR --out DIR` (see README.md).

Stages, each resumable: tokenizer, symbols (the decoder alone, on conversations whose images are symbols), vision (the
encoder learns to produce those symbols), joint (both together), export.
"""
import argparse
import os
import random

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer

import evaluate as E
import suite
from dialogues import LESSONS, conversation, render
from easyvqa import COLOURS, SHAPES, Split, Sprites
from model import Config, SmolVLM
from stages import Stage
from tokenizer import Encoder, train_tokenizer

HELD_OUT = 400          # the last images of *train* are watched during training; the test split is not looked at
SYMBOL_NORM = 0.6       # length of a symbol, about that of a word's embedding
CHUNK = 8               # batches that are drawn together and sorted by length


def symbol_table(width, seed):
    """One row per colour and per shape, orthogonal to each other. An image of a red circle is `red + circle`."""
    g = torch.Generator().manual_seed(seed)
    q, _ = torch.linalg.qr(torch.randn(width, len(COLOURS) + len(SHAPES), generator=g))
    return (q.T * SYMBOL_NORM).contiguous()


def label_ids(labels):
    return torch.tensor([[COLOURS.index(c), len(COLOURS) + SHAPES.index(s)] for c, s in labels])


def symbol_losses(rows, table, ids):
    """How far the image rows are from their symbols: squared distance, and which colour and shape they are nearest to."""
    target = table[ids].sum(1)
    distance = (rows - target[:, None]).pow(2).sum(-1).mean() / SYMBOL_NORM ** 2
    scores = rows.mean(1) @ table.T * (8 / SYMBOL_NORM ** 2)
    colour, shape = scores[:, : len(COLOURS)], scores[:, len(COLOURS):]
    want_c, want_s = ids[:, 0], ids[:, 1] - len(COLOURS)
    loss = F.cross_entropy(colour, want_c) + F.cross_entropy(shape, want_s)
    return distance, loss, (colour.argmax(1) == want_c).float().mean(), (shape.argmax(1) == want_s).float().mean()


class Batches:
    """Batch k of conversations, a function of (seed, k) alone. Conversations of similar length go together."""

    def __init__(self, encoder, rows, size, *key, lessons=()):
        self.encoder, self.rows, self.size, self.key, self.chunk, self.drawn = encoder, rows, size, key, None, []
        self.lessons = lessons      # [(name, number of batches)] that come before the full mixture

    def compose(self, k):
        for name, steps in self.lessons:
            if k < steps:
                return LESSONS[name]
            k -= steps
        return conversation

    def __getitem__(self, k):
        if self.chunk != k // CHUNK:
            self.chunk = k // CHUNK
            rng = random.Random(repr((self.key, self.chunk)))
            compose = self.compose(k)
            talks = []
            for _ in range(self.size * CHUNK):
                images, turns = compose(rng)
                talks.append((images, *self.encoder.with_answers(render(turns, self.rows))))
            talks.sort(key=lambda t: len(t[1]))
            self.drawn = [talks[i : i + self.size] for i in range(0, len(talks), self.size)]
            rng.shuffle(self.drawn)
        talks = self.drawn[k % CHUNK]
        length = max(len(ids) for _, ids, _ in talks)
        block, mask = torch.zeros(len(talks), length, dtype=torch.long), torch.zeros(len(talks), length, dtype=torch.bool)
        for i, (_, ids, answers) in enumerate(talks):
            block[i, : len(ids)] = torch.tensor(ids)
            mask[i, : len(ids)] = torch.tensor(answers)
        return [x for images, _, _ in talks for x in images], block, mask


def answer_loss(model, ids, mask, rows):
    hidden = model.hidden(ids, rows)[:, :-1][mask[:, 1:]]
    logits, want = model.lm_head(hidden), ids[:, 1:][mask[:, 1:]]
    return F.cross_entropy(logits, want), (logits.argmax(-1) == want).float().mean().item()


class Run:
    def __init__(self, args):
        self.args = args
        os.makedirs(os.path.join(args.out, "work"), exist_ok=True)
        self.data = Split(args.data, "train")
        first_held = len(self.data.pixels) - HELD_OUT
        self.held = [i for i in range(first_held, len(self.data.pixels)) if i in self.data.labels]
        self.held_labels = {i: self.data.labels[i] for i in self.held}
        self.held_questions = [q for q in self.data.questions if q[2] >= first_held]
        self.sprites = Sprites(self.data, range(first_held))
        path = self.work("tokenizer.json")
        if not os.path.exists(path):
            train_tokenizer(args.seed).save(path)
        self.encoder = Encoder(Tokenizer.from_file(path))
        size = self.encoder.tok.get_vocab_size()
        torch.manual_seed(args.seed)
        self.model = SmolVLM(Config(vocab_size=(size + 7) // 8 * 8, image_token_id=self.encoder.image))
        self.table = symbol_table(self.model.config.text_width, args.seed)

    def work(self, name):
        return os.path.join(self.args.out, "work", name)

    def parts(self, *names):
        return [p for n, p in self.model.named_parameters() if any(x in n for x in names)]

    def load(self, name, *parts):
        saved = torch.load(self.work(name), map_location="cpu", weights_only=True)["model"]
        own = self.model.state_dict()
        own.update({k: v for k, v in saved.items() if any(x in k for x in parts)})
        self.model.load_state_dict(own)

    @torch.no_grad()
    def name_symbols(self):
        """The words for a colour or a shape start out as its symbol, so that asking for it is matching like with like."""
        for row, value in zip(self.table, COLOURS + SHAPES):
            for word in (value, " " + value, value.capitalize(), value + "s", " " + value + "s"):
                ids = self.encoder.ids(word)
                if len(ids) == 1:
                    self.model.model.text_model.embed_tokens.weight[ids[0]] = row

    def symbols(self):
        """The decoder learns whole conversations, negation and the order of images, before it sees a pixel."""
        self.name_symbols()
        stage = Stage("symbols", self.work("symbols.pt"), self.model, self.parts("text_model", "lm_head"), self.args.symbol_steps, 3e-3)
        batches = Batches(self.encoder, self.model.config.rows, 64, self.args.seed, "symbols", lessons=self.args.lessons)
        rows = self.model.config.rows

        def symbol_rows(labels, noise):
            x = self.table[label_ids(labels)].sum(1)[:, None].expand(-1, rows, -1)
            return x + noise * SYMBOL_NORM / x.shape[-1] ** 0.5

        def step(k):
            labels, ids, mask = batches[k]
            g = torch.Generator().manual_seed(self.args.seed * 1000003 + k)
            noise = 0.4 * torch.randn(len(labels), rows, self.table.shape[1], generator=g)
            loss, right = answer_loss(self.model, ids, mask, symbol_rows(labels, noise))
            return loss, {"right": right}

        def check(done):
            table = torch.zeros(len(self.data.pixels), rows, self.table.shape[1])
            table[self.held] = symbol_rows([self.held_labels[i] for i in self.held], torch.zeros(1))
            self.report("symbols", done, table)
        return stage.run(step, check, 500)

    def vision(self):
        """The encoder learns to put an image's symbol into every row."""
        stage = Stage("vision", self.work("vision.pt"), self.model, self.parts("vision_model", "connector"), self.args.vision_steps, 2e-3)
        held_ids = label_ids([self.held_labels[i] for i in self.held])

        def step(k):
            rng = np.random.default_rng([self.args.seed, 1, k])
            labels = [(COLOURS[rng.integers(8)], SHAPES[rng.integers(3)]) for _ in range(128)]
            distance, loss, colour, shape = symbol_losses(self.model.image_rows(self.sprites.compose(labels, rng)), self.table, label_ids(labels))
            return loss + 0.5 * distance, {"distance": distance.item(), "colour": colour.item(), "shape": shape.item()}

        @torch.no_grad()
        def check(done):
            distance, _, colour, shape = symbol_losses(self.model.image_rows(self.data.pixels[self.held]), self.table, held_ids)
            print(f"vision {done}: held out  distance {distance:.4f}  colour {colour:.4f}  shape {shape:.4f}", flush=True)
        return stage.run(step, check, 250)

    def joint(self):
        """Pixels to answers, everything trained; a weak pull keeps the image rows near their symbols."""
        self.load("symbols.pt", "text_model", "lm_head")
        self.load("vision.pt", "vision_model", "connector")
        stage = Stage("joint", self.work("joint.pt"), self.model, self.model.parameters(), self.args.joint_steps, 7e-4, warmup=50)
        batches = Batches(self.encoder, self.model.config.rows, 48, self.args.seed, "joint", lessons=[("mixed", self.args.joint_steps * 9 // 10)])

        def step(k):
            labels, ids, mask = batches[k]
            rng = np.random.default_rng([self.args.seed, 2, k])
            rows = self.model.image_rows(self.sprites.compose(labels, rng))
            loss, right = answer_loss(self.model, ids, mask, rows)
            _, pull, colour, shape = symbol_losses(rows, self.table, label_ids(labels))
            return loss + 0.5 * pull, {"answers": loss.item(), "right": right, "shape": shape.item()}

        def check(done):
            self.report("joint", done, E.image_rows(self.model, self.data.pixels))
        return stage.run(step, check, 300)

    def report(self, name, done, rows):
        """Accuracies on held-out images of the train split."""
        questions = [q for q in self.held_questions if q[2] in self.held_labels][::2]
        single = E.single_questions(self.model, self.encoder, questions, rows)
        talks, _ = E.conversations(self.model, self.encoder, suite.build(self.held_labels, 7, 24), rows)
        figures = "  ".join(f"{k} {r / n:.3f}" for k, (r, n, _) in sorted(talks.items()))
        detail = "  ".join(f"{k} {r / n:.3f}" for k, (r, n) in sorted(single.items()))
        print(f"{name} {done}: held out  easy-VQA: {detail}\n    composed: {figures}", flush=True)

    def export(self):
        from export import export
        self.load("joint.pt", "")
        export(self.model, self.encoder.tok, os.path.join(self.args.out, "model"))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="the easy_vqa/data folder")
    parser.add_argument("--out", required=True, help="checkpoints go to OUT/work, the exported model to OUT/model")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--symbol-steps", type=int, default=2300)
    parser.add_argument("--lessons", default="order:250,yes:200,not:150,which:250,same:450", help="what the first of the symbol steps ask for")
    parser.add_argument("--vision-steps", type=int, default=1000)
    parser.add_argument("--joint-steps", type=int, default=780)
    parser.add_argument("--only", nargs="+", choices=["symbols", "vision", "joint", "export"], help="run some stages only")
    args = parser.parse_args()
    args.lessons = [(name, int(steps)) for name, steps in (x.split(":") for x in args.lessons.split(","))]
    torch.set_num_threads(args.threads)
    run = Run(args)
    for name in args.only or ["symbols", "vision", "joint", "export"]:
        seconds = getattr(run, name)()
        if seconds:
            print(f"{name}: {seconds / 60:.1f} minutes", flush=True)


if __name__ == "__main__":
    main()
