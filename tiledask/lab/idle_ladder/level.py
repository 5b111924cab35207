"""A level with the numbers of its seed: judged, drawn, and worked out line by line."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tiledask.lab.idle_ladder.spec import LevelSpec
from tiledask.lab.judging import Hint, Target
from tiledask.lab.learner.kept import TASKS, here
from tiledask.lab.plots.primitives import Figure
from tiledask.plan import html

__all__ = ["IdleLevel", "LevelWorking"]

_OPEN = "working is open: task.working() in Python, below in a terminal."


@dataclass(frozen=True)
class LevelWorking:
    """How a level is worked out: arithmetic line by line, and the gaps that it counts."""

    task: LevelSpec
    lines: tuple[str, ...]
    """Empty until it may be seen."""
    why_not: str = ""

    def __str__(self) -> str:
        numbered = (f"{n}. {line}" for n, line in enumerate(self.lines, 1))
        return "\n".join(numbered) or self.why_not

    __repr__ = __str__

    @property
    def figure(self) -> Figure:
        """The runs, each idle gap with the number of the line that counts it."""
        from tiledask.lab.idle_ladder.figures import draw_working

        return draw_working(self.task) if self.lines else self.task.figure(None)

    def _repr_html_(self) -> str:
        if not self.lines:
            return f"<p>{html.words(self.why_not)}</p>"
        from base64 import b64encode

        from tiledask.lab.plots.picture import png_of

        rows = "".join(f"<li>{html.words(line)}</li>" for line in self.lines)
        picture = b64encode(png_of(self.figure)).decode()
        words = html.words(f"{self.task.title}: the gaps, by the lines that count them")
        shown = f"<img width='900' alt='{words}' src='data:image/png;base64,{picture}'>"
        return f"<ol>{rows}</ol>{shown}"


class IdleLevel(LevelSpec):
    """A level with the numbers of its seed; what is right, the simulator says."""

    def judge(self, answer: Any) -> Sequence[Target]:
        return self.sheet.judge(answer)

    def figure(self, answer: Any) -> Figure:
        """The sheet as it is filled in, what is off in red; once it is right, the runs."""
        from tiledask.lab.idle_ladder import figures

        return getattr(figures, f"draw_{self.sheet.drawn}")(self, answer, self.result(answer))

    @property
    def capped(self) -> str:
        """Two stars are the most for numbers whose working was open before they were solved."""
        if self.seed not in here().get(self.name, TASKS).get("opened", ()):
            return ""
        return "two stars are the most once the working is open; another seed has all three"

    def hint(self) -> Hint:
        """One more hint than last time; the last one opens the working, and says so."""
        none_left = here().get(self.name, TASKS).get("hints", 0) >= len(self.hints)
        hint = super().hint()
        if hint.number < hint.of:
            return hint
        self._opened()
        return replace(
            hint,
            text=f"That was the last; the {_OPEN}" if none_left else f"{hint.text} The {_OPEN}",
        )

    def _opened(self) -> None:
        """None, once it is kept that the working of these numbers is open, if they are unsolved."""
        known = here().get(self.name, TASKS)
        seeds = known.get("opened", [])
        if not known.get("solved") and self.seed not in seeds:
            here().put(self.name, TASKS, opened=[*seeds, self.seed])

    def working(self) -> LevelWorking:
        """How it is worked out, once the level is solved, with any seed, or all hints are taken."""
        known = here().get(self.name, TASKS)
        left = len(self.hints) - known.get("hints", 0)
        if known.get("solved") or left <= 0:
            self._opened()
            return LevelWorking(self, tuple(line.text for line in self.lines))
        return LevelWorking(
            self,
            (),
            f"The working is shown once the level is solved or its hints are taken: {left} "
            f"hint{'s are' if left > 1 else ' is'} left.",
        )

    def __repr__(self) -> str:
        """The question alone: the sheet and the runs hold what is right."""
        return f"Level {self.level}. {self.title}. {self.question} Answer with {self.form}."

    @property
    def heading(self) -> str:
        return f"Level {self.level}. {self.title}"
