"""Composing conversations about images of one coloured shape each.

A question is (kind, text, rule): `rule(images)` gives the answer for the images of the conversation so far, in order, each
a (colour, shape). With the rule a question can be asked of any other order of the same images, which is what `order_blind`
does.
"""
from collections import Counter
from itertools import permutations

from easyvqa import COLOURS, SHAPES, answer_question

ORDINALS = ["first", "second", "third", "fourth"]
COUNTS = ["none", "one", "two", "three", "four"]


# ---- phrases. {c} a colour, {s} a shape, {n} an ordinal, {img} image, {imgs} images, {thing} shape, {colour} colour.

ONE_COLOUR = ["what color is the shape", "what color is the {s}", "what is the color of the {s}", "what is the color of the shape"]
ONE_SHAPE = ["what shape is in the image", "what shape does the image contain", "what shape is present", "what is the {c} shape"]
ONE_YES = ["is there {a}", "is there {a} in the image", "does the image contain {a}", "is {a} present"]
ONE_NO = ["is there not {a}", "is there not {a} in the image", "does the image not contain {a}", "is no {b} present"]
ONE_MORE_COLOUR = ["what {colour} is it", "what {colour} is this", "which {colour} is the {thing}", "what {colour} is the {thing} in the {img}",
                   "what {colour} is the {thing} in this {img}", "name the {colour}", "what {colour} does the {thing} have"]
ONE_MORE_SHAPE = ["what {thing} is this", "what {thing} is it", "which {thing} is in the {img}", "what {thing} is in this {img}",
                  "which {thing} do you see", "what {thing} is shown", "name the {thing}", "what {thing} is there"]
ONE_MORE_YES = ["is it {a_or_c}", "is this {a_or_c}", "do you see {a}", "can you see {a}", "is the {thing} {a_or_c}", "is there {a} in this {img}",
                "does this {img} contain {a}", "does the {img} show {a}"]
ONE_BOTH = ["what is in the {img}", "what is in this {img}", "what is this", "what do you see", "describe the {img}", "describe this {img}",
            "what does the {img} show"]

NTH_COLOUR = ["what {colour} {is} the {thing} in the {n} {img}", "what {colour} {is} the {n} {thing}", "what {colour} {is} in the {n} {img}",
              "what {is} the {colour} of the {thing} in the {n} {img}", "what {is} the {colour} of the {n} {thing}", "which {colour} {is} the {n} {thing}",
              "which {colour} {is} the {thing} in the {n} {img}", "what {colour} {is} the {n} one", "{n} {img}: what {colour}",
              "in the {n} {img}, what {colour} {is} the {thing}", "what {colour} did the {thing} in the {n} {img} have",
              "what {colour} does the {n} {img} have", "tell me the {colour} of the {n} {thing}"]
NTH_SHAPE = ["what {thing} {is} in the {n} {img}", "which {thing} {is} in the {n} {img}", "what {thing} {is} the {n} one", "what {thing} {is} the {n} {img}",
             "what {thing} does the {n} {img} contain", "what {thing} did the {n} {img} contain", "what {thing} does the {n} {img} show",
             "what {is} the {thing} in the {n} {img}", "{n} {img}: what {thing}", "in the {n} {img}, what {thing} {is} there", "what {is} the {n} {thing}",
             "tell me the {thing} of the {n} {img}", "what {thing} {is} there in the {n} {img}", "which {thing} does the {n} {img} contain"]
NTH_BOTH = ["what {is} in the {n} {img}", "describe the {n} {img}", "what does the {n} {img} show", "what did the {n} {img} show", "what do you see in the {n} {img}"]
NTH_YES = ["{is} the {n} {thing} {a_or_c}", "{is} the {n} {img} {a_or_c}", "{is} there {a} in the {n} {img}", "does the {n} {img} contain {a}",
           "did the {n} {img} contain {a}", "does the {n} {img} show {a}", "{is} the {thing} in the {n} {img} {a_or_c}", "{is} the {n} one {a_or_c}"]
