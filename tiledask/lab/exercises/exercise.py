"""An exercise: a judge of answers, registered under a name.

@exercise("twice", whole_numbers(1, least=0))
def twice(answer: tuple[int], number: int = 4) -> list[Target]: ...

twice(number=4).check((8,))        # a Result, as of the puzzles
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

from tiledask.distributed.ranks.rank_function import Ranks
from tiledask.distributed.ranks.threads import run_threads
from tiledask.errors import ConfigError, RuleError, short
from tiledask.lab.judging import JudgedTask, Target
from tiledask.lab.judging.figure import draw_targets
from tiledask.lab.plots.primitives import Figure
from tiledask.plan.data import shipped_json
from tiledask.plan.whole import is_whole

__all__ = ["Exercise", "calling", "exercise", "instance", "none_wrong", "on_ranks", "whole_numbers"]

Judge = Callable[..., Sequence[Target]]


@dataclass(frozen=True, kw_only=True)
class Exercise(JudgedTask):
    """A task of a walkthrough: its judge, and the arguments that this one is about."""

    judging: Judge = field(repr=False)
    read: Callable[[Any], Any] = field(repr=False)
    """An answer as the judge takes it; None, or an error of its parts, for what is none."""
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
        try:
            found = self.read(answer)
        except ConfigError:
            raise
        except (TypeError, ValueError, LookupError, AttributeError):
            found = None
        if found is None:
            raise ConfigError(f"an answer is {self.form}; got {short(answer)}")
        return found


def exercise(
    name: str,
    read: Callable[[Any], Any],
    draw: Callable[..., Figure | None] | None = None,
    kind: type[Exercise] = Exercise,
) -> Callable[[Judge], Callable[..., Exercise]]:
    """Make a judge, a function of an answer and arguments, into a function of the arguments alone
    that gives the exercise. Its docstring is the question; data/exercises.json has, under ``name``,
    the title under which stars are saved, and form and hints, with ``{argument}`` for what the
    arguments say."""
    words = shipped_json("exercises.json")[name]

    def made(judge: Judge) -> Callable[..., Exercise]:
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


def instance(kind: Any) -> Callable[[Any], Any]:
    """A reader of answers that are of this type; `collections.abc.Callable` for functions."""
    return lambda answer: answer if isinstance(answer, kind) else None


def whole_numbers(answer: Any, count: int, least: int | None = None) -> tuple[Any, ...]:
    """``answer`` as a tuple; ValueError unless it has ``count`` whole numbers of ``least`` or more.

    >>> whole_numbers([1, 2], 2)
    (1, 2)
    """
    found = tuple(answer) if isinstance(answer, tuple | list) else ()
    if len(found) != count or not all(is_whole(n, least) for n in found):
        raise ValueError
    return found


def none_wrong(name: str, wrong: Sequence[str], count: int | None = None) -> Target:
    """The target that nothing is wrong: how much is, and in words what is, worst first."""
    return Target(name, 0, len(wrong) if count is None else count, 0, why="; ".join(wrong))


@contextmanager
def calling(answer: Callable[..., Any], where: str) -> Iterator[None]:
    """RuleError for whatever a function of a learner raises, with its name and ``where``."""
    try:
        yield
    except RuleError:
        raise
    except Exception as error:
        name, why = getattr(answer, "__name__", "the function"), str(error).partition("\n")[0]
        raise RuleError(f"{name} raised {type(error).__name__} {where}: {why}") from error


def on_ranks(answer: Callable[..., Any], program: Callable[[Any], Any], *mesh: int) -> Ranks:
    """Run ``program``, in which every rank of ``mesh`` calls ``answer``. A rank that waits for 10 s
    has been left alone."""
    with calling(answer, f"on {' x '.join(map(str, mesh))} ranks"):
        return run_threads(program, mesh, timeout=10.0)
