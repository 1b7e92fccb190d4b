"""Reading easy-VQA: images, questions, and the labels that the questions imply."""
import json
import os
import re

import numpy as np
import torch
from PIL import Image

COLOURS = ["black", "blue", "brown", "gray", "green", "red", "teal", "yellow"]
SHAPES = ["circle", "rectangle", "triangle"]
RGB = {"black": (0, 0, 0), "blue": (0, 0, 255), "brown": (165, 42, 42), "gray": (128, 128, 128), "green": (0, 255, 0),
       "red": (255, 0, 0), "teal": (0, 128, 128), "yellow": (255, 255, 0)}


class Split:
    """One split: `pixels` uint8 (n, 3, 64, 64), `questions` [(text, answer, image)], `labels` {image: (colour, shape)}.

    Labels are read from the questions and their answers alone. Some images have too few questions for that and have none.
    """

    def __init__(self, root, name):
        folder = os.path.join(root, name)
        with open(os.path.join(folder, "questions.json"), encoding="utf-8") as f:
            self.questions = [tuple(q) for q in json.load(f)]
        n = 1 + max(q[2] for q in self.questions)
        self.pixels = np.stack([np.array(Image.open(os.path.join(folder, "images", f"{i}.png")).convert("RGB")) for i in range(n)])
        self.pixels = torch.from_numpy(self.pixels).permute(0, 3, 1, 2).contiguous()
        self.labels = infer_labels(self.questions)


def answer_question(text, label):
    """The answer to a question in easy-VQA's wording about an image of one (colour, shape)."""
    colour, shape = label
    words = re.findall(r"[a-z]+", text)
    if words[0] == "what":
        return colour if "color" in words[:4] and "shape" not in words[1:2] else shape
    named = [w for w in words if w in COLOURS or w in SHAPES][0]
    return "yes" if (named in label) != ("not" in words or "no" in words) else "no"


def infer_labels(questions):
    """Rules out every (colour, shape) that contradicts an answer; an image with one pair left has a label."""
    pairs = [(c, s) for c in COLOURS for s in SHAPES]
    left = {}
    for text, answer, image in questions:
        left[image] = [p for p in left.get(image, pairs) if consistent(text, answer, p)]
    return {i: p[0] for i, p in left.items() if len(p) == 1}


def consistent(text, answer, label):
    if text.startswith("what"):
        # "what is the blue shape?", "what color is the circle?" also say what the image shows
        named = [w for w in re.findall(r"[a-z]+", text) if w in COLOURS or w in SHAPES]
        return answer == answer_question(text, label) and all(w in label for w in named)
    return answer == answer_question(text, label)


class Sprites:
    """Cuts the shape out of each labelled image so that new images can be composed: any outline, moved anywhere,
    mirrored, in any of the eight colours, on the background of any other image. Edges keep their antialiasing."""

    def __init__(self, split, images):
        images = [i for i in images if i in split.labels]
        pixels = split.pixels[images].permute(0, 2, 3, 1).numpy().astype(np.float32)
        self.by_shape = {s: [] for s in SHAPES}
        alpha, self.boxes, self.backgrounds = [], [], []
        for k, i in enumerate(images):
            colour, shape = split.labels[i]
            flat = pixels[k].reshape(-1, 3)
            values, counts = np.unique(flat, axis=0, return_counts=True)
            order = counts.argsort()
            ink = np.array(RGB[colour], np.float32)
            ground = values[order[-1]] if not np.array_equal(values[order[-1]], ink) else values[order[-2]]
            d = ink - ground
            a = ((pixels[k] - ground) @ d / (d @ d)).clip(0, 1)
            ys, xs = np.nonzero(a > 0.02)
            if len(ys) == 0:
                continue
            self.by_shape[shape].append(len(alpha))
            alpha.append(a)
            self.boxes.append((ys.min(), ys.max(), xs.min(), xs.max()))
            self.backgrounds.append(ground)
        self.alpha, self.boxes, self.backgrounds = np.stack(alpha), np.array(self.boxes), np.stack(self.backgrounds)

    def compose(self, labels, rng):
        """uint8 (n, 3, 64, 64) for a list of (colour, shape)."""
        n = len(labels)
        pick = np.array([self.by_shape[s][rng.integers(len(self.by_shape[s]))] for _, s in labels])
        y0, y1, x0, x1 = self.boxes[pick].T
        u = rng.random((3, n))
        dy = np.floor(u[0] * (64 - (y1 - y0))).astype(int) - y0
        dx = np.floor(u[1] * (64 - (x1 - x0))).astype(int) - x0
        at = np.arange(64)
        rows, cols = (at[None] - dy[:, None]) % 64, (at[None] - dx[:, None]) % 64
        a = self.alpha[pick[:, None, None], rows[:, :, None], cols[:, None, :]]
        flip = u[2] < 0.5
        a[flip] = a[flip, :, ::-1]
        ground = self.backgrounds[rng.integers(len(self.backgrounds), size=n)][:, None, None]
        ink = np.array([RGB[c] for c, _ in labels], np.float32)[:, None, None]
        out = np.rint(ground + a[..., None] * (ink - ground)).astype(np.uint8)
        return torch.from_numpy(out).permute(0, 3, 1, 2).contiguous()