WHICH = ["which {img} has {t}", "which {img} contains {t}", "which {img} shows {t}", "which one has {t}", "which one is {t_short}", "which {img} is {t_short}",
         "in which {img} {is} {t}", "which {img} had {t}", "which of the {imgs} has {t}", "where {is} {t}", "{t} is in which {img}", "which one shows {t}",
         "in which {img} do you see {t}", "which {img} is it that has {t}"]
SAME_COLOUR = ["are both the same {colour}", "are both {thing}s the same {colour}", "do both {imgs} have the same {colour}", "are the {colour}s the same",
               "is the {colour} the same in both {imgs}", "do the two {thing}s have the same {colour}", "are the two {thing}s the same {colour}",
               "do both {thing}s have the same {colour}", "are they the same {colour}", "do they have the same {colour}", "is it the same {colour} in both {imgs}",
               "are both of the same {colour}", "are the {thing}s in both {imgs} the same {colour}", "are both {imgs} the same {colour}", "same {colour}"]
SAME_SHAPE = ["are both the same {thing}", "do both {imgs} show the same {thing}", "do both {imgs} have the same {thing}", "do both {imgs} contain the same {thing}",
              "are the {thing}s the same", "is the {thing} the same in both {imgs}", "are they the same {thing}", "do they have the same {thing}",
              "are the two {thing}s the same", "do the two {imgs} show the same {thing}", "are both of the same {thing}", "is it the same {thing} in both {imgs}",
              "are both {imgs} the same {thing}", "same {thing}"]
OTHER_COLOUR = ["are the {colour}s different", "do they have different {colour}s", "do the {imgs} have different {colour}s", "are they different {colour}s",
                "do both {imgs} have different {colour}s"]
OTHER_SHAPE = ["are the {thing}s different", "do they have different {thing}s", "do the {imgs} have different {thing}s", "are they different {thing}s",
               "do both {imgs} show different {thing}s"]
TWO_SAME_COLOUR = ["do the {n} and the {m} {img} have the same {colour}", "is the {n} {thing} the same {colour} as the {m}", "are the {n} and the {m} {thing} the same {colour}",
                   "does the {n} {img} have the same {colour} as the {m}", "is the {n} {img} the same {colour} as the {m} one"]
TWO_SAME_SHAPE = ["do the {n} and the {m} {img} have the same {thing}", "is the {n} {thing} the same as the {m}", "do the {n} and the {m} {img} show the same {thing}",
                  "does the {n} {img} have the same {thing} as the {m}", "is the {n} {img} the same {thing} as the {m} one"]
NEW_SAME_COLOUR = ["is it the same {colour} as the {m}", "is it the same {colour} as the {m} {thing}", "does it have the same {colour} as the {m} {img}",
                   "is this the same {colour} as the {m} one"]
NEW_SAME_SHAPE = ["is it the same {thing} as the {m}", "is it the same {thing} as in the {m} {img}", "does it show the same {thing} as the {m} {img}",
                  "is this the same {thing} as the {m} one"]
WHICH_LIKE_COLOUR = ["which {img} has the same {colour} as the {n}", "which other {img} has the {colour} of the {n}", "which {img} is the same {colour} as the {n} {img}"]
WHICH_LIKE_SHAPE = ["which {img} has the same {thing} as the {n}", "which other {img} has the {thing} of the {n}", "which {img} shows the same {thing} as the {n} {img}"]
ANY = ["do you see {a}", "is there {a}", "is {a} present"]
ANY_OF_THEM = ["is there {a} in any of the {imgs}", "does any {img} contain {a}", "is there {a} in one of the {imgs}", "does one of the {imgs} show {a}",
               "is one of them {a_or_c}", "is any of the {thing}s {a_or_c}", "is there {a} in either {img}", "does either {img} contain {a}"]
