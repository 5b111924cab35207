"""A question found by its words, and the inputs that numbers in them set.

"24 layers on 4 devices"   ->   34, layers=24 devices=4
    titles, texts and inputs of all questions; rare words count more than common ones
"""

import re
from collections import Counter
from functools import cache
from itertools import pairwise, takewhile
from math import log

from tiledask.errors import ConfigError, short
from tiledask.lab.course.question import Question
from tiledask.lab.course.table import QUESTIONS

__all__ = ["by_words"]

COMMON = """a an and are as at be by can do does each for from has have how i if in into is it its
many me much my no not of on one or our over so than that the their them then there they this to was
we what when where which while who whose why with x you your""".split()  # noqa: SIM905
DEVICE = "devic"
SYNONYMS = dict.fromkeys(("gpu", "worker", "accele", "unit", "stag"), DEVICE)
"""Stems of what is called a device here."""
SET, IN_TITLE, LEAST = 2.0, 3.0, 0.55
"""What a number that sets an input counts; how many times as much words of the title do; and the
least share of the words, by weight, that is enough."""
_NUMBER = re.compile(
    r"(?<![\w.-])(\d+(?:\.\d+)?)\s*"
    r"(?:([kmgt]i?b)\b|(?:(b)n?(?:illions?)?|(t)(?:rillion)?)\b|)",
    re.I,
)
_SET = re.compile(r"\b([a-z]\w*)=([^\s,;?]+)", re.I)
_REWRITTEN = (
    (r"(\d)\s*x\s*(?=[\dA-Z])", r"\1 devices "),  # of 4x24GB
    (r"\b(\d+) (?=\d+\s*[KMGT]i?B)", r"\1 devices "),  # 8 24GB GPUs
    (r"\b(\d+) to (\d+) (\w+)", r"\1 \3 \2 \3"),
    (r"(?i)\bwhile (?:[a-z]+ )?(\d+) (?=comput|work)", r"\1 working "),
)
Number = tuple[str, tuple[str, ...]]
"""As typed, "4" or "40GB"; and its unit, or stems of the words that say what it counts."""


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
    numbers, (documents, weights) = _numbers(text), _documents()
    known = {w: weights.get(w, max(weights.values())) for w in _stems(_NUMBER.sub(" ", text))}
    whole, ranked = sum(known.values()) + SET * len(numbers) or 1.0, []
    for number, (title, words) in documents.items():
        asks = QUESTIONS[number]
        placed = _placed(asks, numbers, given)
        found = sum(weight for word, weight in known.items() if word in words) + SET * len(placed)
        usual = {n: v for n, v in asks.read(placed).items() if v == asks.read({})[n]}
        best = sum(weight for word, weight in known.items() if word in title)
        best += SET * len(usual.keys() & placed)
        ranked.append((found + (IN_TITLE - 1) * best, -number, found / whole, placed))
    (_, taken, share, placed), *others = sorted(ranked, key=lambda row: row[:2], reverse=True)
    near = [taken, *(row[1] for row in others[:2])]
    lines = [f"{-n}, {QUESTIONS[-n].words(QUESTIONS[-n].title).rstrip(' .')}" for n in near]
    if share < LEAST:
        typed = ", ".join(f"tiledask ask {-n}" for n in near)
        raise ConfigError(
            f"no question is near {short(asked)}; the nearest are {'; '.join(lines)}: {typed}"
        )
    asks = QUESTIONS[-taken]
    read = {name: asks.inputs[name].read(name, value) for name, value in placed.items()}
    unread = ", ".join(value for value, _ in numbers if value not in placed.values())
    found_as = f"Question {-taken}{f', {asks.typed(read)}' if read else ''}"
    found_as += f" (not used: {unread})" if unread else ""
    return -taken, placed, f"{found_as}. Next nearest: {lines[1]}."


def _stem(word: str) -> str:
    """The beginning of a word, without its ending: "training" and "trains" are "train".

    >>> [_stem(word) for word in ("training", "trains", "copies", "GPUs")]
    ['train', 'train', 'cop', 'devic']
    """
    word = word.lower()
    stem = re.sub(r"(ings?|ed|ies|es|s|y)$", "", word)[:6] if len(word) > 3 else word
    return SYNONYMS.get(stem, stem)


def _stems(text: str) -> list[str]:
    words = re.findall(r"[a-z][a-z\d]*", re.sub(r"(?<=\w)-(?=\w)", " ", text.lower()))
    return [_stem(word) for word in words if word not in COMMON]


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


def _numbers(text: str) -> list[Number]:
    places = list(_NUMBER.finditer(text))
    behind = [text[a.end() : b.start()] for a, b in pairwise(places)]
    behind += [text[place.end() :] for place in places[-1:]]
    found: list[Number] = []
    for (value, size, b, t), rest in zip((place.groups() for place in places), behind, strict=True):
        words = re.findall(r"[a-z][a-z-]*", rest.lower())[:3]
        near = [s for w in takewhile(lambda w: w not in COMMON, words) for s in _stems(w)]
        unit = "bytes" if size else "billions" if b or t else ""
        found.append((f"{value}{size or b or t or ''}", (*[unit] * bool(unit), *near)))
    return found


def _placed(asked: Question, numbers: list[Number], given: dict[str, str]) -> dict[str, str]:
    """Input -> what is given, a choice that is named, or the number where it is clear which is
    meant: as many numbers as inputs of a kind. Those that it takes."""
    wanted: dict[tuple[str, ...], list[str]] = {}
    for value, of in numbers:
        wanted.setdefault(_named(asked, of), []).append(value)
    placed: dict[str, str] = {}
    for names, values in wanted.items():
        if len(names) == len(values):
            placed |= dict(zip(names, values, strict=True))
    if "nodes" not in placed:
        placed.pop("per_node", None)  # 8 GPUs are all there are
    for name, each in asked.inputs.items():
        found = [given[c] for c in (*map(str, each.choices), name) if c in given]
        placed |= {name: found[-1]} if found and found[-1] != name else {}
    for name, value in [*placed.items()]:
        try:
            asked.inputs[name].read(name, value)
        except ConfigError:
            del placed[name]
    return placed


def _named(asked: Question, words: tuple[str, ...]) -> tuple[str, ...]:
    """Inputs that the first of the words that names any does: by name, or by what they are."""
    for word in words:
        if word in ("bytes", "billions"):
            found = [name for name, each in asked.inputs.items() if each.unit == word]
            near = [n for n in found if {*_stems(asked.inputs[n].meaning)} & {*words}]
            found = near if len(near) == 1 else found  # 26 GB layer, 24 GB GPU
        else:
            found = [n for n in asked.inputs if word in map(_stem, n.split("_"))] or [
                name
                for name, each in asked.inputs.items()
                if _stems(re.split(r"[,;(]", each.meaning)[0])[:1] == [word]
            ]
        if found:
            return tuple(found)
    return ()
