"""Words at points: near, inside the axes, upon no other word and on as few lines as can be."""

from itertools import pairwise

import numpy as np

from tiledask.lab.plots.primitives import Axes, note
from tiledask.lab.plots.style import GREY

__all__ = ["dense", "place_words"]

_SIZE = 8
"""Points of a word."""


def place_words(axes: "Axes", marks: list[tuple[float, float, str]], avoid: list[tuple]) -> None:
    """Write each word near its point, inside the axes and on no other word; a thin line leads to
    one that is far. ``avoid``: (points [n, 2] in data, what it costs to cover one of them)."""
    marked = axes.transData.transform([(x, y) for x, y, _ in marks])
    dots = np.concatenate([axes.transData.transform(points) for points, _ in avoid])
    costs = np.concatenate([np.full(len(points), cost) for points, cost in avoid])
    inside, pixels = axes.get_window_extent(), axes.figure.dpi / 72
    taken: list[np.ndarray] = []
    for x, y, words in marks:
        middle = axes.transData.transform((x, y))
        sample = axes.text(x, y, words, fontsize=_SIZE)
        extent = sample.get_window_extent()
        sample.remove()

        def cost_of(offset, size=(extent.width, extent.height), middle=middle) -> float:
            x0, y0, x1, y1 = box = _box(middle, offset, size, pixels)
            if x0 < inside.x0 or y0 < inside.y0 or x1 > inside.x1 or y1 > inside.y1:
                return np.inf
            if any((box[:2] < o[2:]).all() and (o[:2] < box[2:]).all() for o in taken):
                return np.inf
            covered = ((box[:2] <= dots) & (dots <= box[2:])).all(axis=1)
            nearer = np.sum(_apart(box, marked) < _apart(box, middle) + 3 * pixels) - 1
            return float(round(np.hypot(*offset)) + costs[covered].sum() + 60 * nearer)

        offset = min(_OFFSETS, key=cost_of)
        if np.hypot(*offset) > 12:
            leader = {
                "arrowstyle": "-",
                "color": GREY,
                "linewidth": 0.7,
                "shrinkA": 0,
                "shrinkB": 4,
            }
            note(axes, (x, y), "", offset, arrowprops=leader)
        note(axes, (x, y), words, offset, _SIZE)
        taken.append(_box(middle, offset, (extent.width, extent.height), pixels))


_OFFSETS = [
    (round(far * np.cos(angle), 9), round(far * np.sin(angle), 9))
    for far in (9, 16, 25, 35, 48, 65, 85)
    for angle in np.linspace(0, 2 * np.pi, 24, endpoint=False)
]
"""Points from a mark to the nearest edge of its word."""


def _box(middle, offset, size, pixels: float) -> np.ndarray:
    """(x0, y0, x1, y1) in pixels of a word of that size, with a margin."""
    # the word goes away from its mark, as a note does
    low = middle + pixels * np.array(offset) - (1 - np.sign(offset)) / 2 * size
    return np.array([*(low - (3, 2)), *(low + size + (3, 2))])


def _apart(box: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Pixels from the box to each of the points [..., 2]."""
    return np.hypot(*np.maximum(0, np.maximum(box[:2] - points, points - box[2:])).T)


def dense(line: np.ndarray) -> np.ndarray:
    """Points along ``line`` [n, 2] close enough that no word slips between two."""
    share = np.linspace(0, 1, 24)[:, None]
    return np.concatenate([line, *(a + share * (b - a) for a, b in pairwise(line))])
