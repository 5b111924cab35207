"""An exercise: a judge of answers, registered under a name.

@exercise("twice", form="a whole number, for example 3", hints=("Of what?", "Of 4.", "8."))
def twice(answer: int, number: int = 4) -> list[Target]: ...

twice(number=4).check(8)        # a Result, as of the puzzles
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, wraps
from types import UnionType
from typing import Any, cast

from tiledask.distributed.ranks.rank_function import Ranks
from tiledask.distributed.ranks.threads import run_threads
from tiledask.errors import ConfigError, RuleError, short
from tiledask.lab.judging import JudgedTask, Target
from tiledask.lab.judging.figure import draw_targets
from tiledask.lab.plots.primitives import Figure
from tiledask.plan.data import shipped_json
from tiledask.plan.whole import is_whole

__all__ = [
    "Exercise",
    "a_function",
    "exercise",
    "instance",
    "none_wrong",
    "on_ranks",
    "span",
    "whole_numbers",
]


@dataclass(frozen=True, kw_only=True)
class Exercise(JudgedTask):
    """A task of a walkthrough: its judge, and the arguments that this one is about."""

    judging: Callable[..., Sequence[Target]] = field(repr=False)
    read: Callable[[Any], Any] = field(repr=False)
    """An answer as the judge takes it; None for what is none of this form."""
    drawing: Callable[..., Figure | None] | None = field(repr=False, default=None)
    """Draws an answer, or the task for None; None: what is reached beside the targets."""
    given: Mapping[str, Any] = field(repr=False, default_factory=dict)

    def judge(self, answer: Any) -> Sequence[Target]:
        return self.judging(self._read(answer), **self.given)

    def figure(self, answer: Any) -> Figure:
        drawn = None
        if self.drawing is not None:
            drawn = self.drawing(None if answer is None else self._read(answer), **self.given)
        return drawn or draw_targets(self, self.result(answer))

    def _read(self, answer: Any) -> Any:
        found = self.read(answer)
        if found is None:
            raise ConfigError(f"an answer is {self.form}; got {short(answer)}")
        return found


@cache
def texts() -> dict[str, dict[str, Any]]:
    """Of each exercise: the module of its judge, its title, form and hints, from a file."""
    return cast("dict[str, dict[str, Any]]", shipped_json("exercises.json"))


def exercise(
    name: str,
    *,
    read: Callable[[Any], Any] = lambda answer: answer,
    draw: Callable[..., Figure | None] | None = None,
    kind: type[Exercise] = Exercise,
) -> Callable[[Callable[..., Sequence[Target]]], Callable[..., Exercise]]:
    """Make a judge, a function of an answer and arguments, into a function of the arguments alone
    that gives the exercise. Its docstring is the question; data/exercises.json has, under ``name``,
    the title under which stars are saved, and form and hints, with ``{argument}`` for what the
    arguments say."""
    words = texts()[name]

    def made(judge: Callable[..., Sequence[Target]]) -> Callable[..., Exercise]:
        takes = inspect.signature(judge)

        @wraps(judge)
        def about(*args: Any, **named: Any) -> Exercise:
            bound = takes.bind(None, *args, **named)
            bound.apply_defaults()
            given = dict(list(bound.arguments.items())[1:])
            return kind(
                name=words["title"],
                question=" ".join((inspect.getdoc(judge) or "").split()),
                form=words["form"].format_map(given),
                hints=tuple(hint.format_map(given) for hint in words["hints"]),
                judging=judge,
                read=read,
                drawing=draw,
                given=given,
            )

        return about

    return made


def a_function(answer: Any) -> Callable[..., Any] | None:
    """``answer``, if it is a function."""
    return answer if callable(answer) else None


def instance(kind: type | UnionType) -> Callable[[Any], Any]:
    """A reader of answers that are of this type."""
    return lambda answer: answer if isinstance(answer, kind) else None


def whole_numbers(
    answer: Any, count: int, least: int | None = None, most: int | None = None
) -> tuple[Any, ...] | None:
    """``answer``, if it is a tuple or list of ``count`` whole numbers from ``least`` to ``most``.

    >>> whole_numbers([1, 2], 2), whole_numbers((1.5, 2), 2), whole_numbers((1, 2), 2, most=1)
    ((1, 2), None, None)
    """
    found = tuple(answer) if isinstance(answer, tuple | list) else ()
    whole = all(is_whole(n, least, most) for n in found)
    return found if whole and len(found) == count else None


def none_wrong(name: str, wrong: Sequence[str], count: int | None = None) -> Target:
    """The target that nothing is wrong: how much is, and in words what is, worst first."""
    return Target(name, 0, len(wrong) if count is None else count, 0, remarks=tuple(wrong))


def span(what: str, numbers: Any) -> str:
    """Numbers from the least to the largest, in words.

    >>> span("row", [4, 5, 6]), span("row", [4, 6]), span("row", [4])
    ('rows 4 to 6', 'rows 4, 6', 'row 4')
    """
    found = sorted({int(n) for n in numbers})
    if len(found) == 1:
        return f"{what} {found[0]}"
    if len(found) > 2 and found[-1] - found[0] == len(found) - 1:
        return f"{what}s {found[0]} to {found[-1]}"
    more = ", ..." if len(found) > 6 else ""
    return f"{what}s {', '.join(map(str, found[:6]))}{more}"


def on_ranks(
    answer: Callable[..., Any], program: Callable[[Any], Any], *mesh: int, given: str = ""
) -> Ranks:
    """Run ``program``, in which every rank of ``mesh`` calls ``answer``; RuleError for whatever
    that raises, with what was ``given`` to it. A rank that waits for 10 s has been left alone."""
    try:
        return run_threads(program, mesh, timeout=10.0)
    except RuleError:
        raise
    except Exception as error:
        name, why = getattr(answer, "__name__", "the function"), str(error).partition("\n")[0]
        ranks = " x ".join(map(str, mesh))
        raise RuleError(
            f"{name} raised {type(error).__name__}{given} on {ranks} ranks: {why}"
        ) from error