ALL = ["are all {thing}s {c_or_s}", "are all of them {c_or_s}", "do all {imgs} contain {a}", "do all {imgs} show {a}"]
BOTH = ["are both {thing}s {c_or_s}", "are both {c_or_s}", "do both {imgs} contain {a}", "do both {imgs} show {a}"]
HOW_MANY = ["how many {thing}s are {c_or_s}", "how many are {c_or_s}", "how many {imgs} contain {a}", "how many {imgs} show {a}", "how many {c_or_ss} are there"]
HOW_MANY_IMAGES = ["how many {imgs} are there", "how many {imgs} do you see", "how many {imgs} have you seen"]
COLOUR_OF = ["what {colour} is the {s}", "what is the {colour} of the {s}", "which {colour} is the {s}", "what {colour} was the {s}", "what {colour} does the {s} have"]
SHAPE_OF = ["what {thing} is {c}", "what is the {c} {thing}", "which {thing} is {c}", "what was the {c} {thing}", "what {thing} is the {c} one"]
DESCRIBE_ALL = ["describe the {imgs}", "what is in the {imgs}", "what do the {imgs} show", "what do you see in the {imgs}", "describe both {imgs}", "what do you see"]


def article(label):
    return f"a {label[0]} {label[1]}"


def fill(rng, text, **words):
    """Fills a phrase in and varies the way people write: colour or color, image or picture, capital letter, question mark."""
    colour = "colour" if rng.random() < 0.5 else "color"
    img = "image" if rng.random() < 0.8 else rng.choice(["picture", "photo"])
    thing = "shape" if rng.random() < 0.9 else "object"
    be = "is" if rng.random() < 0.6 else "was"
    return text.format(colour=colour, img=img, imgs=img + "s", thing=thing, **{"is": be}, **words)


def style(rng, text):
    words = text.split(" ")
    if rng.random() < 0.1:
        words = ["grey" if w == "gray" else w for w in words]
    text = " ".join(words)
    imperative = words[0] in ("describe", "name", "tell")
    r = rng.random()
    if r < (0.1 if imperative else 0.85):
        text += "?"
    elif r > 0.95 or (imperative and r > 0.5):
        text += "."
    if rng.random() < 0.4:
        text = text[0].upper() + text[1:]
    return text


def named(rng, value):
    """Ways to speak of a colour or a shape: `red` / `a red shape`, `circle` / `a circle`."""
    if value in COLOURS:
        thing = "shape" if rng.random() < 0.9 else "object"
        return dict(a=f"a {value} {thing}", b=f"{value} shape", a_or_c=value, c_or_s=value, c_or_ss=f"{value} shapes")
    return dict(a=f"a {value}", b=value, a_or_c=f"a {value}", c_or_s=value + "s", c_or_ss=value + "s")


def yes(x):
    return "yes" if x else "no"


def pick_value(rng, present, both=True):
    """A colour or a shape, half of the time one that is there."""
    pool = COLOURS if rng.random() < 0.6 else SHAPES
    there = [v for v in pool if any(v in x for x in present)]
    away = [v for v in pool if v not in there]
    if there and (rng.random() < 0.5 or not away):
        return rng.choice(there)
    return rng.choice(away) if away else rng.choice(there)


# ---- questions about one image

def easy_question(rng, at, images, r=None):
    """easy-VQA's own wording about the image at index `at`; r < 0.28 asks what, < 0.6 whether, < 1 whether not."""
    r = rng.random() if r is None else r
    label = images[at]
    if r < 0.14:
        text = rng.choice(ONE_COLOUR).format(s=label[1])
    elif r < 0.28:
        text = rng.choice(ONE_SHAPE).format(c=label[0])
    else:
        text = rng.choice(ONE_YES if r < 0.6 else ONE_NO).format(**easy_named(rng, label))
    return "easy", text + "?", lambda x: answer_question(text, x[at])


def easy_named(rng, label):
    value = pick_value(rng, [label])
    return dict(a=f"a {value} shape" if value in COLOURS else f"a {value}", b=f"{value} shape" if value in COLOURS else value)


def free_question(rng, at, images):
    r = rng.random()
    if r < 0.25:
        return "one", fill(rng, rng.choice(ONE_MORE_COLOUR)), lambda x: x[at][0]
    if r < 0.5:
        return "one", fill(rng, rng.choice(ONE_MORE_SHAPE)), lambda x: x[at][1]
    if r < 0.65:
        return "one", fill(rng, rng.choice(ONE_BOTH)), lambda x: article(x[at])
    v = pick_value(rng, [images[at]])
    return "one", fill(rng, rng.choice(ONE_MORE_YES), **named(rng, v)), lambda x: yes(v in x[at])


