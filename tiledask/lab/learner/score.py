"""The score: predictions made and how near they came, tasks tried, solved, and their stars."""

import os
from pathlib import Path

from tiledask.lab.learner.contents import PAGE, write_contents
from tiledask.lab.learner.copies import walkthroughs
from tiledask.lab.learner.kept import FOLDER, Counts, here, notebooks
from tiledask.plan.tables import Table

__all__ = ["score"]


def score() -> Table:
    """How many of this notebook's predictions were made and how near they came, and how many of
    the tasks that were tried are solved; all notebooks too, and the command line.

    A prediction counts once its cell has run. What is exact has three stars, within 10 % two,
    within a factor of 2 one. A task has its best answer's. Where `make lab` made a contents page,
    it shows the score too.

    >>> score().head[:3]
    ('notebook', 'predicted', 'exact')
    """
    rows = {kept.notebook or "here": Counts.of(kept) for kept in notebooks()}
    bold = list(rows).index(here().notebook or "here")
    if len(rows) > 1:
        rows["all"] = Counts(*map(sum, zip(*rows.values(), strict=True)))
    learners = Path(os.environ.get(FOLDER, "")).parent
    if os.environ.get(FOLDER) and (learners / PAGE).exists():
        write_contents(walkthroughs(), learners)
    head = ("notebook", "predicted", "exact", "stars", "tasks solved", "stars")
    return Table(head, [(name, *row.cells) for name, row in rows.items()], bold=[bold])
