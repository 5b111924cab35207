"""Digits drawn with a pen: strokes as lines through points, tilted, stretched, moved and inked.

a point's ink = 1 within the pen's radius of a stroke, 0 a pixel further, a ramp between
"""

from collections.abc import Iterator
from math import cos, pi, sin

import numpy as np

from tiledask.tile.layers.rng import key, positions, uniforms

__all__ = ["digit"]

SIDE = 28
Points = list[tuple[float, float]]


def _arc(x: float, y: float, width: float, height: float, start: float, stop: float) -> Points:
    """Points of an ellipse; 0 is to the right, 0.25 below, in turns."""
    turns = np.linspace(start, stop, 13) * 2 * pi
    return [(x + width * cos(t), y + height * sin(t)) for t in turns]


_STROKES: dict[int, list[Points]] = {
    0: [_arc(0.5, 0.5, 0.3, 0.45, 0, 1)],
    1: [[(0.3, 0.25), (0.55, 0.05), (0.55, 0.95)]],
    2: [[*_arc(0.5, 0.3, 0.28, 0.25, -0.5, 0.1), (0.2, 0.95), (0.82, 0.95)]],
    3: [_arc(0.45, 0.28, 0.28, 0.23, -0.4, 0.25), _arc(0.45, 0.73, 0.32, 0.23, -0.25, 0.42)],
    4: [[(0.62, 0.95), (0.62, 0.05), (0.18, 0.65), (0.85, 0.65)]],
    5: [[(0.78, 0.05), (0.28, 0.05), (0.25, 0.45), *_arc(0.47, 0.68, 0.3, 0.27, -0.3, 0.4)]],
    6: [[(0.68, 0.05), (0.35, 0.35), (0.22, 0.7)], _arc(0.5, 0.7, 0.28, 0.25, 0, 1)],
    7: [[(0.2, 0.05), (0.8, 0.05), (0.4, 0.95)]],
    8: [_arc(0.5, 0.27, 0.23, 0.22, 0, 1), _arc(0.5, 0.72, 0.3, 0.24, 0, 1)],
    9: [_arc(0.5, 0.3, 0.27, 0.25, 0, 1), [(0.77, 0.3), (0.72, 0.6), (0.5, 0.95)]],
}


def digit(label: int, number: int, seed: int = 0) -> np.ndarray:
    """[28, 28] uint8: the ``number``-th picture of a digit, ink 255 on paper 0.

    >>> picture = digit(7, number=0)
    >>> picture.shape, int(picture.max())
    ((28, 28), 255)
    """
    stream: Iterator[float] = iter(
        uniforms(key(seed, "strokes", label, number), positions((64,))).tolist()
    )

    def drawn(low: float, high: float) -> float:
        return low + (high - low) * next(stream)

    turn, lean = drawn(-0.3, 0.3), drawn(-0.35, 0.35)
    wide, high = drawn(0.55, 0.85) * SIDE, drawn(0.65, 0.85) * SIDE
    right, down = drawn(-2.5, 2.5), drawn(-2, 2)
    radius = drawn(0.7, 1.7)
    ink = np.zeros((SIDE, SIDE))
    for stroke in _STROKES[label]:
        points = np.array(stroke) - 0.5
        points[:, 0] += drawn(-0.05, 0.05) - lean * points[:, 1]
        points *= (wide, high)
        rotated = points @ np.array([[cos(turn), sin(turn)], [-sin(turn), cos(turn)]])
        ink = np.maximum(ink, _inked(rotated + SIDE / 2 + (right, down), radius))
    return np.rint(255 * ink).astype(np.uint8)


def _inked(points: np.ndarray, radius: float) -> np.ndarray:
    """[28, 28] from 0 to 1: how much of each pixel the lines through the points cover."""
    at = np.stack(np.meshgrid(*[np.arange(SIDE) + 0.5] * 2), axis=-1)  # [row, column, (x, y)]
    start, along = points[:-1], np.diff(points, axis=0)
    to = at[:, :, None] - start
    share = (to * along).sum(-1) / np.maximum((along * along).sum(-1), 1e-12)
    away = to - np.clip(share, 0, 1)[..., None] * along
    distance = np.sqrt((away * away).sum(-1)).min(-1)
    ink: np.ndarray = np.clip(radius + 0.5 - distance, 0, 1)
    return ink