# ---- questions about one of several images

def nth_name(rng, at, n):
    names = [ORDINALS[at]]
    if at == n - 1:
        names += ["last"] + (["new", "newest"] if n > 2 else [])
    return rng.choice(names) if rng.random() < 0.3 else names[0]


def nth(rng, images, at=None, what=None):
    n = len(images)
    at = rng.randrange(n) if at is None else at
    name = nth_name(rng, at, n)
    what = what or rng.choice(["colour", "shape", "colour", "shape", "both", "yes", "yes"])
    if what == "colour":
        return "nth", fill(rng, rng.choice(NTH_COLOUR), n=name), lambda x: x[at][0]
    if what == "shape":
        return "nth", fill(rng, rng.choice(NTH_SHAPE), n=name), lambda x: x[at][1]
    if what == "both":
        return "nth", fill(rng, rng.choice(NTH_BOTH), n=name), lambda x: article(x[at])
    r = rng.random()
    # half of the wrong values are those of another image: only order tells them apart
    pool = COLOURS if rng.random() < 0.6 else SHAPES
    others = [v for x in images for v in x if v in pool and v not in images[at]]
    v = [w for w in images[at] if w in pool][0] if r < 0.5 else rng.choice(others) if others and r < 0.85 else rng.choice([w for w in pool if w not in images[at]])
    return "nth", fill(rng, rng.choice(NTH_YES), n=name, **named(rng, v)), lambda x: yes(v in x[at])


# ---- questions about several images together

def which(rng, images, sure=False):
    r = rng.random()
    if r < 0.45:
        v = rng.choice([x[0] for x in images]) if sure or rng.random() < 0.92 else rng.choice(COLOURS)
        want = lambda x: x[0] == v
        t, short = f"{rng.choice(['the', 'the', 'a'])} {v} {{thing}}", v
    elif r < 0.9:
        v = rng.choice([x[1] for x in images]) if sure or rng.random() < 0.92 else rng.choice(SHAPES)
        want = lambda x: x[1] == v
        t, short = f"{rng.choice(['the', 'the', 'a'])} {v}", rng.choice(["the", "a"]) + f" {v}"
    else:
        v = rng.choice(images)
        want = lambda x: x == v
        t, short = f"the {v[0]} {v[1]}", f"the {v[0]} {v[1]}"
    hits = sum(map(want, images))
    if hits > 1 and (len(images) > 2 or sure):
        return None
    text = rng.choice(WHICH).replace("{t}", t).replace("{t_short}", short)
    return "which", fill(rng, text), lambda x: which_answer([i for i in range(len(x)) if want(x[i])], len(x))


def which_answer(hits, n):
    return "none" if not hits else f"the {ORDINALS[hits[0]]} image" if len(hits) == 1 else "both images" if n == 2 else None


def same(rng, images, k=None):
    k = rng.randrange(2) if k is None else k
    if len(images) == 2 and rng.random() < 0.7:
        if rng.random() < 0.25:
            return "same", fill(rng, rng.choice([OTHER_COLOUR, OTHER_SHAPE][k])), lambda x: yes(x[0][k] != x[1][k])
        return "same", fill(rng, rng.choice([SAME_COLOUR, SAME_SHAPE][k])), lambda x: yes(x[0][k] == x[1][k])
    i, j = rng.sample(range(len(images)), 2)
    text = fill(rng, rng.choice([TWO_SAME_COLOUR, TWO_SAME_SHAPE][k]), n=ORDINALS[i], m=ORDINALS[j])
    return "same", text, lambda x: yes(x[i][k] == x[j][k])


