"""A Figure that draws itself in a notebook without pyplot, and is the same file every time."""

import io
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from matplotlib import rcParams
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

__all__ = ["DPI", "Picture", "png_of", "shown_dpi"]

DPI = 150
_PLACES = ("left", "center", "right")  # of titles over axes
_METADATA = {"Software": None}  # matplotlib's own would change with its version
_ROUNDS = 2
"""Layouts of a figure: a second one knows the ticks that the first has made; a third changes
nothing that people see, and would take most of the time of every drawing."""


def shown_dpi() -> float:
    """Dots per inch of what a notebook shows: DPI, unless matplotlib's savefig.dpi is a number."""
    dpi = rcParams["savefig.dpi"]
    return DPI if dpi == "figure" else float(dpi)


def png_of(figure: Figure, dpi: float = DPI) -> bytes:
    """Any ``figure`` as a PNG file on white."""
    if isinstance(figure, Picture):
        return figure.to_png(dpi)
    out = io.BytesIO()
    figure.savefig(out, format="png", dpi=dpi, facecolor="white", metadata=_METADATA)
    return out.getvalue()


class Picture(Figure):
    """A matplotlib Figure outside pyplot: nothing to close, and never shown twice.

    Its axes get their places when it is drawn for the first time, and keep them.
    """

    def __init__(
        self,
        *args: Any,
        look: Callable[[], AbstractContextManager[None]] = nullcontext,
        **kwargs: Any,
    ) -> None:
        """A Figure of matplotlib's arguments; ``look()`` gives the settings it is drawn under."""
        super().__init__(*args, **{"facecolor": "white", "layout": "constrained", **kwargs})
        self._look = look
        self._rounds = 0
        FigureCanvasAgg(self)

    def __repr__(self) -> str:
        """What it shows, in words: its titles, what its axes are, and what its legends name."""
        titles = [self.get_suptitle(), *(a.get_title(at) for a in self.axes for at in _PLACES)]
        axes = [" against ".join(filter(None, (a.get_ylabel(), a.get_xlabel()))) for a in self.axes]
        named = [legend for a in self.axes if (legend := a.get_legend())]
        named += self.legends
        labels = [text.get_text() for legend in named for text in legend.get_texts()]
        parts = ("; ".join(dict.fromkeys(filter(None, part))) for part in (titles, axes, labels))
        words = " | ".join(part for part in parts if part)
        return f"Figure: {' '.join(words.split())}" if words else super().__repr__()

    def lay_out(self) -> None:
        """Give the axes their places, at a part of the cost of drawing.

        What the data's units measure is known then, so that words can be cut to their box.
        """
        with self._look():
            self.get_layout_engine().execute(self)
            for axes in self.axes:
                if axes.get_aspect() != "auto":
                    axes.apply_aspect()
        self._rounds += 1

    def draw(self, renderer: Any) -> None:
        # ticks are made when they are drawn, from the settings of that moment
        with self._look():
            self._settle()
            super().draw(renderer)

    def _settle(self) -> None:
        """The last places of all axes."""
        while self._rounds < _ROUNDS:
            self.lay_out()
        self.set_layout_engine("none")

    def to_png(self, dpi: float = DPI) -> bytes:
        """The figure as a PNG file, equal to the byte for equal data."""
        self._settle()
        out, before = io.BytesIO(), self.dpi
        canvas = FigureCanvasAgg(self)  # savefig would draw a figure with a layout twice
        self.dpi = dpi
        try:
            canvas.print_png(out, metadata=_METADATA)
        finally:
            self.dpi = before
        return out.getvalue()

    def _repr_png_(self) -> tuple[bytes, dict[str, int]]:
        # sharp on dense screens: more pixels than the width it is shown at
        return self.to_png(shown_dpi()), {"width": round(100 * self.get_figwidth())}
