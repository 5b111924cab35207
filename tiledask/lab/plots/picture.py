"""A Figure that draws itself in a notebook without pyplot, and is the same file every time."""

import io

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from tiledask.lab.plots.style import look

__all__ = ["DPI", "Picture", "png_of"]

DPI = 150


def png_of(figure: Figure, dpi: float = DPI) -> bytes:
    """Any ``figure`` as a PNG file on white."""
    out = io.BytesIO()
    # no metadata: matplotlib's own would change with its version
    figure.savefig(out, format="png", dpi=dpi, facecolor="white", metadata={"Software": None})
    return out.getvalue()


class Picture(Figure):
    """A matplotlib Figure outside pyplot: nothing to close, and never shown twice."""

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        FigureCanvasAgg(self)

    def draw(self, renderer) -> None:
        # ticks are made when they are drawn, from the settings of that moment
        with look():
            super().draw(renderer)

    def to_png(self, dpi: float = DPI) -> bytes:
        """The figure as a PNG file, equal to the byte for equal data."""
        return png_of(self, dpi)

    def _repr_png_(self) -> tuple[bytes, dict[str, int]]:
        # sharp on dense screens: more pixels than the width it is shown at
        return self.to_png(), {"width": round(100 * self.get_figwidth())}
