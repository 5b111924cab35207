"""A loss that is drawn while it falls: pass it to `tiledask.train` as ``progress=``."""

from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Any

from tiledask.lab.plots import primitives as draw
from tiledask.lab.plots.primitives import Figure
from tiledask.lab.plots.style import BLUE, canvas, styled
from tiledask.lab.plots.training.losses import loss_curve

if TYPE_CHECKING:
    from tiledask.distributed.training import Progress

__all__ = ["LiveLoss"]

_EVERY, _SHARE = 0.25, 0.2
"""Seconds between two drawings, at least; and the share of the time that they may take."""
_RECENT = 10
"""Steps over which tokens a second are taken."""


class LiveLoss:
    """Loss against step, with the best loss there is (if the data knows it) and tokens a second.

    In a notebook one figure is shown and drawn again as steps are done, and the last stays. Where
    there is no notebook nothing is shown; ``figure()`` is there everywhere.

    >>> import tiledask as td
    >>> text, live = td.load_text("tales"), LiveLoss()
    >>> model = td.GPT(text.vocabulary, hidden=8, layers=1, heads=2, sequence=8)
    >>> trained = td.train(model, text, (1, 1, 1), steps=3, batch=2, progress=live)
    >>> [step.loss for step in live.steps] == trained.losses.tolist()
    True
    """

    def __init__(self, title: str = "") -> None:
        self.title = title
        self.steps: list[Progress] = []
        """All so far."""
        self._handle: Any = None
        self._next = 0.0

    def __enter__(self) -> "LiveLoss":
        self.steps = []
        self._handle = _shown(self)
        return self

    def __call__(self, progress: "Progress") -> None:
        self.steps.append(progress)
        if self._handle is not None and monotonic() >= self._next:
            self._draw()

    def __exit__(self, *_: Any) -> None:
        if self._handle is not None:
            self._draw()

    def figure(self) -> "Figure":
        """A figure of the steps so far."""
        return _drawn(list(self.steps), self.title)

    def _repr_png_(self) -> Any:
        return self.figure()._repr_png_()

    def _draw(self) -> None:
        begun = monotonic()
        self._handle.update(self)
        now = monotonic()
        # drawing takes a core for a moment, perhaps one of those that train
        self._next = now + max(_EVERY, (now - begun) / _SHARE)


def _shown(what: Any) -> Any:
    """A handle of ``what``, shown in the cell that runs; None outside of notebooks."""
    with suppress(ImportError):
        from IPython import get_ipython
        from IPython.display import display

        if hasattr(get_ipython(), "kernel"):
            return display(what, display_id=True)
    return None


@styled
def _drawn(steps: "list[Progress]", title: str) -> "Figure":
    figure = canvas(3.4, title or "Loss")
    axes = figure.subplots()
    axes.set(xlabel="step", ylabel="loss (nats per token)")
    draw.whole_ticks(axes.xaxis)
    if not steps:
        axes.set_title("waiting for the first step")
        return figure
    last, recent = steps[-1], steps[-_RECENT:]
    seconds = sum(step.seconds for step in recent)
    rate = f", {len(recent) * last.tokens / seconds:,.0f} tokens/s" if seconds > 0 else ""
    axes.set_title(f"step {last.step + 1} of {last.steps}, loss {last.loss:.4f}{rate}")
    loss_curve(axes, [s.step for s in steps], [s.loss for s in steps], "loss", BLUE)
    if last.floor is not None:
        draw.limit_line(axes, y=last.floor, linewidth=1.0, linestyle=":")
        end, words = (
            {"xycoords": ("axes fraction", "data")},
            f"best loss there is: {last.floor:.4g}",
        )
        draw.note(axes, (1, last.floor), words, (0, 3), 8, ha="right", **end)
        axes.set_ylim(bottom=0)
    axes.set_xlim(min(0, steps[0].step) - 0.01 * last.steps, last.steps)
    return figure