def new_same(rng, images, k=None):
    """The image of this turn compared with an earlier one."""
    j, at = rng.randrange(len(images) - 1), len(images) - 1
    k = rng.randrange(2) if k is None else k
    text = fill(rng, rng.choice([NEW_SAME_COLOUR, NEW_SAME_SHAPE][k]), m=ORDINALS[j])
    return "same", text, lambda x: yes(x[at][k] == x[j][k])


def which_like(rng, images):
    i, k = rng.randrange(len(images)), rng.randrange(2)
    hits = [j for j in range(len(images)) if j != i and images[j][k] == images[i][k]]
    if len(hits) > 1:
        return None
    text = fill(rng, rng.choice([WHICH_LIKE_COLOUR, WHICH_LIKE_SHAPE][k]), n=ORDINALS[i])
    return "which", text, lambda x: which_answer([j for j in range(len(x)) if j != i and x[j][k] == x[i][k]][:2], 3)


def some(rng, images, new):
    v = pick_value(rng, images)
    # in a turn with one new image, "is there a circle?" asks about that image
    return "any", fill(rng, rng.choice(ANY_OF_THEM if new == 1 else ANY_OF_THEM + ANY), **named(rng, v)), lambda x: yes(any(v in y for y in x))


def every(rng, images):
    v = rng.choice(rng.choice(images))
    return "all", fill(rng, rng.choice(BOTH if len(images) == 2 else ALL), **named(rng, v)), lambda x: yes(all(v in y for y in x))


def how_many(rng, images):
    if rng.random() < 0.25:
        return "count", fill(rng, rng.choice(HOW_MANY_IMAGES)), lambda x: COUNTS[len(x)]
    v = pick_value(rng, images)
    return "count", fill(rng, rng.choice(HOW_MANY), **named(rng, v)), lambda x: COUNTS[sum(v in y for y in x)]


def of_the(rng, images):
    """The colour of the one circle, the shape of the one red thing."""
    k = rng.randrange(2)
    v = rng.choice(images)[1 - k]
    if sum(x[1 - k] == v for x in images) != 1:
        return None
    text = fill(rng, rng.choice(COLOUR_OF), s=v) if k == 0 else fill(rng, rng.choice(SHAPE_OF), c=v)
    return "of", text, lambda x: [y for y in x if v in y][0][k]


def describe_all(rng, images):
    return "describe", fill(rng, rng.choice(DESCRIBE_ALL)), lambda x: ", ".join(map(article, x[:-1])) + " and " + article(x[-1])


def question(rng, images, new, tell_apart=0.6):
    """A question for a turn that brings the last `new` of `images`; None when the draw does not fit the images."""
    n = len(images)
    if n == 1:
        return (easy_question if rng.random() < 0.65 else free_question)(rng, 0, images)
    r = rng.random()
    if new == 1 and r < 0.35:
        return (easy_question if rng.random() < 0.6 else free_question)(rng, n - 1, images)
    if new == 1 and r < 0.45:
        return new_same(rng, images)
    if rng.random() < tell_apart:
        r = rng.random()
        return nth(rng, images) if r < 0.58 else which(rng, images) if r < 0.92 else which_like(rng, images) if n > 2 else which(rng, images)
    r = rng.random()
    if r < 0.42:
        return same(rng, images)
    if r < 0.55:
        return some(rng, images, new)
    if r < 0.65:
        return every(rng, images)
    if r < 0.77:
        return how_many(rng, images)
    if r < 0.93:
        return of_the(rng, images)
    return describe_all(rng, images) if new != 1 else None


def draw_images(rng, n):
    """Mostly images that differ in colour and in shape; some that share one or the other."""
    if rng.random() < 0.5 and n <= 3:
        return list(zip(rng.sample(COLOURS, n), rng.sample(SHAPES, n)))
    out = []
    for _ in range(n):
        c, s = rng.choice(COLOURS), rng.choice(SHAPES)
        if out and rng.random() < 0.35:
            c = rng.choice(out)[0]
        if out and rng.random() < 0.2:
            s = rng.choice(out)[1]
        out.append((c, s))
    return out


