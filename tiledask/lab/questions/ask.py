"""Ask a question of the course by its number or in words: the working, and the run behind it."""

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import tiledask as td
from tiledask.distributed.cluster.cluster import Cluster
from tiledask.distributed.connecting.connect import cluster_of
from tiledask.lab.questions.answer import Answer
from tiledask.lab.questions.by_words import by_words
from tiledask.lab.questions.index import taught
from tiledask.lab.questions.question import MOST_WORKERS, Question, WorkedAnswer
from tiledask.lab.questions.table import find

__all__ = ["answered", "ask", "look_up"]


def ask(
    asked: int | str, /, *, cluster: Cluster | None = None, run: bool = True, **inputs: Any
) -> Answer:
    """Work out a question of the course, and run it.

    Parameters
    ----------
    asked
        Its number, or words such as "24 layers on 4 devices"; the Answer then says which
        question was taken.
    cluster
        Where it runs, or a Dask client of there. Default: workers that are started for it, and
        closed again; at most MOST_WORKERS of them, so that what takes more runs only on a cluster
        of your own.
    run
        False: arithmetic and simulation only.
    inputs
        The question's own; `tiledask ask 34 --explain` says which there are. Their values may be
        given as the text that one types: ``memory="24GB"``.

    Raises
    ------
    ConfigError
        For a number, words or an input that there is not.
    ValueError
        With the rule, for inputs that are impossible together.

    Examples
    --------
    >>> ask(34, layers=12, devices=3, run=False).values["sizes"]
    [4, 4, 4]
    >>> ask("24 layers on 4 devices", run=False).values["sizes"]
    [6, 6, 6, 6]
    """
    return answered(*look_up(asked, inputs), cluster, run)


def look_up(asked: int | str, inputs: Mapping[str, Any]) -> tuple[Question, dict[str, Any], str]:
    """(the question, all its inputs, how it was found where words were asked)."""
    number, found = asked, ""
    if isinstance(asked, str) and not asked.strip().isdecimal():
        number, in_words, found = by_words(asked)
        inputs = in_words | dict(inputs)
    taken = find(int(number))
    return taken, taken.read(inputs), found


def answered(
    taken: Question,
    given: Mapping[str, Any],
    found: str = "",
    cluster: Cluster | None = None,
    run: bool = True,
) -> Answer:
    """The working, and the run where it can be."""
    cluster = None if cluster is None else cluster_of(cluster, "what a question runs on")
    worked, table = taken.work(**given), None
    not_run = _refusal(taken, given, worked, cluster) if run else ""
    if run and not not_run:
        start = (
            td.start_cluster(workers=worked.workers, device=worked.device, quiet=True)
            if (cluster is None)
            else nullcontext(cluster)
        )
        with start as workers:
            table = worked.run(workers)
    return Answer(taken, given, worked, table, not_run, taught(taken.number), found)


def _refusal(
    asked: Question, given: Mapping[str, Any], worked: WorkedAnswer, cluster: Cluster | None
) -> str:
    """Why it cannot run there, and where it could; empty if it can."""
    for name, each in asked.inputs.items():
        if isinstance(given[name], int | float) and given[name] > each.run:
            return f"a run takes {name} up to {each.shown(each.run)}"
    there = MOST_WORKERS if cluster is None else cluster.slots
    start = f"td.start_cluster(workers={worked.workers}, device={worked.device!r})"
    if worked.workers > there:
        whose = "that are started for it" if cluster is None else "in the cluster"
        return (
            f"takes {worked.workers} workers, of {there} {whose}; with more: "
            f"td.ask({asked.number}, cluster={start}, ...)"
        )
    if cluster is not None and worked.device == "cpu" and cluster.backend != "numpy":
        return f"counts NumPy's tiles, and the cluster's workers are GPUs; cluster={start} will do"
    return ""
