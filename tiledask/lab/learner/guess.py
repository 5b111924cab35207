"""A prediction: what the reader expects before a cell runs, and its row with the results.

    guess = td.predict("bytes between workers", unit="B")      typed into a field, or
    guess = td.predict("bytes between workers", 12e6, unit="B")     written into the call
    ...
    guess.compare(formula=12_000_000, measured=counted)

The first prediction counts. What is typed once the results are known stands behind it, as later;
if there was none, the row says that it is late, and it earns no stars.
A notebook whose reader predicts nothing runs as well: the row then says so with a dash.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tiledask.errors import ConfigError, short
from tiledask.lab.learner.kept import here
from tiledask.lab.quantities import read_number, show_number
from tiledask.plan import html

__all__ = ["Guess", "GuessRow", "predict"]

Value = float | str
STARS = ("off", "within a factor of 2", "within 10 %", "exact")
"""What a prediction is worth, 0 to 3."""
NEAR, FACTOR = 0.1, 2.0
_compared: dict[tuple[str, str], dict[str, Value]] = {}
"""(notebook, question) -> the results that this process compared with a prediction of it."""
COUNTED = 10_000
"""Whole numbers without a unit are counts up to here: right or not."""


def predict(
    question: str,
    value: Value | None = None,
    *,
    unit: str = "",
    choices: Sequence[str] = (),
    digits: int = 3,
) -> "Guess":
    """What the reader expects as the answer to ``question``, before the cell that shows it.

    In JupyterLab the last line of a cell shows a field for it, and what is typed there is kept,
    also for the next day. Elsewhere it is ``value``. What was predicted when the results were
    shown is what counts.

    question
        Names it in the row and the score; one of its kind in a notebook.
    unit
        Of the number: "B" and "s" are read with their multiples, "12 MB" or "0.4 ms".
    choices
        The answers to choose from, where it is no number.
    digits
        Of a number that is no count: right is what equals a result, rounded to so many.

    Raises ConfigError for a value that is no number, or none of the choices.

    >>> predict("bytes sent", "8 MB", unit="B").compare(formula=12e6, measured=12e6).verdict
    '0.667 ×, within a factor of 2'
    >>> predict("which are refused", choices=("all", "one")).compare(measured="all")
    which are refused | yours - | measured all
    """
    guess = Guess(question, unit, tuple(choices), digits)
    if value is not None:
        guess.take(value)
    return guess


@dataclass(frozen=True)
class Guess:
    """A question, and the reader's answer to it once there is one."""

    question: str
    unit: str = ""
    choices: tuple[str, ...] = ()
    digits: int = 3

    def __post_init__(self) -> None:
        here().put(self.question, unit=self.unit)

    @property
    def value(self) -> Value | None:
        """A number in ``unit``, or one of the choices; None as long as nothing was predicted."""
        found: Value | None = here().get(self.question).get("value")
        return found if found is None or bool(self.choices) == isinstance(found, str) else None

    @property
    def judged(self) -> bool:
        """Whether results were compared with a prediction: it counts, and no later one."""
        return self.value is not None and here().get(self.question).get("stars") is not None

    def take(self, answer: Value) -> None:
        """None, once ``answer``, as a reader types it or as a number, is kept: as the prediction,
        or as a later one if the results were compared with it already.

        Raises ConfigError if it is no number in the unit, or none of the choices.
        """
        if not self.choices:
            answer = read_number(answer, self.unit)
            if self.unit and answer < 0:  # a difference, which may be negative, has no unit here
                raise ConfigError(f"a number in {self.unit} is 0 or more, got {answer:g}")
        elif answer not in self.choices:
            which = ", ".join(self.choices)
            raise ConfigError(f"{self.question}: one of {which}, got {short(answer)}")
        if not self.judged:
            shown = (here().notebook, self.question) in _compared
            late = shown and (self.value is None or here().get(self.question).get("late", False))
            here().put(self.question, value=answer, late=late)
        elif answer != self.value:
            here().put(self.question, later=answer)

    def compare(
        self,
        *,
        formula: Value | None = None,
        planned: Value | None = None,
        simulated: Value | None = None,
        measured: Value | None = None,
        why: str = "",
    ) -> "GuessRow":
        """The row of the prediction, and of the formula's value, the planner's, the simulator's and
        the measured one; below it ``why``, which would be the answer if it stood in the text.

        Exact is a number that equals one of them to as many digits as were asked for; as good is
        one as near to them as they are to each other; a count is right or not. The stars are kept
        for the score. Raises ConfigError if there is no value, or a number where one of the choices
        was predicted, or the other way.
        """
        given = ("formula", formula), ("planned", planned), ("simulated", simulated)
        values = *given, ("measured", measured)
        known = {name: value for name, value in values if value is not None}
        if not known:
            raise ConfigError(
                f"{self.question}: 0 of 4 values to compare the prediction with; give formula=, "
                f"planned=, simulated= or measured="
            )
        yours, actual = self.value, [*known.values()][-1]
        if isinstance(actual, str) != bool(self.choices):
            raise ConfigError(
                f"this guess is about {self.question!r}, and the answer is {short(actual)}; "
                f"run the cell with the field of this row again"
            )
        stars, verdict = self._judged(yours, known)
        first = _compared.setdefault((here().notebook, self.question), known)
        if any(first.get(name) != known.get(name) for name, _ in given):
            stars, verdict = None, "other results: run the cell with their field again"
        elif here().get(self.question).get("late"):
            stars, verdict = None, "late: the results were shown before"
        elif not self.judged:
            here().put(self.question, stars=stars)
        # all of a row in seconds, where one of them takes that long
        long = any(not isinstance(x, str) and x >= 1 for x in known.values())
        unit = "seconds" if self.unit == "s" and long else self.unit
        shown = {name: _show(value, unit) for name, value in known.items()}
        mine = "-" if yours is None else _show(yours, unit)
        if (later := here().get(self.question).get("later")) is not None:
            mine += f" (later {_show(later, unit)})"
        return GuessRow(self.question, {"yours": mine, **shown}, stars, verdict, why)

    def _judged(self, yours: Value | None, known: dict[str, Value]) -> tuple[int | None, str]:
        """(stars, in words) of a prediction, by the results in order."""
        if yours is None:
            return None, ""
        numbers = [x for x in known.values() if not isinstance(x, str)]
        if isinstance(yours, str) or len(numbers) < len(known):
            return (3, "right") if yours == [*known.values()][-1] else (0, "no")
        actual, off = numbers[-1], min(abs(yours - x) for x in numbers)
        count = not self.unit and all(x == round(x) and abs(x) < COUNTED for x in numbers)
        rounded = f".{self.digits}g"
        equal = [n for n, x in known.items() if format(yours, rounded) == format(x, rounded)]
        if off == 0 or (equal and not count):
            return 3, STARS[3] if [*known][-1] in equal else f"{STARS[3]}: {equal[0]}"
        if not count and off <= max(numbers) - min(numbers):
            return 3, "as near as the results are to each other"
        if count or not actual:
            return 0, "no"
        ratio = yours / actual
        stars = 2 if off <= NEAR * abs(actual) else int(1 / FACTOR <= ratio <= FACTOR)
        return stars, f"{ratio:.3g} ×, {STARS[stars]}"

    def __repr__(self) -> str:
        """True also on the next day, when only the text of an output is left."""
        if self.value is not None:
            return f"Your prediction of {self.question}: {_show(self.value, self.unit)}"
        asked = ", ".join(filter(None, (self.unit, f"{self.digits} digits" * (self.digits != 3))))
        unit = f" ({asked})" if asked else ""
        return (
            f"Predict {self.question}{unit}: run this cell in JupyterLab and "
            f"{'choose' if self.choices else 'type'} it there, or write it into the call"
        )

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        plain = {"text/plain": repr(self)}
        try:
            from tiledask.lab.learner.field import shown
        except ImportError:  # no widgets here
            return plain
        return {**shown(self), **plain}


