"""A question found by its words, and the inputs that numbers in them set.

"24 layers on 4 devices"   ->   34, layers=24 devices=4
    titles, texts and inputs of all questions; rare words count more than common ones
"""

import re
from collections import Counter
from functools import cache
from itertools import takewhile
from math import log

from tiledask.errors import ConfigError, short
from tiledask.lab.course.question import Question
from tiledask.lab.course.table import QUESTIONS

__all__ = ["by_words"]

COMMON = """a an and are as at be by can do does each for from has have how i if in into is it its
many me much my no not of on one or our over so than that the their them then there they this to was
we what when where which while who whose why with x you your""".split()  # noqa: SIM905
SYNONYMS = dict.fromkeys(("gpu", "worker", "accele", "unit", "stag"), "devic")
"""Stems of what is called a device here."""
SET, IN_TITLE, LEAST = 2.0, 3.0, 0.55
"""What a number that sets an input counts; how many times as much words of the title do; and the
least share of the words, by weight, that is enough."""
_NUMBER = re.compile(
    r"(?<![\w.-])(\d+(?:\.\d+)?)\s*(?:([kmgt]i?b)\b|([bt])n?(?:r?illions?)?\b|)"
    r"\s*((?:[a-z][a-z-]*\W*){0,3})",
    re.I,
)
_SET = re.compile(r"\b([a-z]\w*)=([^\s,;?]+)", re.I)
_REWRITTEN = (
    (r"(\d)\s*x\s*(?=[\dA-Z])", r"\1 devices "),  # of 4x24GB
    (r"\b(\d+) (?=\d+\s*[KMGT]i?B)", r"\1 devices "),  # 8 24GB GPUs
    (r"\b(\d+) to (\d+) (\w+)", r"\1 \3 \2 \3"),
    (r"(?i)\bwhile (?:[a-z]+ )?(\d+) (?=comput|work)", r"\1 working "),
)


def by_words(asked: str) -> tuple[int, dict[str, str], str]:
    """(number, inputs, which question that is) of the one that is nearest to the words.

    >>> by_words("24 layers on 4 devices")[:2]
    (34, {'layers': '24', 'devices': '4'})
    """
    text = asked
    for pattern, to in _REWRITTEN:
        text = re.sub(pattern, to, text)
    given, text = dict(_SET.findall(text)), _SET.sub(" ", text)
    given |= {word: word for word in re.findall(r"[\w-]+", text.lower())}
    numbers, (documents, weights), ranked = _numbers(text), _documents(), []
    known = {w: weights.get(w, max(weights.values())) for w in _stems(_NUMBER.sub(r" \4", text))}
    whole = sum(known.values()) + SET * len(numbers) or 1.0
    for number, (title, words) in documents.items():
        asks = QUESTIONS[number]
        placed = _placed(asks, numbers, given)
        usual = [n for n in placed if asks.read(placed)[n] == asks.inputs[n].default]
        found, best = (
            sum(weight for word, weight in known.items() if word in of) + SET * len(inputs)
            for of, inputs in ((words, placed), (title, usual))
        )
        ranked.append((found + (IN_TITLE - 1) * best, -number, found / whole, placed))
    (_, taken, share, placed), *others = sorted(ranked, key=lambda row: row[:2], reverse=True)
    near = [QUESTIONS[-n] for n in (taken, *(row[1] for row in others[:2]))]
    lines = [f"{each.number}, {each.words(each.title).rstrip(' .')}" for each in near]
    if share < LEAST:
        typed = ", ".join(f"tiledask ask {each.number}" for each in near)
        raise ConfigError(
            f"no question is near {short(asked)}; the nearest are {'; '.join(lines)}: {typed}"
        )
    read = near[0].typed({n: near[0].inputs[n].read(n, value) for n, value in placed.items()})
    unread = ", ".join(value for value, _ in numbers if value not in placed.values())
    taken_as = (
        f"Question {-taken}{f', {read}' * bool(read)}{f' (not used: {unread})' * bool(unread)}"
    )
    return -taken, placed, f"{taken_as}. Next nearest: {lines[1]}."


def _stems(text: str) -> list[str]:
    """The beginnings of its words, without endings: "training" and "trains" are "train".

    >>> _stems("training trains copies of GPUs")
    ['train', 'train', 'cop', 'devic']
    """
    words = re.findall(r"[a-z][a-z\d]*", re.sub(r"(?<=\w)-(?=\w)", " ", text.lower()))
    stems = [re.sub(r"(ings?|ed|ies|es|s|y)$", "", w)[:6] if len(w) > 3 else w for w in words]
    return [SYNONYMS.get(s, s) for s, w in zip(stems, words, strict=True) if w not in COMMON]


@cache
def _documents() -> tuple[dict[int, tuple[set[str], set[str]]], dict[str, float]]:
    """(number -> stems of the title, and of title, text and inputs; stem -> how much it tells: the
    fewer questions have it, the more)."""
    found = {}
    for number, each in QUESTIONS.items():
        inputs = " ".join(f"{n} {i.meaning}".replace("_", " ") for n, i in each.inputs.items())
        title = {*_stems(f"{each.words(each.title)} {each.keys}")}
        found[number] = title, title | {*_stems(f"{each.words(each.asked)} {inputs}")}
    has = Counter(stem for _, words in found.values() for stem in words)
    return found, {stem: log(1 + len(found) / n) for stem, n in has.items()}


def _numbers(text: str) -> list[tuple[str, list[str]]]:
    """(as typed, "4" or "40GB"; its unit, and stems of the words that say what it counts)."""
    found = []
    for value, size, scale, behind in _NUMBER.findall(text):
        words = re.findall(r"[a-z][a-z-]*", behind.lower())
        unit = ["bytes"] if size else ["billions"] if scale else []
        near = _stems(" ".join(takewhile(lambda word: word not in COMMON, words)))
        found.append((value + size + scale, unit + near))
    return found


def _placed(
    asked: Question, numbers: list[tuple[str, list[str]]], given: dict[str, str]
) -> dict[str, str]:
    """Input -> what is given, a choice that is named, or the number where it is clear which is
    meant: as many numbers as inputs of a kind. Those that it takes."""
    wanted, placed = dict[tuple[str, ...], list[str]](), dict[str, str]()
    for value, of in numbers:
        wanted.setdefault(_named(asked, of), []).append(value)
    for names, values in wanted.items():
        placed |= dict(zip(names, values, strict=True)) if len(names) == len(values) else {}
    if "nodes" not in placed:
        placed.pop("per_node", None)  # 8 GPUs are all there are
    for name, each in asked.inputs.items():
        found = [given[c] for c in (*map(str, each.choices), name) if given.get(c, name) != name]
        placed |= {name: found[-1]} if found else {}
        try:
            each.read(name, placed.get(name, each.default))
        except ConfigError:
            del placed[name]
    return placed


def _named(asked: Question, words: list[str]) -> tuple[str, ...]:
    """Inputs that the first of the words that names any does: by name, or by what they are."""
    means = {n: _stems(re.split(r"[,;(]", i.meaning)[0])[:1] for n, i in asked.inputs.items()}
    for word in words:
        found = [n for n in means if word in _stems(n.replace("_", " "))]
        found = found or [n for n in means if means[n] == [word]]
        if word in ("bytes", "billions"):
            found = [name for name, each in asked.inputs.items() if each.unit == word]
            near = [n for n in found if {*_stems(asked.inputs[n].meaning)} & {*words}]
            found = near if len(near) == 1 else found  # 26 GB layer, 24 GB GPU
        if found:
            return tuple(found)
    return ()
