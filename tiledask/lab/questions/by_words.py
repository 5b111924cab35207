"""A question found by its words, and the inputs that numbers in them set.

"24 layers on 4 devices"   ->   34, layers=24 devices=4
    titles, texts and inputs of all questions; rare words count more than common ones
"""

import re
from collections import Counter
from functools import cache
from itertools import pairwise, takewhile
from math import log
from typing import NamedTuple

from tiledask.errors import ConfigError, short
from tiledask.lab.questions.question import Question
from tiledask.lab.questions.table import QUESTIONS
from tiledask.plan.pipelines.schedules import schedules

__all__ = ["by_words"]

COMMON = frozenset(
    re.findall(
        r"\w+",
        """a an and are as at be by can do does each for from has have how i if in into is it its
        many me much my no not of on one or our over so than that the their them then there they
        this to was we what when where which while who whose why with x you your""",
    )
)
KEYS = {
    3: "layer",
    12: "idle share bubble stages micro-batches",
    14: "fit fewest GPUs",
    15: "fewest GPUs",
    18: "train fit LoRA rank",
    24: "ZeRO save",
    28: "ring all-reduce bytes LeNet gradients",
    34: "layers stages cut",
    35: "idle computes",
    36: "round robin",
}
"""Words by which a question is known, beside those of its title."""
DEVICES = frozenset(("gpu", "worker", "accele", "unit"))
"""Stems of what is called a device here."""
DEVICE = "devic"
BYTES = "bytes"
A_NUMBER, IN_TITLE = 2.0, 3.0
"""What a number that sets an input counts; and how many times as much words of the title do, and
numbers that are the question's own."""
ALL_SET = 0.5
"""What it counts that every input is set."""
NEAR = 0.55
"""Least share of the words, by weight, that a question has which is taken."""
_NUMBER = re.compile(
    r"(?<![\w.-])(\d+(?:\.\d+)?)\s*(?:(kb|[mgt]i?b)\b|(b|billions?|bn|t|trillion)\b|)", re.I
)
_SET = re.compile(r"\b([a-z]\w*)=([^\s,;?]+)", re.I)
_REWRITTEN = (
    (r"(\d)\s*x\s*(?=[\dA-Z])", r"\1 devices "),  # of 4x24GB
    (r"(?i)\bwhile (?:[a-z]+ )?(\d+) (?=comput|work)", r"working=\1 "),
    (r"(?i)\b(gpu|worker|device) \d+(?=\s*(?:and|or|do|does|is|,|\?|$))", r"\1"),
    (r"(?i)\bhow many (?=gpu|device)", "fewest "),
)


class _Number(NamedTuple):
    value: str
    of: tuple[str, ...]
    """Stems of the words that say what it counts; BYTES, or "billion"."""


def by_words(asked: str) -> tuple[int, dict[str, str], str]:
    """(number, inputs, which question that is) of the one that is nearest to the words.

    >>> by_words("24 layers on 4 devices")[:2]
    (34, {'layers': '24', 'devices': '4'})
    >>> by_words("does 200B fit on 40GB GPUs")[:2]
    (14, {'billions': '200', 'memory': '40GB'})
    """
    text = asked
    for pattern, to in _REWRITTEN:
        text = re.sub(pattern, to, text)
    given, text = dict(_SET.findall(text)), _SET.sub(" ", text)
    words, numbers = _stems(_NUMBER.sub(" ", text)), _numbers(text)
    listed, weights, schedule = _listed(asked), _weights(), _schedule(asked)
    known = {word: weights.get(word, max(weights.values())) for word in words}
    scored = []
    for number, each in QUESTIONS.items():
        title, told = _documents()[number]
        mine = {name: value for name, value in given.items() if name in each.inputs}
        if schedule and "schedule" in each.inputs and _value(each, "schedule", schedule):
            mine.setdefault("schedule", schedule)
        placed = _placed(each, numbers) | mine
        found = [(known[w], w in title) for w in known if w in title | told]
        found += [
            (A_NUMBER, each.inputs[n].value(n) == _value(each, n, v)) for n, v in placed.items()
        ]
        found += [(A_NUMBER, True) for n in numbers if n.value in title & listed]
        whole = (
            sum(known.values())
            + A_NUMBER * sum(bool(n.of) or n.value in listed for n in numbers)
            + A_NUMBER * len(given)
        ) or 1.0
        score = sum(weight * (IN_TITLE if best else 1.0) for weight, best in found) / whole
        score += ALL_SET * len(placed) / len(each.inputs)
        scored.append((score, sum(weight for weight, _ in found) / whole, -number, placed))
    scored.sort(key=lambda each: each[:3], reverse=True)
    (_, share, number, placed), *others = scored
    if share < NEAR:
        three = "; ".join(_line(-each[2]) for each in scored[:3])
        typed = ", ".join(f"tiledask ask {-each[2]}" for each in scored[:3])
        typed += _command(text, numbers) + _idle(schedule, numbers)
        raise ConfigError(f"no question is near {short(asked)}; the nearest are {three}: {typed}")
    taken = QUESTIONS[-number]
    read = {name: taken.inputs[name].value(name, value) for name, value in placed.items()}
    used = {*placed.values(), *(listed & _documents()[-number][0])}
    unread = [n for n in numbers if n.value not in used]
    unread += [_Number(f"{name}={given[name]}", (name,)) for name in given if name not in read]
    unread += [_Number(schedule, ())] if schedule and "schedule" not in read else []
    found_as = f"Question {-number}" + (f", {taken.typed(read)}" if read else "")
    found_as += f" (not used: {', '.join(n.value for n in unread)})" if unread else ""
    found_as = (
        f"{_own(taken, read, unread)}{found_as}{_command(text, numbers)}{_idle(schedule, numbers)}"
    )
    return -number, placed, f"{found_as}. Next nearest: {_line(-others[0][2])}."


