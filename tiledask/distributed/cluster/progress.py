"""How far the workers are with a long call, by their own events."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from time import monotonic
from typing import Any

from distributed import get_worker

from tiledask.distributed.cluster.cluster import Cluster
from tiledask.tile.progress import is_watched, showing

__all__ = ["RUNS", "TOPIC", "Progress", "Reporter", "following", "subscribed", "watching"]

Progress = bool | Callable[[int, int], None] | None
"""How far a call is, for people: a bar or none, or a function that is told."""
RUNS = "tiledask-runs"
"""Dask's topic on which runs, trainings and products announce themselves."""
TOPIC = "tiledask-panels"
"""Dask's topic for the events that say how far each rank is."""
_REPORT = 0.25  # seconds between two events of a rank


class Reporter:
    """Says how far one rank is, now and then (in a worker).

    ``more()``: what the dashboard's page is told besides.
    """

    def __init__(
        self,
        run: str,
        rank: int,
        of: int,
        done: int = 0,
        more: Callable[[], dict[str, Any]] | None = None,
    ) -> None:
        self.run, self.rank, self.of, self.done, self.more = run, rank, of, done, more
        self.last = monotonic()

    def one_more(self) -> None:
        """Another panel is multiplied."""
        self.done += 1
        if monotonic() - self.last >= _REPORT:
            self.report()

    def report(self) -> None:
        """Say it now."""
        self.last = monotonic()
        event = {"run": self.run, "rank": self.rank, "done": self.done, "of": self.of}
        with suppress(Exception):  # a display must not stop a product
            get_worker().log_event(TOPIC, event | (self.more() if self.more else {}))


@contextmanager
def subscribed(cluster: Cluster, topic: str, heard: Callable[[Any], None]) -> Iterator[None]:
    """Calls ``heard`` with every message on ``topic`` while the block runs."""
    client: Any = cluster.client  # Dask says no types of these
    client.subscribe_topic(topic, lambda said: heard(said[1]))
    try:
        yield
    finally:
        with suppress(Exception):  # of a client that is closed meanwhile
            client.unsubscribe_topic(topic)


@contextmanager
def following(
    cluster: Cluster, run: str, ranks: int, heard: Callable[[list[int]], None]
) -> Iterator[None]:
    """Calls ``heard`` with the panels that each rank has done, while the block runs."""
    done, over = [0] * ranks, False

    def event(facts: Any) -> None:
        mine = facts.get("run") == run and "rank" in facts
        if mine and not over:  # later ones are no news
            done[facts["rank"]] = facts["done"]
            heard(done)

    with subscribed(cluster, TOPIC, event):
        try:
            yield
        finally:
            over = True


@contextmanager
def watching(
    wanted: Progress, run: str, turns: Sequence[int], what: str, cluster: Cluster
) -> Iterator[None]:
    """Shows the panels that are done while the block runs.

    ``wanted``: True and False insist, None shows a bar on a terminal or in a notebook. A function
    is called with (panels done, panels in all). ``turns``: panels of each rank.
    """
    if callable(wanted):
        tell, of = wanted, sum(turns)
        with following(cluster, run, len(turns), lambda done: tell(sum(done), of)):
            yield
        tell(of, of)  # ranks do not report their last panels
        return
    if wanted is False or (wanted is None and not is_watched()):
        yield
        return
    done = [0] * len(turns)

    def heard(now: list[int]) -> None:
        done[:] = now

    with showing(what, lambda: (sum(done), sum(turns), ""), "panels"):
        with following(cluster, run, len(turns), heard):
            yield
        done[:] = turns  # ranks do not report their last panels
