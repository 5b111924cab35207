"""What goes between the nodes of a cluster: by layout, a box for each node and lines between."""

from collections.abc import Iterator, Mapping, Sequence

from tiledask.errors import ConfigError
from tiledask.lab.plots import primitives as draw
from tiledask.lab.plots.planning.step_breakdown import PARTS
from tiledask.lab.plots.primitives import Figure
from tiledask.lab.plots.style import INK, PALE, PINK, canvas, styled
from tiledask.plan.inputs.layout import Layout

__all__ = ["between_nodes"]

Place = tuple[int, int, int]
"""Of a rank: its stage, its copy, its share of a layer."""
SENT = {
    "pp": "activations, and their gradients back (pp)",
    "dp": "gradients, once a step (dp)",
    "zero": "weights and gradients, under ZeRO-3 (dp)",
    "tp": "sums within each layer (tp)",
}
_AXES = ("pp", "dp", "tp")
_HIGH, _NAME, _GAP = 0.42, 0.3, 0.22
"""Inches of a node, of the name above a layout, and between two rows of nodes."""


@styled
def between_nodes(
    layouts: Mapping[str, Layout],
    per_node: int = 8,
    *,
    title: str = "What goes between nodes",
) -> "Figure":
    """A figure with the nodes of each layout as boxes that say what they hold, and a line between
    two that hold neighbours along an axis; along dp and tp these are rings. Ranks count along tp
    first, then dp, then pp.

    >>> len(between_nodes({"copies": Layout(dp=4, tp=8)}).axes)
    1
    """
    nodes = {name: _nodes(layout, per_node) for name, layout in layouts.items()}
    rows = {name: 1 + max(y for _, y in _spots(each)) for name, each in nodes.items()}
    total = sum(_NAME + n * (_HIGH + _GAP) for n in rows.values())
    lines = {name: [*_lines(layouts[name], nodes[name])] for name in layouts}
    kinds = [kind for kind in SENT if any(kind == k for each in lines.values() for k, *_ in each)]
    wide = 0.62 / (1 + max(x for each in nodes.values() for x, _ in _spots(each)))
    figure = canvas(0.75 + 0.2 * -(-len(kinds) // 2) + total, title)
    axes, top = figure.subplots(), 0.0
    draw.bare(axes)
    axes.set(xlim=(0, 1), ylim=(total, 0))
    for name, layout in layouts.items():
        draw.note(axes, (0, top + _NAME), name, (0, 4), ha="left")
        spots = _spots(nodes[name])
        middles, columns = _middles(spots, top + _NAME), 1 + max(x for x, _ in spots)
        for kind, a, b in lines[name]:
            (x, y), (u, v) = middles[a], middles[b]
            look = {"gid": kind, "zorder": 1}
            if abs(x - u) > 1.5 / columns:  # a ring goes back below the nodes between
                low = y + _HIGH / 2 + 0.09
                draw.curve(axes, (x, x, u, u), (y, low, low, v), _colour(kind), 4, **look)
            else:
                draw.curve(axes, (x, u), (y, v), _colour(kind), 4, **look)
        for (x, y), held in zip(middles, nodes[name], strict=True):
            box = (x - wide / 2, y - _HIGH / 2, wide, _HIGH)
            draw.box(axes, box, PALE, edgecolor=INK, linewidth=0.8, zorder=2)
            draw.text_in(axes, box, _words(held, layout), PALE, 8)
        top += _NAME + rows[name] * (_HIGH + _GAP)
    draw.legend(figure, [draw.line_entry(SENT[k], _colour(k), linewidth=4) for k in kinds], 2)
    return figure


def _nodes(layout: Layout, per_node: int) -> list[list[Place]]:
    """What each node holds."""
    ranks = [
        (p, d, t) for p in range(layout.pp) for d in range(layout.dp) for t in range(layout.tp)
    ]
    if len(ranks) <= per_node or len(ranks) % per_node:
        raise ConfigError(
            f"between_nodes draws layouts of several whole nodes of {per_node}; got one of "
            f"{len(ranks)} devices"
        )
    return [ranks[at : at + per_node] for at in range(0, len(ranks), per_node)]


def _spots(nodes: Sequence[Sequence[Place]]) -> list[tuple[int, int]]:
    """(column, row) of each node: an axis that leaves a node goes across, a second one down."""
    firsts = [held[0] for held in nodes]
    kinds = [sorted({first[axis] for first in firsts}) for axis in range(3)]
    several = [axis for axis in range(3) if len(kinds[axis]) > 1]
    if len(several) > 2:
        raise ConfigError("between_nodes draws two axes that leave a node at most, got three")
    across, down = [*several, *({0, 1, 2} - {*several})][:2]
    return [(kinds[across].index(f[across]), kinds[down].index(f[down])) for f in firsts]


def _middles(spots: list[tuple[int, int]], top: float) -> list[tuple[float, float]]:
    columns = 1 + max(x for x, _ in spots)
    pitch = _HIGH + _GAP
    return [((x + 0.5) / columns, top + _HIGH / 2 + y * pitch) for x, y in spots]


def _lines(layout: Layout, nodes: Sequence[Sequence[Place]]) -> Iterator[tuple[str, int, int]]:
    """(what is sent, node, node) for every two nodes that hold neighbours along an axis."""
    home = {place: node for node, held in enumerate(nodes) for place in held}
    seen = set()
    for axis, kind in enumerate(_AXES):
        if kind == "dp" and layout.zero == 3:
            kind = "zero"
        for place, node in home.items():
            p, d, t = (n + (axis == along) for along, n in enumerate(place))
            if kind != "pp":  # a ring
                d, t = d % layout.dp, t % layout.tp
            line = (kind, node, home.get((p, d, t), node))
            if line[1] != line[2] and not {line, (kind, line[2], node)} & seen:
                seen.add(line)
                yield line


def _words(held: Sequence[Place], layout: Layout) -> str:
    """What a node holds, of the axes that have more than one rank."""
    said = []
    sizes = (layout.pp, layout.dp, layout.tp)
    for axis, one, many in (
        (0, "stage", "stages"),
        (1, "copy", "copies"),
        (2, "tp rank", "tp ranks"),
    ):
        here = sorted({place[axis] for place in held})
        if sizes[axis] > 1 and len(here) < sizes[axis]:
            alone = len(here) == 1
            said.append(f"{one} {here[0]}" if alone else f"{many} {here[0]} to {here[-1]}")
    return "\n".join(said)


def _colour(kind: str) -> str:
    return PINK if kind == "zero" else PARTS[kind][0]
