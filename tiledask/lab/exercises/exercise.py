"""An exercise: a task that measures an answer, judges it, and draws it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tiledask.lab.puzzles import Result, Target

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Exercise"]


@dataclass(frozen=True)
class Exercise:
    """A task of a walkthrough: what an answer reaches, and how it looks."""

    name: str
    measure: Callable[[Any], Sequence[Target]]
    """The targets that an answer meets or misses; a ValueError says what is not legal about it."""
    figure: Callable[[Any], "Figure"]
    """A figure of an answer, or of the task for None."""

    def check(self, answer: Any) -> Result:
        """The worth of ``answer``; None is "not attempted": false, and no complaint."""
        if answer is None:
            return Result(self.name, False, False, "Not attempted yet.")
        try:
            targets = tuple(self.measure(answer))
        except ValueError as error:
            return Result(self.name, True, False, f"Not legal: {error}")
        missed = [str(target) for target in targets if not target.met]
        reason = f"Legal, but {'; '.join(missed)}." if missed else "Solved: every target is met."
        return Result(self.name, True, True, reason, targets)

    def draw(self, answer: Any = None) -> "Figure":
        """A figure of ``answer``; of the task if there is none yet or it is not legal."""
        try:
            return self.figure(answer)
        except ValueError:
            return self.figure(None)
