"""The look that all figures and pages share: colours, sizes, and text that fits its box."""

import colorsys
import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from textwrap import fill
from typing import TYPE_CHECKING, Any
from zlib import crc32

from tiledask.extras import needed_for

if TYPE_CHECKING:
    from tiledask.lab.plots.picture import Picture

# Okabe and Ito's colours, told apart with every common kind of colour blindness:
# https://jfly.uni-koeln.de/color/
BLUE, ORANGE, GREEN, PINK = "#0072B2", "#E69F00", "#009E73", "#CC79A7"
SKY, RED, YELLOW = "#56B4E9", "#D55E00", "#F0E442"
PALETTE = (BLUE, ORANGE, GREEN, PINK, SKY, YELLOW, RED, "#8C6D31", "#999999", "#5254A3")
INK, GREY, PALE = "#222222", "#767676", "#E9E9E9"

_OWN = {
    "forward": BLUE, "backward": ORANGE, "backward_input": YELLOW, "backward_weight": GREEN,
    "update": "#8FA3AD", "multiply": SKY, "sum": "#66C5AB", "wait": "#F6EF8E", "read": RED,
    "load": "#00674B", "hand": "#EDD0E0", "result": "#F6DDA6", "pipeline_loop": "#66AAD1",
    "to_make_again": "#C5CBD3",
}  # fmt: skip
"""What the package's tasks and lanes are called -> their colours."""

WIDTH = 6.4
"""Inches, of 100 pixels: a notebook's column beside the dashboard's page on a small screen."""

_RC = {
    "font.family": "DejaVu Sans",  # ships with matplotlib, so every machine draws the same
    "font.size": 9.0,
    "axes.titlesize": 9.5,
    "axes.titlelocation": "left",
    "axes.edgecolor": GREY,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": INK,
    "ytick.color": INK,
    "text.color": INK,
    "legend.frameon": False,
    "legend.handlelength": 1.4,
    "legend.columnspacing": 1.6,
    "hatch.linewidth": 0.7,
    "grid.color": PALE,
    "axes.axisbelow": True,
}


def look() -> AbstractContextManager[None]:
    """The settings of this look, for as long as the context lasts."""
    with needed_for("a figure"):
        import matplotlib.style

    return matplotlib.style.context(["default", _RC])


def styled(draw: Callable[..., "Picture"]) -> Callable[..., "Picture"]:
    """``draw`` run under this look, whatever the user's own matplotlib settings are."""

    @functools.wraps(draw)
    def wrapper(*args: Any, **kwargs: Any) -> "Picture":
        with look():
            return draw(*args, **kwargs)

    return wrapper


def canvas(height: float, title: str, width: float = WIDTH) -> "Picture":
    """An empty figure of ``width`` x ``height`` inches with its title at the left."""
    with needed_for("a figure"):
        from tiledask.lab.plots.picture import Picture

    figure = Picture(width, height, look)
    engine: Any = figure.get_layout_engine()
    engine.set(w_pad=0.08, h_pad=0.06)
    lines = [fill(line, int(11 * width)) for line in title.split("\n")]
    figure.suptitle("\n".join(lines), x=0.01, ha="left", fontsize=11, fontweight="bold")
    return figure


# -- colours -------------------------------------------------------------------------------------


def lighter(colour: str, share: float) -> tuple[float, float, float]:
    """``colour`` mixed with ``share`` of white."""
    red, green, blue = (c + (1 - c) * share for c in _rgb(colour))
    return red, green, blue


def colour_of_rank(rank: int, share: float = 0.0) -> tuple[float, float, float]:
    """A colour per rank or device, mixed with ``share`` of white."""
    return lighter(PALETTE[rank % len(PALETTE)], share)


def colour_named(name: str) -> str:
    """ "#rrggbb" of what is called ``name``, a task or a lane, in every figure and on every page.

    Some names of the package have a colour of their own. Any other has one that is always the same,
    neither very dark nor very pale, and muted; two such names may share it.

    >>> colour_named("forward") == BLUE, colour_named("inc") == colour_named("inc")
    (True, True)
    """
    number = crc32(name.encode())
    lightness = (0.42, 0.56, 0.7)[number // 360 % 3]
    return _OWN.get(name) or as_hex(colorsys.hls_to_rgb(number % 360 / 360, lightness, 0.45))


def as_hex(colour: Any) -> str:
    """ "#rrggbb" of that, or of shares of red, green and blue."""
    return "#" + "".join(f"{round(255 * c):02X}" for c in _rgb(colour))


def _rgb(colour: Any) -> tuple[float, ...]:
    # without matplotlib: the page in the dashboard is drawn by the scheduler
    if isinstance(colour, str):
        return tuple(int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    return tuple(colour)[:3]


def ink_on(colour: Any) -> str:
    """Black or white, whichever has more contrast with ``colour`` (WCAG 2 luminance)."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in _rgb(colour)]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return "white" if 1.05 / (luminance + 0.05) > (luminance + 0.05) / 0.05 else "black"
