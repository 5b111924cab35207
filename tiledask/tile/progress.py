"""How far a long call is: a bar on a terminal, erased when it is over.

    summa product ━━━━━━━━━━ 18/20 0:00:01

Who works in a notebook has the dashboard's page for it.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Timer
from typing import Any

__all__ = ["AFTER", "in_notebook", "is_watched", "show", "showing"]

AFTER = 2.0
"""Seconds until a bar appears: short calls show none."""

Look = Callable[[], tuple[int, int | None, str]]
"""What is done, of how many (None while nobody knows), what else there is to say."""


@contextmanager
def showing(what: str, look: Look, after: float = AFTER) -> Iterator[None]:
    """While the block runs, and once ``after`` seconds are over, a bar that says how far it is.

    Drawn on standard error, where only a log keeps its last line.
    """
    from rich import progress
    from rich.console import Console

    class Bar(progress.Progress):  # type: ignore[misc]  # rich's is of no known type
        def get_renderables(self) -> Any:
            done, of, words = look()
            for task in self.tasks:
                self.update(task.id, completed=done, total=of, more=words)
            return super().get_renderables()

    # in a notebook rich would ask for ipywidgets, and say so in the cell's output
    console = Console(stderr=True, force_jupyter=False)
    text, more = (
        progress.TextColumn(f"{{task.{of}}}", markup=False)
        for of in ("description", "fields[more]")
    )
    columns = text, progress.BarColumn(), progress.MofNCompleteColumn(), more
    bar = Bar(
        *columns, progress.TimeRemainingColumn(), console=console, transient=console.is_terminal
    )
    bar.add_task(what, total=None, more="")
    beginning = Timer(after, bar.start)
    beginning.daemon = True
    beginning.start()
    try:
        yield
    finally:
        beginning.cancel()
        beginning.join()
        if bar.live.is_started:
            bar.stop()


def is_watched() -> bool:
    """Whether a person looks on: standard error is a terminal."""
    return sys.stderr.isatty()


def in_notebook() -> bool:
    """Whether this is a notebook's kernel."""
    shell = sys.modules.get("IPython")  # loaded already, if this is one
    return hasattr(shell and shell.get_ipython(), "kernel")


def show(value: object) -> None:
    """None, once the notebook shows ``value`` below the cell that runs."""
    sys.modules["IPython"].display.display(value)
