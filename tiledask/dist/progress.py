"""How far a long product is: a bar where somebody watches, fed by the workers' own events."""

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from time import monotonic
from typing import TYPE_CHECKING, Any

from distributed import get_worker

from tiledask.dist.cluster import Cluster

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, ProgressColumn

__all__ = ["AFTER", "TOPIC", "Reporter", "bar", "following", "is_watched", "watching"]

TOPIC = "tiledask-panels"
"""Dask's topic for the events that say how far each rank is."""
_REPORT = 0.25  # seconds between two events of a rank
AFTER = 2.0
"""Seconds until a bar appears: short products show none."""


class Reporter:
    """Says how far one rank is, now and then (in a worker)."""

    def __init__(self, run: str, rank: int, of: int, done: int = 0) -> None:
        self.run, self.rank, self.of, self.done = run, rank, of, done
        self.last = monotonic()

    def one_more(self) -> None:
        """Another panel is multiplied."""
        self.done += 1
        if monotonic() - self.last < _REPORT:
            return
        self.last = monotonic()
        event = {"run": self.run, "rank": self.rank, "done": self.done, "of": self.of}
        with suppress(Exception):  # a display must not stop a product
            get_worker().log_event(TOPIC, event)


@contextmanager
def following(
    cluster: Cluster, run: str, ranks: int, heard: Callable[[list[int]], None]
) -> Iterator[None]:
    """Calls ``heard`` with the panels that each rank has done, while the block runs."""
    done, over = [0] * ranks, threading.Event()

    def event(said: tuple[float, Any]) -> None:
        facts = said[1]
        if facts.get("run") == run and not over.is_set():  # later ones are no news
            done[facts["rank"]] = facts["done"]
            heard(done)

    cluster.client.subscribe_topic(TOPIC, event)
    try:
        yield
    finally:
        over.set()
        with suppress(Exception):  # of a client that is closed meanwhile
            cluster.client.unsubscribe_topic(TOPIC)


@contextmanager
def watching(
    wanted: bool | None, run: str, turns: Sequence[int], what: str, cluster: Cluster
) -> Iterator[None]:
    """Shows the panels that are done while the block runs.

    ``wanted``: True and False insist, None shows a bar on a terminal or in a notebook.
    ``turns``: panels of each rank.
    """
    if wanted is False or (wanted is None and not is_watched()):
        yield
        return
    done, over = [0] * len(turns), threading.Event()

    def heard(now: list[int]) -> None:
        done[:] = now

    drawing = threading.Thread(target=_draw, args=(done, sum(turns), what, over), daemon=True)
    drawing.start()
    try:
        with following(cluster, run, len(turns), heard):
            yield
    finally:
        over.set()
        drawing.join(5)


def is_watched() -> bool:
    """Whether a person looks on: standard error is a terminal, or this is a notebook."""
    return sys.stderr.isatty() or _in_notebook()


def _in_notebook() -> bool:
    """Whether this is a notebook's kernel."""
    shell = sys.modules.get("IPython")  # loaded already, if this is one
    return hasattr(shell and shell.get_ipython(), "kernel")


def _console() -> "Console":
    """Where bars are drawn: on standard error, in a notebook in the cell's output."""
    from rich.console import Console

    if not _in_notebook():
        return Console(stderr=True)
    # as on a terminal: without ipywidgets rich draws nothing in a notebook while something runs.
    # A line is written over the one before, code by code: so no colours, and all equally long
    return Console(
        file=sys.stdout, force_jupyter=False, force_terminal=True, color_system=None, width=90
    )


def bar(*columns: "ProgressColumn") -> "Progress":
    """A bar between the first column and the others."""
    from rich.progress import BarColumn, Progress

    drawn, wide = _console(), _in_notebook()
    line = BarColumn(None if wide else 40)
    first, *others = columns
    # a log keeps the last line; a terminal has seen those before
    return Progress(first, line, *others, console=drawn, transient=drawn.is_terminal, expand=wide)


def _draw(done: list[int], total: int, what: str, over: threading.Event) -> None:
    if over.wait(AFTER):
        return
    from rich.progress import MofNCompleteColumn, TextColumn, TimeRemainingColumn

    with bar(TextColumn(what), MofNCompleteColumn(), TimeRemainingColumn()) as drawn:
        task = drawn.add_task(what, total=total)
        while not over.wait(0.2):
            drawn.update(task, completed=sum(done))
