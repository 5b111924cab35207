"""A question of the course: its words and inputs in data/questions.json, its working a function.

"33": {"title": "Worker Idle Time ...", "asked": "{workers} workers have equal parts ...",
       "inputs": {"workers": {"default": 4, "meaning": "workers, one after the other"}, ...}}

@question(33)
def idle_time(workers: int, forward: float, backward: float) -> Worked:
    ...

What is typed for an input is read by the type of its default and the unit that its meaning names:
"24" "2k" "3B", "40GB" "40GiB", "25GB/s" "200Gb/s", "0.1" "100ms", "24%", "1, 2 x 3".
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from fractions import Fraction
from math import inf
from typing import TYPE_CHECKING, Any

from tiledask.errors import ConfigError, short
from tiledask.lab.check import Check
from tiledask.plan.data import shipped_json
from tiledask.plan.units import format_bytes, format_count, parse_bytes, parse_count

if TYPE_CHECKING:
    from tiledask.distributed.cluster.cluster import Cluster
    from tiledask.lab.plots.primitives import Figure

__all__ = ["MOST_WORKERS", "QUESTIONS", "Input", "Question", "Worked", "question"]

MOST_WORKERS = 4
"""Of a cluster that is started for a run; a cluster of your own may have more."""
UNITS: dict[str, dict[str, str]] = {
    "billions": {"": "1", "m": "1e-3", "b": "1", "t": "1e3"},
    "bytes/s": {"": "1", "MB/s": "1e6", "GB/s": "1e9", "TB/s": "1e12", "Mb/s": "125e3"}
    | {"Gb/s": "125e6", "Tb/s": "125e9"},
    "bytes": {},
    "seconds": {"": "1", "s": "1", "ms": "1e-3", "us": "1e-6"},
    "percent": {"": "1", "%": "1"},
    "": {"": "1", "k": "1e3", "m": "1e6", "b": "1e9", "g": "1e9", "t": "1e12", "%": "0.01"},
}
"""Unit -> what may stand behind a number, and what it is worth; bytes have their own reader."""
_NUMBER = re.compile(r"((?:\d{1,30}\.?\d{0,30}|\.\d{1,30})(?:e[+-]?\d{1,2})?)\s*([a-zA-Z/%]*)")
_ITEM = re.compile(r"\s*(?:(\d{1,4})\s*x\s*)?(.*?)\s*")


@dataclass(frozen=True)
class Input:
    """One of a question's numbers or words; its default's type says which."""

    default: Any
    meaning: str
    """What it is, with its unit."""
    least: float = 1e-12
    """Of a number; whole ones are 1 or more."""
    most: float = 1e18
    run: float = inf
    """The most with which the question is run; the working takes more."""
    choices: Sequence[Any] = ()
    """The only values there are, where there are few."""

    @property
    def unit(self) -> str:
        return next(unit for unit in UNITS if unit in self.meaning)

    def read(self, name: str, given: Any) -> Any:
        """What is ``given``, a value or text as it is typed, as the question takes it.

        >>> Input(24, "layers").read("layers", "2k")
        2000
        >>> Input([1.0], "costs").read("costs", "1, 2 x 3")
        [1.0, 3.0, 3.0]
        >>> Input(24 * 10**9, "bytes of memory").read("memory", "40GB")
        40000000000
        """
        try:
            if self.choices:
                return {str(each): each for each in self.choices}[str(given)]
            if isinstance(self.default, list):
                return self._list(given)
            if not isinstance(self.default, str):
                return self._number(given)
            if isinstance(given, str):
                return given
            raise TypeError
        except (ValueError, LookupError, TypeError, ArithmeticError):
            raise ConfigError(
                f"{name} must be {self._rule}; got {short(given)}. It is: {self.meaning}"
            ) from None

    @property
    def _rule(self) -> str:
        if self.choices:
            return f"one of {', '.join(map(str, self.choices))}"
        if isinstance(self.default, str | list):
            return f"text, or a list of numbers from 0, such as {self.shown(self.default)}"
        kind, least = "a number", self.least
        if isinstance(self.default, int):
            kind, least = "a whole number", max(self.least, self.least > 0)
        return f"{kind} of {self.unit or 'these'} from {least:g} to {self.most:g}"

    def _number(self, given: Any) -> float:
        value = _typed(given, self.unit) if isinstance(given, str) else given
        if isinstance(value, bool) or not isinstance(value, int | float | Fraction):
            raise ValueError
        whole = isinstance(self.default, int)
        if not self.least <= value <= self.most or (whole and value != int(value)):
            raise ValueError
        return int(value) if whole else float(value)

    def _list(self, given: Any) -> list[float]:
        """A list of numbers, in full or as text with repeats."""
        one = Input(0.0, self.meaning, 0)
        if isinstance(given, str):
            items = [_ITEM.fullmatch(part) for part in given.split(",")]
            given = [word[2] for word in items if word for _ in range(int(word[1] or 1))]
        given = given if isinstance(given, list | tuple) else [given]
        if not 1 <= len(given) <= 1000:
            raise ValueError
        return [one._number(item) for item in given]

    def shown(self, value: Any) -> str:
        """A value as people read it: "40 GB", "0.3, 0.1".

        >>> Input(25e9, "bytes/s between nodes").shown(25e9), Input(1, "bytes").shown(4 * 10**10)
        ('25 GB/s', '40 GB')
        """
        if isinstance(value, str):
            return value
        if isinstance(value, list):
            return ", ".join(map(self.shown, value))
        if self.unit.startswith("bytes") and parse_bytes(format_bytes(value)) == value:
            return f"{format_bytes(value)}{self.unit[len('bytes') :]}"
        big = value >= 1e6 and parse_count(format_count(value)) == value
        return format_count(value) if big else f"{value:.12g}"


def _typed(text: str, unit: str) -> float | Fraction:
    """The number that is written: "2k" is 2000."""
    if unit == "bytes":
        return parse_bytes(text)
    found, worth = _NUMBER.fullmatch(text.strip()), UNITS[unit]
    if not found:
        raise ValueError
    lower = {each.lower(): each for each in reversed(worth)}  # gb/s: of bytes and bits, bytes
    ending = found[2] if found[2] in worth else lower.get(found[2].lower())
    if ending is None:
        raise ValueError
    return Fraction(found[1]) * Fraction(worth[ending])


class Worked:
    """What arithmetic and simulation say, and the run that bears it out.

    answer
        In a sentence or two, with its numbers.
    lines
        The working, as a person would write it: "24 layers / 4 devices = 6 layers a device".
    values
        The results by name, as JSON can hold them; no inputs.
    run
        Predicted, simulated and measured on a cluster.
    figure
        Draws the answer, where there is something to draw.
    """

    def __init__(
        self,
        answer: str,
        *lines: str,
        values: Mapping[str, Any],
        run: "Callable[[Cluster], list[Check]]",
        figure: "Callable[[], Figure] | None" = None,
    ) -> None:
        self.answer, self.lines, self.values = answer, lines, values
        self.run, self.figure = run, figure


@dataclass(frozen=True)
class Question:
    """A question by its number."""

    number: int
    title: str
    """As in the course, with inputs in braces: "{layers} layers"."""
    asked: str
    """In our own words, a sentence or two."""
    inputs: Mapping[str, Input]
    work: Callable[..., Worked]
    """Takes the inputs by name, checked one by one; ValueError for what is impossible together."""
    workers: str = ""
    """The input that says how many workers a run takes: a number, or a list with one for each."""
    keys: str = ""
    """Words by which it is known, beside those of its title."""

    def read(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """All inputs: those ``given``, and the defaults; ConfigError for what there is not."""
        if unknown := [name for name in given if name not in self.inputs]:
            near = get_close_matches(unknown[0], self.inputs, 1, 0.65)
            has = self.typed({name: each.default for name, each in self.inputs.items()})
            raise ConfigError(
                f"question {self.number} has no {short(unknown[0])}"
                f"{f', perhaps {near[0]}' if near else ''}; it has {has}"
            )
        return {n: each.read(n, given.get(n, each.default)) for n, each in self.inputs.items()}

    def typed(self, inputs: Mapping[str, Any]) -> str:
        """The inputs as one types them: "layers=24 memory=40GB"."""
        shown = {n: self.inputs[n].shown(value) for n, value in inputs.items()}
        return " ".join(
            f"{n}={text if isinstance(inputs[n], str) else text.replace(' ', '')}"
            for n, text in shown.items()
        )

    def words(self, text: str, inputs: Mapping[str, Any] | None = None) -> str:
        """The title or what is ``asked`` with these inputs in it; with the defaults if None."""
        values = self.read({}) if inputs is None else inputs
        return text.format(**{name: self.inputs[name].shown(v) for name, v in values.items()})


QUESTIONS: dict[int, Question] = {}
"""Number -> question; `table.py` has read all of them."""


_ROWS = shipped_json("questions.json")


def question(number: int) -> Callable[[Callable[..., Worked]], Callable[..., Worked]]:
    """Register the function below as the working of a question of data/questions.json."""

    def register(work: Callable[..., Worked]) -> Callable[..., Worked]:
        row = _ROWS[str(number)]
        inputs = {name: Input(**each) for name, each in row["inputs"].items()}
        QUESTIONS[number] = Question(**{**row, "number": number, "inputs": inputs, "work": work})
        return work

    return register


def cut_over(devices: int, **extents: int) -> None:
    """Refuse what is cut over more devices than it has parts; a ConfigError."""
    for name, n in extents.items():
        if n < devices:
            raise ConfigError(f"{name} cut over {devices} devices is {devices} or more, got {n}")


# -- words that workings share ---------------------------------------------------------------------


def shares(of: Sequence[int]) -> str:
    """How much each has, where it may not be the same.

    >>> shares([3, 3, 2, 2]), shares([16, 16]), shares((2, 1, 4))
    ('2 or 3', '16', '1 to 4')
    """
    least, most = min(of), max(of)
    return str(most) if least == most else f"{least} {'or' if most == least + 1 else 'to'} {most}"


def count(n: int, what: str) -> str:
    """``n`` of them.

    >>> count(1, "GPU"), count(5952380, "column")
    ('1 GPU', '5,952,380 columns')
    """
    return f"{n:,} {what}{'s' * (n != 1)}"


def some(names: Sequence[str], between: str = ", ", most: int = 6) -> str:
    """All of them, or the first and the last of many.

    >>> some(["a", "b"]), some([str(n) for n in range(1, 10)])
    ('a, b', '1, 2, 3, ..., 9')
    """
    return between.join(names if len(names) <= most else [*names[:3], "...", names[-1]])