def _own(taken: Question, read: dict[str, object], unread: list[_Number]) -> str:
    """What the page is for instead, where numbers that it could be asked for are not used."""
    counted = (BYTES, "billion", DEVICE)
    meant = [
        f"{n.value}{'B' * (n.of[0] == 'billion')}"
        for n in unread
        if n.of and ("=" in n.value or n.of[0] in counted or _named(taken, n.of))
    ]
    if not meant:
        return ""
    own = taken.typed({n: v for n, v in taken.read({}).items() if n not in read})
    return f"This page is not for {', '.join(meant)} but for its own numbers, {own}. "


def _command(text: str, numbers: list[_Number]) -> str:
    """The command that answers for a model and GPUs that the words name."""
    kinds = [n.of[0] for n in numbers if n.of]
    found = dict(zip(kinds, (n.value for n in numbers if n.of), strict=True))
    size, devices, memory = (found.get(kind) for kind in ("billion", DEVICE, BYTES))
    if len(kinds) > len(found) or not size or not (devices or memory):
        return ""
    nodes = found.get(_stem("nodes"), "1")
    rank = re.search(r"(?i)\brank\s*(\d+)", text)
    lora = f" --lora-rank {rank[1]}" if rank else ""
    if devices and devices.isdecimal() and nodes.isdecimal():
        asked = f"fit {size}B {int(devices) * int(nodes)}x{memory or 'H100'}{lora}"
    elif memory:
        asked = f"plan {size}B 1x{memory}{lora} --fewest"
    else:
        return ""
    return f"; with everything counted: tiledask {asked}"


def _schedule(text: str) -> str:
    """The schedule that the words name, if they name one."""
    return next((word for word in re.findall(r"[\w-]+", text.lower()) if word in schedules), "")


def _idle(schedule: str, numbers: list[_Number]) -> str:
    """The command that answers for a schedule on devices with micro-batches."""
    devices, microbatches = (
        next((n.value for n in numbers if n.value.isdecimal() and {*n.of} & {*words}), "")
        for words in ((DEVICE, _stem("stages")), (_stem("microbatches"), _stem("micro")))
    )
    if not (schedule and devices and microbatches):
        return ""
    return f"; its idle time: tiledask idle {schedule} {devices} {microbatches}"


def _line(number: int) -> str:
    return f"{number}, {QUESTIONS[number].words(QUESTIONS[number].title).rstrip(' .')}"


def _value(asked: Question, name: str, typed: str) -> object:
    try:
        return asked.inputs[name].value(name, typed)
    except ConfigError:
        return None


def _stem(word: str) -> str:
    """The beginning of a word, without its ending: "training" and "trains" are "train".

    >>> [_stem(word) for word in ("training", "trains", "copies", "GPUs")]
    ['train', 'train', 'cop', 'devic']
    """
    word = word.lower()
    stem = re.sub(r"(ings?|ed|ies|es|s|y)$", "", word)[:6] if len(word) > 3 else word
    return DEVICE if stem in DEVICES else stem


