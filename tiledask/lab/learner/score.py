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

    asked: int
    made: int
    exact: int
    stars: int
    """Of predictions, 3 at most for each."""
    tried: int
    """Tasks to which there was an answer."""
    solved: int
    task_stars: int
    """The best that each task tried has had, 3 at most."""

    @classmethod
    def of(cls, kept: Kept) -> "Counts":
        asked = kept.all().values()
        made = [facts for facts in asked if facts.get("value") is not None]
        stars = [facts.get("stars") or 0 for facts in made]
        tried = [facts for facts in kept.all(TASKS).values() if facts.get("tries")]
        solved = sum(bool(facts.get("solved")) for facts in tried)
        of_tasks = len(tried), solved, sum(facts.get("stars") or 0 for facts in tried)
        return cls(len(asked), len(made), stars.count(3), sum(stars), *of_tasks)

    @property
    def cells(self) -> tuple[str, ...]:
        """Predicted, exact, stars; solved, stars."""
        tasks = f"{self.solved} of {self.tried}", f"{self.task_stars} of {3 * self.tried}"
        return (
            f"{self.made} of {self.asked}",
            f"{self.exact}",
            f"{self.stars} of {3 * self.asked}",
            *tasks,
        )

    def __str__(self) -> str:
        predicted, exact, stars, solved, more = self.cells
        of_tasks = f"; {solved} tasks solved, {more} stars" if self.tried else ""
        return f"{predicted} predicted, {exact} exact, {stars} stars{of_tasks}"


@dataclass(frozen=True, repr=False)
class Score:
    """A line for this notebook, one for each other that was begun, and one for all."""

    rows: dict[str, Counts]
    bold: int
    """The row of this notebook."""
    on_page: bool
    """Whether there is a contents page, which shows it too."""

    def __repr__(self) -> str:
        return "\n".join(f"{name}: {row}" for name, row in self.rows.items())

    def _repr_html_(self) -> str:
        head = ("notebook", "predicted", "exact", "stars", "tasks solved", "stars")
        rows = [(name, *row.cells) for name, row in self.rows.items()]
        table = html.table(head, rows, first="th", bold=[self.bold])
        return table + SHOW_ANEW * self.on_page


def score() -> Score:
    """How many of this notebook's predictions were made and how near they came, and how many of
    the tasks that were tried are solved; all notebooks too, and the command line.

    A prediction counts once its cell has run. What is exact has three stars, within 10 % two,
    within a factor of 2 one. A task has its best answer's. Where `make lab` made a contents page,
    it shows the score too.

    >>> isinstance(score(), Score)
    True
    """
    rows = {kept.notebook or "here": Counts.of(kept) for kept in notebooks()}
    bold = list(rows).index(here().notebook or "here")
    if len(rows) > 1:
        rows["all"] = Counts(*map(sum, zip(*rows.values(), strict=True)))
    learners = Path(os.environ.get(FOLDER, "")).parent
    on_page = bool(os.environ.get(FOLDER)) and (learners / PAGE).exists()
    if on_page:
        write_contents(walkthroughs(), learners)
    return Score(rows, bold, on_page)
