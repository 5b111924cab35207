"""A Figure that draws itself in a notebook without pyplot, and is the same file every time; and one
that is drawn again when the reader moves a slider.
"""

import base64
import io
import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import product
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from tiledask.extras import needed_for
from tiledask.plan import html

__all__ = ["Picture", "sliders"]

_DPI = 150
FRAMES = "TILEDASK_FRAMES"
"""The most figures of sliders for a page that has no Python; unset in a notebook."""
_METADATA = {"Software": None}  # matplotlib's own would change with its version
_ROUNDS = 2
"""Layouts of a figure: a second knows the ticks that the first made; a third changes nothing."""


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

    def subplots(self, *args: Any, **kwargs: Any) -> Any:
        with self._look():
            return super().subplots(*args, **kwargs)

    def lay_out(self) -> None:
        """Give the axes their places, at a part of drawing's cost: words are then cut to boxes."""
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
        return self.to_png(), {"width": round(100 * self.get_figwidth())}  # sharp on dense screens


def sliders(
    draw: Callable[..., Any], start: Mapping[str, Any] | None = None, /, **choices: Sequence[Any]
) -> Any:
    """``draw(**values)``, a figure of td.plots, with a slider for each of ``choices``, a list where
    they are words; drawn again while one is moved.

    ``start`` has the values to begin with, where they are not the first. What ``draw`` refuses is
    said in place of the figure. It is a box of ipywidgets, for a notebook.

    >>> import tiledask as td
    >>> def idle(m):
    ...     return td.plots.gantt(td.simulate(td.schedule("1f1b", 4, m)))
    >>> sliders(idle, {"m": 8}, m=[1, 2, 4, 8]).children[0].value
    8
    """
    begun = {name: values[0] for name, values in choices.items()} | dict(start or {})

    def drawn(values: Mapping[str, Any]) -> tuple[bytes, int, str]:
        """(the figure as PNG, its width, "") or (nothing, 0, why such a choice is refused)."""
        try:
            png, size = draw(**values)._repr_png_()
            return png, size["width"], ""
        except (ValueError, MemoryError, ArithmeticError) as error:
            return b"", 0, str(error)

    if FRAMES in os.environ:
        from IPython.display import HTML

        return HTML(_page(drawn, begun, choices))
    with needed_for("sliders"):
        import ipywidgets

    image, words = ipywidgets.Image(format="png", layout={"max_width": "100%"}), ipywidgets.HTML()
    moved = {
        name: (ipywidgets.Dropdown if isinstance(values[0], str) else ipywidgets.SelectionSlider)(
            options=[(f"{value}", value) for value in values], value=begun[name], description=name
        )
        for name, values in choices.items()
    }

    def again(_: Any = None) -> None:
        png, width, why = drawn({name: slider.value for name, slider in moved.items()})
        words.value = html.words(why)
        if png:
            image.value, image.layout.width = png, f"{width}px"
        image.layout.visibility = "visible" if png else "hidden"

    for slider in moved.values():
        slider.observe(again, "value")
        slider.layout.width = "min(100%, 520px)"
    again()
    return ipywidgets.VBox([*moved.values(), words, image])


def _page(drawn: Callable[[Any], Any], start: Mapping[str, Any], choices: Mapping[str, Any]) -> str:
    """All that sliders can show, the last of ``choices`` changing first, for a script of the page;
    no figure where they would be too many."""

    def small(png: bytes) -> str:
        out = io.BytesIO()
        if png:
            Image.open(io.BytesIO(png)).save(out, "webp", lossless=True)
        return base64.b64encode(out.getvalue()).decode()

    every = [dict(zip(choices, values, strict=True)) for values in product(*choices.values())]
    figures = map(drawn, every if len(every) <= int(os.environ[FRAMES]) else [])
    data = {
        "choices": {name: list(map(str, values)) for name, values in choices.items()},
        "start": [list(values).index(start[name]) for name, values in choices.items()],
        "frames": [[small(png), width, why] for png, width, why in figures],
    }
    text = json.dumps(data).replace("<", r"\u003c")
    return f"<script type='application/json' class='tiledask-frames'>{text}</script>"
