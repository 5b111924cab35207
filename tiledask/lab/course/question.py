"""A question of the course: its words and inputs in data/questions.json, its sums in a function.

"33": {"title": "Worker Idle Time ...", "asked": "{workers} workers have equal parts ...",
       "answer": "Each of {p} workers idles {idle:g} of {T:g} s ...",
       "working": ["own work: {forward:g} + {backward:g} = {each:g} s", ...],
       "values": {"makespan": "T", "idle of each": "idle", ...},
       "runs": [["timed", "order", "busy", "T", "times"]],
       "inputs": {"workers": {"default": 4, "meaning": "workers, one after the other"}, ...}}

@question(33)
def idle_time(workers: int, forward: float, backward: float) -> Names:
    each = forward + backward
    ...
    return locals()

What is typed for an input is read by the type of its default and the unit that its meaning names:
"24" "2k" "3B", "40GB" "40GiB", "25GB/s" "200Gb/s", "0.1" "100ms", "24%", "1, 2 x 3".
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from math import inf, isclose
from typing import Any

from tiledask.errors import ConfigError, short
from tiledask.lab.course.words import filled, looked_up
from tiledask.lab.quantities import read_number
from tiledask.plan.data import shipped_json
from tiledask.plan.units import format_bytes, format_count, parse_bytes, parse_count

__all__ = ["LONGEST", "QUESTIONS", "Input", "Names", "Question", "cut_over", "question"]

UNITS = {"billions": "billions", "bytes/s": "B/s", "bytes": "B", "seconds": "s", "percent": "%"}
"""Word in an input's meaning -> its unit."""
LONGEST = 1000
"""Items in a list: more than anyone reads."""
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
    one: bool = False
    """Of a list: whether one number will do for all, and stays one."""

    @property
    def unit(self) -> str:
        return next((word for word in UNITS if word in self.meaning), "")

    def read(self, name: str, given: Any) -> Any:
        """What is ``given``, a value or text as it is typed, as the question takes it.

        >>> Input(24, "layers").read("layers", "2k")
        2000
        >>> Input([1.0], "costs").read("costs", "1, 2 x 3")
        [1.0, 3.0, 3.0]
        >>> Input(24 * 10**9, "bytes of memory").read("memory", "40GB")
        40000000000
        """
        if self.choices:
            rule = f"one of {', '.join(map(str, self.choices))}"
        elif isinstance(self.default, str):
            rule = "text"
        elif isinstance(self.default, list):
            rule = f"a list of 1 to {LONGEST} numbers, as in '2, 22 x 1, 4'"
        else:
            whole = isinstance(self.default, int)
            least = max(self.least, self.least > 0) if whole else self.least
            kind = f"a {'whole ' * whole}number{' of ' * bool(self.unit)}{self.unit}"
            rule = f"{kind} from {least:g} to {self.most:g}"
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
        except (ValueError, LookupError, TypeError):
            wrong = f"{name} must be {rule}; got {short(given)}. It is: {self.meaning}"
            raise ConfigError(wrong.lstrip()) from None

    def _number(self, given: Any) -> float:
        value = read_number(given, UNITS.get(self.unit, ""))
        if isinstance(self.default, int) and (
            self.unit == "bytes" or isclose(value, round(value), rel_tol=1e-12)
        ):
            value = round(value)
        if not self.least <= value <= self.most or type(value) is not type(self.default):
            raise ValueError
        return value

    def _list(self, given: Any) -> Any:
        """A list of numbers, in full or as text with repeats; or one for all of them."""
        each, text = replace(self, default=self.default[0]), isinstance(given, str)
        if self.one and not (re.search("[,x]", given) if text else isinstance(given, list | tuple)):
            return each._number(given)
        if text:
            items = [_ITEM.fullmatch(part) for part in given.split(",")]
            given = [word[2] for word in items if word for _ in range(int(word[1] or 1))]
        given = given if isinstance(given, list | tuple) else [given]
        if not 1 <= len(given) <= LONGEST:
            raise ValueError
        return [each._number(item) for item in given]

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


Names = dict[str, Any]
"""All numbers of a question by name, of which its row makes answer, working, values and runs."""


@dataclass(frozen=True)
class Question:
    """A question by its number."""

    number: int
    title: str
    """As in the course, with inputs in braces: "{layers} layers"."""
    asked: str
    """In our own words, a sentence or two."""
    answer: str
    """In a sentence or two, with its numbers."""
    working: Sequence[str | Sequence[str]]
    """As a person would write it: "{layers} layers / {devices} devices = {each} a device"."""
    values: Mapping[str, str] | str
    """The results: what each is called -> its name in the function; or the name of all of them."""
    inputs: Mapping[str, Input]
    runs: Sequence[Sequence[Any]]
    """What bears it out: functions of `runs`, each with the names of its arguments; 'a word'."""
    work: Callable[..., Names]
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

    def results(self, names: Mapping[str, Any]) -> dict[str, Any]:
        """The values, of all the ``names`` of its function."""
        if isinstance(self.values, str):
            found: dict[str, Any] = names[self.values]
            return found
        return {
            name: filled(of, names) if "{" in of else looked_up(of, names)
            for name, of in self.values.items()
        }

    def words(self, text: str, inputs: Mapping[str, Any] | None = None) -> str:
        """The title or what is ``asked`` with these inputs in it; with the defaults if None."""
        values = self.read({}) if inputs is None else inputs
        return filled(text, {name: self.inputs[name].shown(v) for name, v in values.items()})


QUESTIONS: dict[int, Question] = {}
"""Number -> question; `table.py` has read all of them."""
ROWS = shipped_json("questions.json")


def question(number: int) -> Callable[[Callable[..., Names]], Callable[..., Names]]:
    """Register the function below as the sums of a question of data/questions.json."""

    def register(work: Callable[..., Names]) -> Callable[..., Names]:
        row = ROWS[str(number)]
        inputs = {name: Input(**each) for name, each in row["inputs"].items()}
        QUESTIONS[number] = Question(**{**row, "number": number, "inputs": inputs, "work": work})
        return work

    return register


def cut_over(devices: int, **extents: int) -> None:
    """Refuse what is cut over more devices than it has parts; a ConfigError."""
    for name, n in extents.items():
        if n < devices:
            raise ConfigError(f"{name} cut over {devices} devices is {devices} or more, got {n}")
