"""Ask a question of the course by its number: the working, and the run behind it."""

from contextlib import nullcontext
from typing import Any

import tiledask as td
from tiledask.distributed.cluster.cluster import Cluster
from tiledask.distributed.connecting.connect import cluster_of
from tiledask.lab.questions.answer import Answer
from tiledask.lab.questions.index import taught
from tiledask.lab.questions.question import MOST_WORKERS, CourseQuestion
from tiledask.lab.questions.table import question

__all__ = ["ask"]


def ask(
    number: int, /, *, cluster: Cluster | None = None, run: bool = True, **inputs: Any
) -> Answer:
    """The Answer to the question ``number``, worked out and run with these ``inputs``.

    cluster
        Where it runs, or a Dask client of there. Default: workers that are started for it, and
        closed again; at most MOST_WORKERS of them, so that what takes more runs only on a cluster
        of your own.
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
    cluster = None if cluster is None else cluster_of(cluster, "what a question runs on")
    given = asked.read(inputs)
    worked, premise = asked.work(**given), asked.premise(**given)
    needed, table = asked.workers(**given), None
    not_run = _refusal(asked, needed, cluster) if run else "left out on request"
    if not not_run:
        with (
            td.start_cluster(workers=needed, device=asked.device, quiet=True)
            if cluster is None and needed
            else nullcontext(cluster)
        ) as workers:
            table = asked.run(workers, **given)
    return Answer(asked, given, premise, worked, table, not_run, taught(number))


def _refusal(asked: CourseQuestion, needed: int, cluster: Cluster | None) -> str:
    """Why it cannot run there, and where it could; empty if it can."""
    there = MOST_WORKERS if cluster is None else cluster.slots
    start = f"td.start_cluster(workers={needed}, device={asked.device!r})"
    if needed > there:
        whose = "that are started for it" if cluster is None else "in the cluster"
        return (
            f"takes {needed} workers, of {there} {whose}; with more: td.ask({asked.number}, "
            f"cluster={start}, ...)"
        )
    if cluster is not None and asked.device == "cpu" and cluster.backend != "numpy":
        return f"counts NumPy's tiles, and the cluster's workers are GPUs; cluster={start} will do"
    return ""