# How many images each turn brings, and how often such a conversation is drawn.
PLANS = [((1,), 5), ((1, 0), 2), ((1, 0, 0), 1), ((2,), 5), ((2, 0), 4), ((2, 0, 0), 2), ((1, 1), 4), ((1, 1, 0), 3), ((2, 0, 1), 5), ((2, 1), 3), ((2, 1, 0), 3),
         ((2, 0, 1, 0), 3), ((1, 1, 1), 3), ((1, 1, 1, 0), 2), ((1, 0, 1, 0), 2), ((1, 0, 0, 1, 0), 1), ((3,), 2), ((3, 0), 2), ((1, 0, 1, 0, 1, 0), 1), ((2, 0, 0, 1, 0, 0), 2),
         ((2, 2), 1), ((2, 2, 0), 1), ((2, 0, 0, 0, 0, 1, 0, 0, 0, 0), 0.5), ((1, 0, 0, 1, 0, 0, 1, 0, 0, 1, 0, 0, 0, 0), 0.3)]


def order_lesson(rng):
    """A first lesson for the decoder, which asks for nothing but what stands in which image."""
    plan = rng.choice([(2,), (2, 0), (2, 0, 0), (1, 1), (1, 1, 0), (2, 1), (3, 0)])
    images = list(zip(rng.sample(COLOURS, sum(plan)), rng.sample(SHAPES, sum(plan))))
    turns, seen = [], 0
    for new in plan:
        seen += new
        q = (nth(rng, images[:seen], what=rng.choice(["colour", "shape", "colour", "shape", "both"])) if rng.random() < 0.65
             else which(rng, images[:seen], sure=True))
        turns.append((new, style(rng, q[1]), q[2](images[:seen])))
    return images, turns


def yes_lesson(rng, negated=0.0):
    """A second lesson, yes or no: without negation at first, then with some."""
    if rng.random() < 0.25:
        return order_lesson(rng)
    if rng.random() < 0.6:
        plan, images = (1, 0, 0, 0), [(rng.choice(COLOURS), rng.choice(SHAPES))]
    else:
        plan, images = rng.choice([(2, 0, 0), (1, 1, 0)]), list(zip(rng.sample(COLOURS, 2), rng.sample(SHAPES, 2)))
    turns, seen = [], 0
    for new in plan:
        seen += new
        if seen > 1:
            q = nth(rng, images[:seen], what="yes")
        elif rng.random() < 0.25:
            v = pick_value(rng, images)
            q = "one", fill(rng, rng.choice(ONE_MORE_YES), **named(rng, v)), lambda x, v=v: yes(v in x[0])
        else:
            q = easy_question(rng, 0, images, 0.1 + 0.1 * rng.random() if rng.random() < 0.1 else 0.9 if rng.random() < negated else 0.5)
        turns.append((new, style(rng, q[1].rstrip("?")), q[2](images[:seen])))
    return images, turns


def which_lesson(rng):
    """A third lesson: which image has it, which is the way back from a shape to a place."""
    if rng.random() < 0.15:
        return yes_lesson(rng, 0.5)
    plan = rng.choice([(2,), (2,), (2, 0), (1, 1), (3,)])
    images = list(zip(rng.sample(COLOURS, sum(plan)), rng.sample(SHAPES, sum(plan))))
    turns, seen = [], 0
    for new in plan:
        seen += new
        q = which(rng, images[:seen], sure=True) if seen > 1 else free_question(rng, 0, images)
        turns.append((new, style(rng, q[1]), q[2](images[:seen])))
    return images, turns


def same_lesson(rng):
    """A fourth lesson: two images compared, mostly their colours, which are harder than shapes. Half of the answers are yes."""
    if rng.random() < 0.12:
        return rng.choice([which_lesson, not_lesson, order_lesson])(rng)
    plan = rng.choice([(2,), (2,), (2,), (2,), (1, 1), (2, 0)])
    images = [(rng.choice(COLOURS), rng.choice(SHAPES))]
    while len(images) < sum(plan):
        other = rng.choice(images)
        images.append((other[0] if rng.random() < 0.5 else rng.choice(COLOURS), other[1] if rng.random() < 0.35 else rng.choice(SHAPES)))
    turns, seen = [], 0
    for new in plan:
        seen += new
        k = int(rng.random() < 0.2)
        q = easy_question(rng, 0, images) if seen == 1 else (new_same if new == 1 and rng.random() < 0.7 else same)(rng, images[:seen], k=k)
        turns.append((new, style(rng, q[1].rstrip("?")), q[2](images[:seen])))
    return images, turns


