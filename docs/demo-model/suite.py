"""Composed conversations for evaluation: `python suite.py --data DIR --out suite.json` (test images, one fixed seed).

Images of one conversation differ in colour and in shape, unless the question is whether they do. A scored question never asks
for what an earlier answer told: earlier turns ask what does not depend on the order of the images, and where an answer does
narrow the order down, `order_blind` counts only the orders that are left.
"""
import argparse
import json
import random

import dialogues as d
from easyvqa import Split


class Draw:
    def __init__(self, labels, rng):
        self.labels, self.rng, self.images = labels, rng, sorted(labels)

    def differing(self, n):
        """n images, no two of one colour or one shape."""
        while True:
            picked = self.rng.sample(self.images, n)
            if all(len({self.labels[i][k] for i in picked}) == n for k in range(2)):
                return picked

    def pair(self, same_colour, same_shape):
        while True:
            a, b = self.rng.sample(self.images, 2)
            if ((self.labels[a][0] == self.labels[b][0]) == same_colour) and ((self.labels[a][1] == self.labels[b][1]) == same_shape):
                return [a, b]

    def like(self, this, that, k):
        """An image that shares attribute k with `this`, and nothing else with either."""
        a, b = self.labels[this], self.labels[that]
        return self.rng.choice([i for i in self.images if i != this and self.labels[i][k] == a[k] and self.labels[i][1 - k] not in (a[1 - k], b[1 - k])])


def symmetric(rng, images):
    """A first question whose answer says nothing about the order of two or three differing images."""
    return rng.choice([d.same, lambda r, x: d.some(r, x, len(x)), d.how_many])(rng, images)


def opening(rng, images):
    """A first question about the first image that does not tell it from the others: a colour that none of them has."""
    v = rng.choice([w for w in d.COLOURS if not any(w in x for x in images)])
    return "one", d.fill(rng, rng.choice(d.ONE_MORE_YES), **d.named(rng, v)), lambda x: d.yes(v in x[0])


def build(labels, seed, each):
    """{"schema", "about", "conversations"}; `each` conversations of every kind."""
    rng = random.Random(seed)
    draw = Draw(labels, rng)
    out = []

    def add(kind, images, turns):
        """turns [(new images, question, scored)]"""
        seen, history, done = 0, [], []
        for new, (_, text, rule), scored in turns:
            at, seen = seen, seen + new
            known = [labels[i] for i in images[:seen]]
            history.append((seen, rule))
            done.append({"images": images[at:seen], "text": d.style(rng, text.rstrip("?")), "answer": rule(known),
                         "order_blind": round(d.order_blind(known, history), 4), "scored": scored})
        out.append({"kind": kind, "turns": done})

    look = lambda images: [labels[i] for i in images]
    for k in range(each):
        what = ["colour", "shape"][k % 2]
        # two images in one turn
        images = draw.differing(2)
        add("which", images, [(2, d.which(rng, look(images), sure=True), True)])
        images = draw.pair(k % 4 < 2, k % 2 == 0)
        add("same", images, [(2, d.same(rng, look(images)), True)])
        images = draw.differing(2)
        add("attribute_of_nth", images, [(2, d.nth(rng, look(images), at=k // 2 % 2, what=what), True)])
        # recall in a later turn, two images at once or one a turn
        images = draw.differing(2)
        add("recall", images, [(2, symmetric(rng, look(images)), False), (0, d.nth(rng, look(images), at=k // 2 % 2, what=what), True)])
        images = draw.differing(2)
        add("recall_across", images, [(1, opening(rng, look(images)), False), (1, d.same(rng, look(images)), False),
                                      (0, d.nth(rng, look(images), at=0 if k % 4 < 3 else 1, what=what), True)])
        # a new image in a third turn
        images = draw.differing(3)
        add("third_newest", images, [(2, symmetric(rng, look(images[:2])), False), (0, symmetric(rng, look(images[:2])), False),
                                     (1, d.nth(rng, look(images), at=2, what=what), True)])
        images = draw.differing(3)
        add("third_first", images, [(2, symmetric(rng, look(images[:2])), False), (0, d.how_many(rng, look(images[:2])), False),
                                    (1, d.nth(rng, look(images), at=k // 2 % 2, what=what), True)])
        # the third image has the colour or the shape of one of the first two, and the question is which one's
        images = draw.differing(2)
        images.append(draw.like(images[k // 2 % 2], images[1 - k // 2 % 2], k % 2))
        compare = d.new_same(rng, look(images), k=k % 2)
        add("third_compare", images, [(2, symmetric(rng, look(images[:2])), False), (0, symmetric(rng, look(images[:2])), False), (1, compare, True)])
        images = draw.differing(3)
        add("third_which", images, [(1, opening(rng, look(images)), False), (1, symmetric(rng, look(images[:2])), False),
                                    (1, d.which(rng, look(images), sure=True), True)])
    return {"schema": 1, "about": "Composed conversations about easy-VQA test images (numbers are image numbers of the test split). Each turn shows its "
            "images before its text. order_blind: the best expected accuracy of somebody who knows the images and the earlier answers, not the order.",
            "conversations": out}


def write(suite, path):
    with open(path, "w", encoding="utf-8") as f:
        head = {k: v for k, v in suite.items() if k != "conversations"}
        f.write(json.dumps(head)[:-1] + ', "conversations": [\n')
        f.write(",\n".join(json.dumps(c) for c in suite["conversations"]))
        f.write("\n]}\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--seed", type=int, default=2026)
    parser.add_argument("--each", type=int, default=90)
    args = parser.parse_args()
    write(build(Split(args.data, "test").labels, args.seed, args.each), args.out)


if __name__ == "__main__":
    main()
