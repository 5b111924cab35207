"""The score: predictions made and how near they came, tasks tried, solved, and their stars."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tiledask.lab.learner.contents import PAGE, SHOW_ANEW, write_contents
from tiledask.lab.learner.copies import walkthroughs
from tiledask.lab.learner.kept import FOLDER, TASKS, Kept, here, notebooks
from tiledask.plan import html

__all__ = ["Counts", "Score", "score"]


class Counts(NamedTuple):
    """Of a notebook, of the command line, or of all."""

    asked: int = 0
    made: int = 0
    exact: int = 0
    stars: int = 0
    """Of predictions, 3 at most for each."""
    tried: int = 0
    """Tasks to which there was an answer."""
    solved: int = 0
    task_stars: int = 0
    """The best that each task tried has had, 3 at most."""

    @property
    def cells(self) -> tuple[str, str, str, str, str]:
        """Predicted, exact, stars; solved, stars."""
        return (
            f"{self.made} of {self.asked}",
            str(self.exact),
            f"{self.stars} of {3 * self.asked}",
            f"{self.solved} of {self.tried}",
            f"{self.task_stars} of {3 * self.tried}",
        )

    def __str__(self) -> str:
        predicted, exact, stars, solved, more = self.cells
        of_tasks = f"; {solved} tasks solved, {more} stars" if self.tried else ""
        return f"{predicted} predicted, {exact} exact, {stars} stars{of_tasks}"


@dataclass(frozen=True, repr=False)
class Score:
    """A line for this notebook, and one for each other that was begun."""

    notebook: str
    rows: dict[str, Counts]
    on_page: bool = False
    """Whether there is a contents page, which shows it too."""

    @property
    def total(self) -> Counts:
        """The sums over all notebooks."""
        return Counts(*map(sum, zip(*self.rows.values(), strict=True)))

    def __repr__(self) -> str:
        lines = [f"{name or 'here'}: {row}" for name, row in self.rows.items()]
        return "\n".join([*lines, *([f"all: {self.total}"] if len(lines) > 1 else [])])

    def _repr_html_(self) -> str:
        head = ("notebook", "predicted", "exact", "stars", "tasks solved", "stars")
        rows = [(name or "here", *row.cells) for name, row in self.rows.items()]
        if len(rows) > 1:
            rows.append(("all", *self.total.cells))
        bold = [i for i, name in enumerate(self.rows) if name == self.notebook]
        table = html.table(head, rows, first="th", bold=bold)
        return table + SHOW_ANEW if self.on_page else table


def score() -> Score:
    """How many of this notebook's predictions were made and how near they came, and how many of
    the tasks that were tried are solved; all notebooks too, and the command line.

    A prediction counts once its cell has run. What is exact has three stars, within 10 % two,
    within a factor of 2 one. A task has its best answer's. Where `make lab` made a contents page,
    it shows the score too.

    >>> isinstance(score(), Score)
    True
    """
    found = {each.notebook: _counts(each) for each in notebooks()}
    learners = Path(os.environ.get(FOLDER, "")).parent
    if not os.environ.get(FOLDER) or not (learners / PAGE).exists():
        return Score(here().notebook, found)
    write_contents(walkthroughs(), learners)
    return Score(here().notebook, found, on_page=True)


def _counts(kept: Kept) -> Counts:
    asked = [*kept.all().values()]
    made = [facts for facts in asked if facts.get("value") is not None]
    stars = [facts.get("stars") or 0 for facts in made]
    tried = [facts for facts in kept.all(TASKS).values() if facts.get("tries")]
    return Counts(
        len(asked),
        len(made),
        stars.count(3),
        sum(stars),
        len(tried),
        sum(bool(facts.get("solved")) for facts in tried),
        sum(facts.get("stars") or 0 for facts in tried),
    )