def third_lesson(rng):
    """A third image after two: compared with an earlier one, or which of the three it is."""
    plan = rng.choice([(2, 1), (2, 0, 1), (2, 1, 0), (1, 1, 1)])
    images = list(zip(rng.sample(COLOURS, 3), rng.sample(SHAPES, 3)))
    compare = rng.random() < 0.6
    if compare:
        like, k = images[rng.randrange(2)], rng.randrange(2)
        images[2] = (like[0], images[2][1]) if k == 0 else (images[2][0], like[1])
    turns, seen = [], 0
    for new in plan:
        seen += new
        q = None
        while not q or not q[2](images[:seen]):
            if seen == 3 and new and compare:
                q = new_same(rng, images, k if rng.random() < 0.75 else 1 - k)
            elif seen == 3:
                q = which(rng, images)
            else:
                q = question(rng, images[:seen], new)
        turns.append((new, style(rng, q[1].rstrip("?")), q[2](images[:seen])))
    return images, turns


def mixed(rng):
    """The full mixture with more of what comes last: comparisons, and third images."""
    r = rng.random()
    return (same_lesson if r < 0.1 else third_lesson if r < 0.45 else conversation)(rng)


def not_lesson(rng):
    return yes_lesson(rng, 0.5)


def conversation(rng):
    """One conversation for training: ([(colour, shape)], [(new images, text, answer)])."""
    plan = rng.choices([p for p, _ in PLANS], [w for _, w in PLANS])[0]
    images = draw_images(rng, sum(plan))
    turns, seen, asked = [], 0, set()
    for k, new in enumerate(plan):
        seen += new
        # in early turns ask less of what would give the order away to a later turn
        tell_apart = 0.35 if k == 0 and len(plan) > 1 else 0.75
        for _ in range(20):
            q = question(rng, images[:seen], new, tell_apart)
            answer = q and q[2](images[:seen])
            if answer and (q[1], seen) not in asked:
                break
        else:
            q = nth(rng, images[:seen]) if seen > 1 else easy_question(rng, 0, images)
            answer = q[2](images[:seen])
        asked.add((q[1], seen))
        text = q[1] if q[0] == "easy" and rng.random() < 0.6 else style(rng, q[1].rstrip("?"))
        turns.append((new, text, answer))
    return images, turns


def order_blind(images, questions):
    """The best expected accuracy for the last question of somebody who knows the images but not their order.

    `questions` [(images seen, rule)]: the earlier answers have been heard, so orders that contradict them are out.
    """
    votes = Counter()
    seen = questions[-1][0]
    for p in permutations(images[:seen]):
        try:
            if all(rule(p[:n]) == rule(images[:n]) for n, rule in questions[:-1]):
                votes[questions[-1][1](p)] += 1
        except IndexError:
            pass
    return max(votes.values()) / sum(votes.values())


LESSONS = {"order": order_lesson, "yes": yes_lesson, "not": not_lesson, "which": which_lesson, "same": same_lesson, "mixed": mixed, "all": conversation}


# ---- the text of a conversation

IMAGE = "<image>"


def expand(rows):
    return "<fake_token_around_image><global-img>" + IMAGE * rows + "<fake_token_around_image>"


def render(turns, rows, last_answer=True):
    """What SmolVLM's chat template and processor make of [(new images, text, answer)], images first in their turn.

    Without the last answer the text ends where the model has to go on.
    """
    out = ["<|im_start|>"]
    for k, (new, text, answer) in enumerate(turns):
        out.append("User:" + (expand(rows) * new if new else " ") + text + "<end_of_utterance>\nAssistant:")
        if last_answer or k + 1 < len(turns):
            out.append(f" {answer}<end_of_utterance>\n")
    return "".join(out)