@dataclass(frozen=True, repr=False)
class GuessRow:
    """A prediction and the results that it was about."""

    question: str
    cells: dict[str, str]
    """Yours, and of formula, planned, simulated and measured those that there are."""
    stars: int | None
    """0 to 3, as `STARS` says; None without a prediction."""
    verdict: str
    """In words; empty without a prediction."""
    why: str = ""

    def __repr__(self) -> str:
        cells = [f"{name} {shown}" for name, shown in self.cells.items()]
        row = " | ".join(filter(None, (self.question, *cells, self.verdict)))
        return f"{row}\n{self.why}".rstrip()

    def _repr_html_(self) -> str:
        unbroken = {name: text.replace(" ", "\u00a0") for name, text in self.cells.items()}
        cells = {"prediction": self.question, **unbroken}
        if self.verdict:
            stars = "" if self.stars is None else "★" * self.stars + "☆" * (3 - self.stars)
            cells["verdict"] = f"{stars} {self.verdict}"
        why = f"<p>{html.words(self.why)}</p>" * bool(self.why)
        return html.table(cells, [cells.values()], first="th") + why


def _show(value: Value, unit: str) -> str:
    if unit == "seconds":
        return f"{value:.4g} s"
    return value if isinstance(value, str) else show_number(value, unit)
