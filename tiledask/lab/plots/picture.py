"""A Figure that draws itself in a notebook without pyplot, and is the same file every time."""

import io
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from matplotlib import rcParams
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

__all__ = ["Picture"]

_DPI = 150
_METADATA = {"Software": None}  # matplotlib's own would change with its version
_ROUNDS = 2
"""Layouts of a figure: a second one knows the ticks that the first has made; a third changes
nothing that people see, and would take most of the time of every drawing."""


class Picture(Figure):
    """A matplotlib Figure outside pyplot: nothing to close, and never shown twice.

    Its axes get their places when it is drawn for the first time, and keep them. Ticks are
    made when they are drawn, from the settings of that moment: so it brings its own.
    """

    def __init__(
        self, width: float, height: float, look: Callable[[], AbstractContextManager[None]]
    ) -> None:
        """An empty figure of so many inches, drawn under the settings of ``look``."""
        super().__init__(figsize=(width, height), facecolor="white", layout="constrained")
        self._look, self._rounds = look, 0
        FigureCanvasAgg(self)

    def __repr__(self) -> str:
        """What it shows, in words: its titles, what its axes are, and what its legends name."""
        every = self.axes
        titles = [
            self.get_suptitle(),
            *(a.get_title(at) for a in every for at in ("left", "center")),
        ]
        axes = [" against ".join(filter(None, (a.get_ylabel(), a.get_xlabel()))) for a in every]
        legends = [*filter(None, (a.get_legend() for a in every)), *self.legends]
        labels = [text.get_text() for legend in legends for text in legend.get_texts()]
        parts = ("; ".join(dict.fromkeys(filter(None, part))) for part in (titles, axes, labels))
        return " ".join(f"Figure: {' | '.join(filter(None, parts))}".split())

    def lay_out(self) -> None:
        """Give the axes their places, at a part of the cost of drawing.

        What the data's units measure is known then, so that words can be cut to their box.
        """
        with self._look():
            engine: Any = self.get_layout_engine()
            engine.execute(self)
            for axes in self.axes:
                if axes.get_aspect() != "auto":
                    axes.apply_aspect()
        self._rounds += 1

    def draw(self, renderer: Any) -> None:
        while self._rounds < _ROUNDS:
            self.lay_out()
        self.set_layout_engine("none")
        with self._look():
            super().draw(renderer)

    def to_png(self, dpi: float = _DPI) -> bytes:
        """The figure as a PNG file, equal to the byte for equal data."""
        out = io.BytesIO()
        canvas = FigureCanvasAgg(self)  # savefig would draw a figure with a layout twice
        before, self.dpi = self.dpi, dpi
        try:
            canvas.print_png(out, metadata=_METADATA)
        finally:
            self.dpi = before
        return out.getvalue()

    def _repr_png_(self) -> tuple[bytes, dict[str, int]]:
        # sharp on dense screens, unless matplotlib's savefig.dpi says: more pixels than it is wide
        dpi = rcParams["savefig.dpi"]
        width = round(100 * self.get_figwidth())
        return self.to_png(_DPI if dpi == "figure" else float(dpi)), {"width": width}
