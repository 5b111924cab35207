"""Ask a question of the course by its number: the working, and the run behind it."""

from typing import Any

import tiledask as td
from tiledask.distributed.cluster.cluster import Cluster
from tiledask.lab.questions.answer import Answer
from tiledask.lab.questions.index import taught
from tiledask.lab.questions.question import MOST_WORKERS
from tiledask.lab.questions.table import question

__all__ = ["ask"]


def ask(
    number: int, /, *, cluster: Cluster | None = None, run: bool = True, **inputs: Any
) -> Answer:
    """The Answer to the question ``number``, worked out and run with these ``inputs``.

    cluster
        Where it runs. Default: workers that are started for it, and closed again; at most
        MOST_WORKERS of them, so that what takes more runs only on a cluster of your own.
    run
        False: arithmetic and simulation only.
    inputs
        The question's own; `tiledask ask` says which there are. Their values may be given as the
        text that one types: ``memory="24GB"``.

    Raises ConfigError for a number or an input that there is not, and a ValueError with the rule
    for inputs that are impossible together.

    >>> ask(34, layers=12, devices=3, run=False).values["sizes"]
    [4, 4, 4]
    """
    asked = question(number)
    given = asked.read(inputs)
    worked, premise = asked.work(**given), asked.premise(**given)
    table, not_run = None, "left out on request"
    if run:
        needed, there = asked.workers(**given), MOST_WORKERS if cluster is None else cluster.slots
        if needed > there:
            not_run = (
                f"takes {needed} workers, of {there} "
                f"{'that are started for it' if cluster is None else 'in the cluster'}: with more, "
                f"td.ask({number}, cluster=td.start_cluster(workers={needed}), ...)"
            )
        elif cluster is not None or not needed:
            table, not_run = asked.run(cluster, **given), ""
        else:
            with td.start_cluster(workers=needed, quiet=True) as started:
                table, not_run = asked.run(started, **given), ""
    return Answer(asked, given, premise, worked, table, not_run, taught(number))
