"""The arc of the course as a picture: a box for each walkthrough, a line to what it builds on.

00 ---- 03 -+- 05
            +- 07
14 ---- 16 -+- 20 --- 22
"""

from collections.abc import Mapping, Sequence

from tiledask.lab.learner.course import Walkthrough
from tiledask.lab.plots.style import BLUE, GREY
from tiledask.plan import html

__all__ = ["arc"]

_BOX, _GAP, _LINE, _ROW = 170, 34, 30, 40
"""Pixels: a box and what is between two, its height, and from row to row."""
_TODO = "#5C6670"


def arc(walkthroughs: Sequence[Walkthrough], made: Mapping[str, int]) -> str:
    """The picture as SVG; each box is filled in proportion to the predictions ``made`` in it.

    All words are white in boxes, and lines are of a middle grey: it can be read on white and on
    dark pages.
    """
    there = {each.name: each for each in walkthroughs}
    column: dict[str, int] = {}
    needs: dict[str, list[str]] = {}
    behind: dict[str, set[str]] = {}  # all that one builds on, directly or not
    for name, each in there.items():  # in order, so what one builds on comes before it
        before = [n for n in each.needs if n in column]
        known = set().union(*(behind[n] for n in before))
        needs[name] = [n for n in before if n not in known]
        behind[name] = known.union(before)
        column[name] = 1 + max((column[n] for n in before), default=-1)
    # the last of those that are furthest to the right is followed, the others are only lines
    trunk = {
        name: max(before, key=lambda n: (column[n], n)) for name, before in needs.items() if before
    }
    row: dict[str, float] = {}

    def place(name: str, free: int) -> int:
        """The next free row, once ``name`` and all behind it have theirs from ``free`` on."""
        begun = free
        for follower in [n for n in there if trunk.get(n) == name]:
            free = place(follower, free)
        free = max(free, begun + 1)
        row[name] = (begun + free - 1) / 2
        return free

    rows = 0
    for name in there:
        if name not in trunk:
            rows = place(name, rows)
    x = {name: 1 + column[name] * (_BOX + _GAP) for name in there}
    y = {name: 1 + row[name] * _ROW for name in there}
    lines = [
        _curve(x[before] + _BOX, y[before], x[name], y[name], trunk.get(name) == before)
        for name in there
        for before in needs[name]
    ]
    boxes = [
        _box(each, x[name], y[name], made.get(name, 0) / max(1, each.asked))
        for name, each in there.items()
    ]
    width = 2 + (1 + max(column.values(), default=0)) * (_BOX + _GAP) - _GAP
    height = 2 + max(1, rows) * _ROW - (_ROW - _LINE)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="system-ui, sans-serif" font-size="12">'
        f"<title>Which walkthrough builds on which</title>\n{''.join([*lines, *boxes])}</svg>\n"
    )


def _curve(x: float, y: float, to_x: float, to_y: float, solid: bool) -> str:
    """From box to box: straight on, and in the last gap over to the other's row."""
    bend, middle = to_x - _GAP, to_x - _GAP / 2
    y, to_y = y + _LINE / 2, to_y + _LINE / 2
    dashes = "" if solid else ' stroke-dasharray="4 4"'
    return (
        f'<path d="M{x:g} {y:g}H{bend:g}C{middle:g} {y:g} {middle:g} {to_y:g} {to_x:g} {to_y:g}" '
        f'fill="none" stroke="{GREY}" stroke-width="1.6"{dashes}/>\n'
    )


def _box(each: Walkthrough, x: float, y: float, done: float) -> str:
    size = f'x="{x:g}" y="{y:g}" height="{_LINE}" rx="5"'
    filled = f'<rect {size} width="{_BOX * min(1.0, done):.0f}" fill="{BLUE}"/>' if done else ""
    return (
        f'<rect {size} width="{_BOX}" fill="{_TODO}"/>{filled}'
        f'<text x="{x + 8:g}" y="{y + 20:g}" fill="#FFFFFF"><tspan font-weight="bold">'
        f"{html.words(each.number)}</tspan> {html.words(each.words)}</text>\n"
    )
