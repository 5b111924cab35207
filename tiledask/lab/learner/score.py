"""The score: how many predictions were made, and how near they came."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tiledask.lab.learner.contents import PAGE, SHOW_ANEW, write_contents
from tiledask.lab.learner.copies import walkthroughs
from tiledask.lab.learner.kept import FOLDER, here, notebooks
from tiledask.plan import html

__all__ = ["Score", "score"]


@dataclass(frozen=True, repr=False)
class Score:
    """A line for this notebook, and one for each other that was begun."""

    notebook: str
    rows: dict[str, tuple[int, int, int, int]]
    """Notebook -> predictions asked, made, exact, and stars of all."""
    on_page: bool = False
    """Whether there is a contents page, which shows it too."""

    @property
    def total(self) -> tuple[int, int, int, int]:
        """The sums over all notebooks."""
        asked, made, exact, stars = map(sum, zip(*self.rows.values(), strict=True))
        return asked, made, exact, stars

    def __repr__(self) -> str:
        lines = [_line(name or "here", row) for name, row in self.rows.items()]
        return "\n".join([*lines, *([_line("all", self.total)] if len(lines) > 1 else [])])

    def _repr_html_(self) -> str:
        rows = [(name or "here", *_shown(row)) for name, row in self.rows.items()]
        if len(rows) > 1:
            rows.append(("all", *_shown(self.total)))
        bold = [i for i, name in enumerate(self.rows) if name == self.notebook]
        head = ("notebook", "predicted", "exact", "stars")
        table = html.table(head, rows, first="th", bold=bold)
        return table + SHOW_ANEW if self.on_page else table


def score() -> Score:
    """How many of this notebook's predictions were made and how near they came; all notebooks too.

    A prediction counts once its cell has run. What is exact has three stars, within 10 % two,
    within a factor of 2 one. Where `make lab` made a contents page, it shows the score too.

    >>> isinstance(score(), Score)
    True
    """
    found = {each.notebook: _row([*each.all().values()]) for each in notebooks()}
    learners = Path(os.environ.get(FOLDER, "")).parent
    if not os.environ.get(FOLDER) or not (learners / PAGE).exists():
        return Score(here().notebook, found)
    write_contents(walkthroughs(), learners)
    return Score(here().notebook, found, on_page=True)


def _row(predictions: list[dict[str, Any]]) -> tuple[int, int, int, int]:
    made = [facts for facts in predictions if facts.get("value") is not None]
    stars = [facts.get("stars") or 0 for facts in made]
    return len(predictions), len(made), stars.count(3), sum(stars)


def _shown(row: tuple[int, int, int, int]) -> tuple[str, str, str]:
    asked, made, exact, stars = row
    return f"{made} of {asked}", str(exact), f"{stars} of {3 * asked}"


def _line(name: str, row: tuple[int, int, int, int]) -> str:
    predicted, exact, stars = _shown(row)
    return f"{name}: {predicted} predicted, {exact} exact, {stars} stars"
