"""How far a long call is: a bar where somebody watches, which in a notebook ends as a sentence.

terminal    summa product ━━━━━━━━━━ 18/20 0:00:01        erased when it is over
cell        [=========  ] summa product 18/20             becomes what a reader finds there later:
            summa product: 20 of 20 panels, 1.04 s
"""

import os
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from functools import partial
from time import monotonic
from typing import Any, NamedTuple

from tiledask.plan import html
from tiledask.plan.units import format_seconds

__all__ = ["AFTER", "in_notebook", "is_watched", "showing"]

AFTER = 2.0
"""Seconds until a bar appears: short calls show none."""
_SESSION = "JPY_SESSION_NAME"
"""Set in kernels that a server started for a reader; not where notebooks are tested, in which an
output may not depend on how long a cell took."""
_LOOK = 0.2  # seconds between two looks at what is done

Look = Callable[[], tuple[int, int | None, str]]
"""(what is done, of how many, what else there is to say); None while nobody knows how many."""


class _Call(NamedTuple):
    """What is watched."""

    what: str
    unit: str
    look: Look
    over: threading.Event
    well: threading.Event
    """Set if it went to its end."""

    def sentence(self, seconds: float) -> str:
        """What there is to say when it is over, after so many seconds."""
        done, of, said = self.look()
        counted = f"{done} of {of} {self.unit}" if of else ""
        broken = "" if self.well.is_set() else "broken off at" if counted else "broken off"
        words = f"{self.what}: {broken} {counted}" if broken or counted else self.what
        return ", ".join(filter(None, (" ".join(words.split()), format_seconds(seconds), said)))


@contextmanager
def showing(what: str, look: Look, unit: str = "", after: float = AFTER) -> Iterator[None]:
    """While the block runs, and once ``after`` seconds are over, a bar that says how far it is.

    Drawn on standard error, where it goes when the block ends and only a log keeps the last line;
    in a notebook it is a display of its own that ends as a sentence: how many ``unit``, how long.
    Without a unit, and where no reader opened the notebook, that is empty.
    """
    call = _Call(what, unit, look, threading.Event(), threading.Event())
    # of this context: a notebook knows by it to which cell the bar belongs
    draw = partial(copy_context().run, _draw, call, after)
    drawing = threading.Thread(target=draw, name="progress", daemon=True)
    drawing.start()
    try:
        yield
        call.well.set()
    finally:
        call.over.set()
        drawing.join(5)


def is_watched() -> bool:
    """Whether a person looks on: standard error is a terminal, or this is a notebook."""
    return sys.stderr.isatty() or in_notebook()


def in_notebook() -> bool:
    """Whether this is a notebook's kernel."""
    shell = sys.modules.get("IPython")  # loaded already, if this is one
    return hasattr(shell and shell.get_ipython(), "kernel")


def _draw(call: _Call, after: float) -> None:
    begun = monotonic()
    if call.over.wait(after):
        return
    with (_in_cell if in_notebook() else _on_stderr)(call, begun) as say:
        while not call.over.wait(_LOOK):
            say(*call.look())
        say(*call.look())  # the last word: a log keeps it


@contextmanager
def _on_stderr(call: _Call, begun: float) -> Iterator[Callable[[int, int | None, str], None]]:
    from rich import progress
    from rich.console import Console

    # in a notebook rich would ask for ipywidgets, and say so in the cell's output
    console = Console(stderr=True, force_jupyter=False)
    columns = (
        progress.TextColumn("{task.description}", markup=False),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TextColumn("{task.fields[said]}", markup=False),
        progress.TimeRemainingColumn(),
    )
    # a log keeps the last line; a terminal has seen those before
    with progress.Progress(*columns, console=console, transient=console.is_terminal) as drawn:
        task = drawn.add_task(call.what, total=None, said="")
        yield lambda done, of, said: drawn.update(task, completed=done, total=of, said=said)


@contextmanager
def _in_cell(call: _Call, begun: float) -> Iterator[Callable[[int, int | None, str], None]]:
    """A display that is empty before, and afterwards a sentence for whoever reads the notebook."""
    publisher: Any = sys.modules["IPython"].get_ipython().display_pub
    publish = partial(publisher.publish, transient={"display_id": f"tiledask-{uuid.uuid4().hex}"})
    publish({})

    def say(done: int, of: int | None, said: str) -> None:
        known = f' value="{done}" max="{of}"' if of else ""
        words = f"{call.what} {done}/{of}" if of else call.what
        words += f", {said}" if said else ""
        if of and 0 < done < of:
            left = (monotonic() - begun) * (of - done) / done
            words += f", about {left:.0f} s left"
        shown = f"<progress{known}></progress> {html.words(words)}"
        publish({"text/html": shown, "text/plain": words}, update=True)

    try:
        yield say
    finally:
        words = call.sentence(monotonic() - begun)
        last = {"text/html": html.words(words), "text/plain": words}
        publish(last if call.unit and _SESSION in os.environ else {}, update=True)
