"""How far a long call is: a bar where somebody watches, erased when it is over.

terminal    summa product ━━━━━━━━━━ 18/20 0:00:01
cell        [=========  ] summa product 18/20
"""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from time import monotonic

from tiledask.plan import html

__all__ = ["AFTER", "in_notebook", "is_watched", "show", "showing"]

AFTER = 2.0
"""Seconds until a bar appears: short calls show none."""
_LOOK = 0.2  # seconds between two looks at what is done
_WORDS = "description", "fields[more]"  # of a task of rich's

Seen = tuple[int, int | None, str]
"""What is done, of how many, what else there is to say; None while nobody knows how many."""
Look = Callable[[], Seen]


@contextmanager
def showing(what: str, look: Look, after: float = AFTER) -> Iterator[None]:
    """While the block runs, and once ``after`` seconds are over, a bar that says how far it is.

    Drawn on standard error, where only a log keeps its last line; in a notebook it is a display of
    its own that ends empty.
    """
    over, begun = threading.Event(), monotonic()

    def looks() -> Iterator[Seen]:
        while not over.wait(_LOOK):
            yield look()
        yield look()  # the last word: a log keeps it

    def draw() -> None:
        if over.wait(after):
            return
        if in_notebook():
            _in_cell(what, looks(), begun)
        else:
            _on_stderr(what, looks())

    # in this context: a notebook knows by it to which cell the bar belongs
    run = copy_context().run
    drawing = threading.Thread(target=run, args=(draw,), name="progress", daemon=True)
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


def _on_stderr(what: str, looks: Iterator[Seen]) -> None:
    from rich import progress
    from rich.console import Console

    # in a notebook rich would ask for ipywidgets, and say so in the cell's output
    console = Console(stderr=True, force_jupyter=False)
    text, more = (progress.TextColumn(f"{{task.{of}}}", markup=False) for of in _WORDS)
    columns = text, progress.BarColumn(), progress.MofNCompleteColumn(), more
    left = progress.TimeRemainingColumn()
    # a log keeps the last line; a terminal has seen those before
    with progress.Progress(*columns, left, console=console, transient=console.is_terminal) as bar:
        task = bar.add_task(what, total=None, more="")
        for done, of, words in looks:
            bar.update(task, completed=done, total=of, more=words)


def _in_cell(what: str, looks: Iterator[Seen], begun: float) -> None:
    """A display that is empty before and afterwards: notebooks are compared."""
    display = sys.modules["IPython"].display.display
    shown = display({}, raw=True, display_id=True)
    for done, of, more in looks:
        words = [f"{what} {done}/{of}" if of else what, more]
        if of and 0 < done < of:
            words.append(f"about {(monotonic() - begun) * (of - done) / done:.0f} s left")
        text, known = ", ".join(filter(None, words)), f' value="{done}" max="{of}"' if of else ""
        bar = f"<progress{known}></progress> {html.words(text)}"
        shown.update({"text/html": bar, "text/plain": text}, raw=True)
    shown.update({}, raw=True)
