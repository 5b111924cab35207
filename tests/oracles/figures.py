"""What the tests of figures share: the words that are really drawn, and what a figure shows."""

from itertools import pairwise
from unittest.mock import patch

import numpy as np
from matplotlib.collections import LineCollection
from matplotlib.text import Text


def drawn_texts(figure):
    """What is really drawn: a tick outside the axes' limits has a label, but nobody sees it."""
    drawn = {}
    draw = Text.draw

    def note(self, renderer, *args, **kwargs):
        if self.get_visible() and self.get_text().strip():
            drawn[self] = None
        return draw(self, renderer, *args, **kwargs)

    with patch.object(Text, "draw", note):
        figure.draw_without_rendering()
    return list(drawn)


def words(figure):
    """Every word of a figure or of a part of it that is not hidden."""
    found = figure.findobj(lambda a: isinstance(a, Text) and a.get_visible() and a.get_text())
    return [text.get_text() for text in found]


def clipped(figure, texts, by=0.0):
    """Those of ``texts`` that leave the picture by more than ``by`` pixels."""
    width, height = figure.canvas.get_width_height()
    low, high = _corners(texts)
    out = (low < -by).any(axis=1) | (high > np.array([width, height]) + by).any(axis=1)
    return [texts[i].get_text() for i in np.flatnonzero(out)]


def overlaps(texts):
    """Pairs of ``texts`` that lie upon each other by more than a pixel both ways."""
    low, high = _corners(texts)
    shared = np.minimum(high[:, None], high) - np.maximum(low[:, None], low)
    upon = np.argwhere(np.triu((shared > 1).all(axis=2), 1))
    return [(texts[i].get_text(), texts[j].get_text()) for i, j in upon]


def crossed(figure, texts):
    """(word, gid or label of a line) of those that a line runs through; one under the boxes of a
    figure cannot be seen there."""
    low, high = _corners(texts)
    found = []
    for axes in figure.axes:
        lines = [(line, line.get_transform().transform(line.get_xydata())) for line in axes.lines]
        for each in axes.collections:
            if isinstance(each, LineCollection) and each.get_gid():
                lines += [(each, axes.transData.transform(part)) for part in each.get_segments()]
        for line, points in lines:
            if line.get_linestyle() == "None" or line.get_zorder() < 2:
                continue
            # every pixel of its way, within the axes
            steps = [np.linspace(a, b, 2 + int(np.hypot(*(b - a)))) for a, b in pairwise(points)]
            way = np.concatenate([*steps, points[:1]])
            way = way[np.array([axes.bbox.contains(*at) for at in way], bool)]
            for i, text in enumerate(texts):
                inside = (way > low[i] + 1).all(axis=1) & (way < high[i] - 1).all(axis=1)
                if inside.any():
                    found.append((text.get_text(), line.get_gid() or line.get_label()))
    return found


def _corners(texts):
    """Lower left and upper right corners [n, 2], in pixels."""
    boxes = np.array([text.get_window_extent().extents for text in texts]).reshape(-1, 4)
    return boxes[:, :2], boxes[:, 2:]


def places(axes, gid):
    """x, y, width, height in data of the boxes and bars with this gid."""
    drawn = [each for each in axes.collections if each.get_gid() == gid]
    corners = [path.vertices for each in drawn for path in each.get_paths()]
    found = [(*c.min(axis=0).tolist(), *np.ptp(c, axis=0).tolist()) for c in corners]
    return found + [b.get_bbox().bounds for b in axes.patches if b.get_gid() == gid]