def _stems(text: str) -> list[str]:
    words = re.findall(r"[a-z][a-z\d]*", re.sub(r"(?<=\w)-(?=\w)", " ", text.lower()))
    return [_stem(word) for word in words if word not in COMMON]


@cache
def _documents() -> dict[int, tuple[frozenset[str], frozenset[str]]]:
    """Number -> (stems of the title, stems of the text and of the inputs)."""
    found = {}
    for number, each in QUESTIONS.items():
        inputs = " ".join(f"{n} {i.meaning}".replace("_", " ") for n, i in each.inputs.items())
        text = f"{each.words(each.asked)} {inputs}"
        title = each.words(each.title)
        known_by = frozenset(_stems(f"{title} {KEYS.get(number, '')}")) | _listed(title)
        found[number] = known_by, frozenset(_stems(text))
    return found


def _listed(text: str) -> frozenset[str]:
    """Numbers between commas, as in "1,4,7,10": they name layers, and count nothing."""
    lists = re.findall(r"\d+(?:,\d+)+", text)
    return frozenset(number for each in lists for number in each.split(","))


@cache
def _weights() -> dict[str, float]:
    """Stem -> how much it tells: the fewer questions have it, the more."""
    has = Counter(stem for title, text in _documents().values() for stem in title | text)
    return {stem: log(1 + len(QUESTIONS) / count) for stem, count in has.items()}


def _numbers(text: str) -> list[_Number]:
    """Every number, and the words right behind it that say what it counts; of "2 to 4 workers"
    both count workers."""
    places = list(_NUMBER.finditer(text))
    found: list[_Number] = []
    behind = [text[a.end() : b.start()] for a, b in pairwise(places)]
    behind += [text[place.end() :] for place in places[-1:]]
    for place, rest in zip(places, behind, strict=True):
        value, unit, billions = place[1], place[2], place[3]
        words = re.findall(r"[a-z][a-z-]*", rest.lower())[:3]
        counted = takewhile(lambda word: word not in COMMON, words)
        of = tuple(s for w in counted for s in _stems(w))
        if unit:
            found.append(_Number(f"{value}{unit}", (BYTES, *of)))
        elif billions:
            scale = 1000 if billions[0] in "tT" else 1
            found.append(_Number(f"{float(value) * scale:g}", ("billion",)))
        else:
            found.append(_Number(value, of))
    for at in reversed(range(len(found) - 1)):
        if behind[at].strip() in ("to", "and", "or", ",", "->"):
            found[at] = found[at]._replace(of=found[at + 1].of)
        elif not behind[at].strip() and not found[at].of and BYTES in found[at + 1].of:
            found[at] = found[at]._replace(of=(DEVICE,))  # 8 24GB GPUs
    return found


def _placed(asked: Question, numbers: list[_Number]) -> dict[str, str]:
    """Input -> number, where it is clear which is meant: as many numbers as inputs of a kind."""
    wanted: dict[tuple[str, ...], list[str]] = {}
    for number in numbers:
        if names := _named(asked, number.of):
            wanted.setdefault(names, []).append(number.value)
    placed: dict[str, str] = {}
    for names, values in wanted.items():
        if len(names) == len(values):
            placed |= dict(zip(names, values, strict=True))
    if "nodes" not in placed:
        placed.pop("per_node", None)  # 8 GPUs are all there are
    return placed


def _named(asked: Question, words: tuple[str, ...]) -> tuple[str, ...]:
    """Inputs that the first of the words that names any does: by name, or by what they are."""
    for word in (*words, *[DEVICE] * (_stem("stages") in words)):
        by_name, by_meaning = [], []
        for name, each in asked.inputs.items():
            if word in (BYTES, "billion"):
                by_name += [name] * (each.unit == {"billion": "billions"}.get(word, word))
                continue
            if any(_stem(part) == word for part in name.split("_")):
                by_name.append(name)
            elif _stems(re.split(r"[,;(]", each.meaning)[0])[:1] == [word]:
                by_meaning.append(name)
        if word == BYTES and len(by_name) > 1:  # 26 GB layer, 24 GB GPU
            said = {n: {*_stems(asked.inputs[n].meaning)} & {*words} for n in by_name}
            near = [name for name in by_name if said[name]]
            by_name = near if len(near) == 1 else by_name
        if by_name or by_meaning:
            return tuple(by_name or by_meaning)
    return ()
