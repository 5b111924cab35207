"""How far a long product is: a bar where somebody watches, fed by the workers' own events."""

import sys
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import copy_context
from functools import partial
from time import monotonic
from typing import Any

from distributed import get_worker

from tiledask.distributed.cluster.cluster import Cluster
from tiledask.plan import html

__all__ = [
    "AFTER",
    "TOPIC",
    "Reporter",
    "following",
    "in_notebook",
    "is_watched",
    "show",
    "showing",
    "watching",
]

TOPIC = "tiledask-panels"
"""Dask's topic for the events that say how far each rank is."""
_REPORT = 0.25  # seconds between two events of a rank
_LOOK = 0.2  # seconds between two looks at what is done
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
    done = [0] * len(turns)

    def heard(now: list[int]) -> None:
        done[:] = now

    with (
        showing(what, lambda: (sum(done), sum(turns), "")),
        following(cluster, run, len(turns), heard),
    ):
        yield
        done[:] = turns  # ranks do not report their last panels


@contextmanager
def showing(
    what: str, look: Callable[[], tuple[int, int | None, str]], after: float = AFTER
) -> Iterator[None]:
    """While the block runs, and once ``after`` seconds are over, a bar that says how far it is.

    ``look()``: what is done, of how many (None: nobody knows yet), and more to say. Drawn on
    standard error; in a notebook it is a display of its own. When the block ends, it is gone: a
    cell's output is what it would have been without. Only a log keeps the last line.
    """
    over = threading.Event()
    # of this context: a notebook knows by it to which cell the bar belongs
    draw = partial(copy_context().run, _draw, what, look, over, after)
    drawing = threading.Thread(target=draw, name="progress", daemon=True)
    drawing.start()
    try:
        yield
    finally:
        over.set()
        drawing.join(5)


def is_watched() -> bool:
    """Whether a person looks on: standard error is a terminal, or this is a notebook."""
    return sys.stderr.isatty() or in_notebook()


def in_notebook() -> bool:
    """Whether this is a notebook's kernel."""
    shell = sys.modules.get("IPython")  # loaded already, if this is one
    return hasattr(shell and shell.get_ipython(), "kernel")


def show(value: object) -> None:
    """None, once the notebook shows ``value`` below the cell that runs."""
    sys.modules["IPython"].display.display(value)


def _draw(what: str, look: Callable[..., Any], over: threading.Event, after: float) -> None:
    if over.wait(after):
        return
    with (_in_cell if in_notebook() else _on_stderr)(what) as say:
        while not over.wait(_LOOK):
            say(*look())
        say(*look())  # the last word: a log keeps it


@contextmanager
def _on_stderr(what: str) -> Iterator[Callable[[int, int | None, str], None]]:
    from rich import progress
    from rich.console import Console

    console = Console(stderr=True)
    columns = (
        progress.TextColumn("{task.description}", markup=False),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TextColumn("{task.fields[said]}", markup=False),
        progress.TimeRemainingColumn(),
    )
    # a log keeps the last line; a terminal has seen those before
    with progress.Progress(*columns, console=console, transient=console.is_terminal) as drawn:
        task = drawn.add_task(what, total=None, said="")
        yield lambda done, of, said: drawn.update(task, completed=done, total=of, said=said)


@contextmanager
def _in_cell(what: str) -> Iterator[Callable[[int, int | None, str], None]]:
    """A display that is empty before and after: what is kept of the cell does not depend on it."""
    publisher = sys.modules["IPython"].get_ipython().display_pub
    publish = partial(publisher.publish, transient={"display_id": f"tiledask-{uuid.uuid4().hex}"})
    begun = monotonic()
    publish({})

    def say(done: int, of: int | None, said: str) -> None:
        seconds = monotonic() - begun
        known = f' value="{done}" max="{of}"' if of else ""
        words = f"{what} {done}/{of}" if of else what
        words += f", {said}" if said else ""
        if of and 0 < done < of:
            words += f", about {seconds * (of - done) / done:.0f} s left"
        shown = f"<progress{known}></progress> {html.words(words)}"
        publish({"text/html": shown, "text/plain": words}, update=True)

    try:
        yield say
    finally:
        publish({}, update=True)
