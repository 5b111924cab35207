"""Figures of one product, panel by panel: who reads from whom, and when.

reads(plans)         planned    step by step, an arrow from a block's owner to its reader
panels(products)     measured   a lane for each rank: multiplying, waiting, summing, reading
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tiledask.errors import ConfigError
from tiledask.lab.plots import primitives as draw
from tiledask.lab.plots.primitives import Axes, Figure
from tiledask.lab.plots.style import (
    BLUE,
    ORANGE,
    PALE,
    PALETTE,
    WIDTH,
    canvas,
    colour_named,
    lighter,
    styled,
)
from tiledask.plan.products.comms import Piece
from tiledask.plan.products.product_plan import ProductPlan
from tiledask.plan.units import format_seconds

if TYPE_CHECKING:
    from tiledask.distributed.arrays.array import ShardedArray
    from tiledask.distributed.products.matmul import Spent

__all__ = ["panels", "reads"]

# -- measured ------------------------------------------------------------------------------------

_LANE = {kind: colour_named(kind) for kind in ("multiply", "wait", "sum")}
_READ = colour_named("read")  # red, as Dask draws transfers over a task
_TALL, _THIN = 0.5, 0.2
"""Of a lane and of the reads below it, in rows."""


@styled
def panels(
    products: "Mapping[str, ShardedArray]", *, title: str = "Where each rank's time went"
) -> "Figure":
    """A figure with one panel per product, a lane per rank, and all on one time axis.

    ``products``: name -> what td.matmul returned. Time 0 is when the first rank of a product
    begins; what Dask takes before that and after is not drawn.
    """
    if not products:
        raise ConfigError("panels draws 1 product or more, got 0; pass {'SUMMA': td.matmul(...)}")
    for name, product in products.items():
        if not any(spent.spans for spent in product.spent):
            raise ConfigError(
                f"{name!r} was made by {product.made_by or 'nothing'} and has 0 spans of time; "
                f"panels draws what td.matmul returns"
            )
    rows = [len(product.spent) for product in products.values()]
    figure = canvas(1.3 + sum(0.45 + 0.36 * n for n in rows), title)
    axes = draw.stacked_axes(figure, rows, sharex=True)
    for panel, (name, product) in zip(axes, products.items(), strict=True):
        _lanes(panel, name, product.spent)
    end = max(_ends(product.spent)[1] for product in products.values())
    draw.time_ticks(axes[-1], 0, end)
    legend = draw.legend(figure, _entries_of_lanes(products))
    figure.lay_out()
    for panel, product in zip(axes, products.values(), strict=True):
        for rank in range(len(product.spent)):
            mine = [box for box in _boxes(product.spent, "multiply") if box[1] == rank - 0.36]
            for step, box in enumerate(mine):
                draw.fitting_text(panel, box, str(step), _LANE["multiply"])
    if not any(panel.texts for panel in axes):  # then nothing explains numbers
        legend.legend_handles[-1].set_visible(False)
        legend.get_texts()[-1].set_visible(False)
    return figure


def _ends(spent: "Sequence[Spent]") -> tuple[float, float]:
    """(when the first rank begins, seconds from there until the last one is done)."""
    spans = [span for rank in spent for span in rank.spans]
    first = min(span.start for span in spans)
    return first, max(span.stop for span in spans) - first


def _boxes(spent: "Sequence[Spent]", kind: str) -> list[draw.Box]:
    """(x, y, width, height) of every span of ``kind``."""
    first, _ = _ends(spent)
    top, height = (0.22, _THIN) if kind == "read" else (-0.36, _TALL)
    return [
        (span.start - first, rank + top, span.stop - span.start, height)
        for rank, mine in enumerate(spent)
        for span in mine.spans
        if span.kind == kind
    ]


def _lanes(axes: "Axes", name: str, spent: "Sequence[Spent]") -> None:
    _, seconds = _ends(spent)
    share = sum(rank.multiply for rank in spent) / (len(spent) * seconds) if seconds else 0.0
    axes.set_title(
        f"{name}: {100 * share:.0f} % of the ranks' time is multiplying, done after "
        f"{format_seconds(seconds)}"
    )
    ranks = range(len(spent))
    axes.barh(ranks, seconds, 0.78, color=PALE, gid="rest", zorder=1)
    for kind, colour in (*_LANE.items(), ("read", _READ)):
        edge = "white" if kind == "multiply" else colour  # a short wait would be all white edge
        draw.boxes(axes, _boxes(spent, kind), facecolor=colour, edgecolor=edge, gid=kind)
    draw.lanes(axes, [f"rank {rank}" for rank in ranks])


def _entries_of_lanes(products: "Mapping[str, ShardedArray]") -> list:
    """The legend's, that of the numbers last."""
    words = {
        "multiply": "multiplying a panel",
        "wait": "waiting for a panel",
        "sum": "adding partial sums",
        "read": "below: reading from another rank",
    }
    kinds = {s.kind for product in products.values() for rank in product.spent for s in rank.spans}
    colours = _LANE | {"read": _READ}
    entries = [draw.patch_entry(words[kind], colours[kind]) for kind in words if kind in kinds]
    return [*entries, draw.patch_entry("none of these", PALE), draw.number_entry("the step")]


# -- planned -------------------------------------------------------------------------------------

_OPERANDS = {"A": BLUE, "B": ORANGE}
_STEPS = 4
"""Steps of a plan that are drawn."""


@styled
def reads(plans: Mapping[str, ProductPlan], *, title: str = "Who reads what from whom") -> "Figure":
    """A figure with a row per plan and a column per step: the ranks of its grid, and arrows.

    An arrow goes from the rank that owns a part of A or of B to the one that reads it. A rank's
    shade is the part of k that it multiplies in that step. On up to 3 columns of ranks, where there
    is room for it, the busiest say how many arrows leave them. Of plans with many steps the first
    4 are drawn.
    """
    if not plans:
        raise ConfigError("reads draws 1 plan or more, got 0; pass {'SUMMA': ProductPlan(...)}")
    for name, plan in plans.items():
        if len(plan.work.mesh) != 2:
            raise ConfigError(
                f"{name!r} is on a grid of {len(plan.work.mesh)} axes {plan.work.mesh}, reads "
                f"draws 2; plan it with summa or cannon"
            )
    steps = min(_STEPS, max(max(map(len, plan.panels)) for plan in plans.values()))
    drawn = [panel for plan in plans.values() for mine in plan.panels for panel in mine[:steps]]
    depths = sorted({panel.depth for panel in drawn})
    shades = {depth: lighter(_SHADES[i % len(_SHADES)], 0.72) for i, depth in enumerate(depths)}
    height = sum(plan.work.mesh[0] / plan.work.mesh[1] for plan in plans.values())
    columns = max(steps, 3)
    figure = canvas(0.9 + 0.3 * len(plans) + (WIDTH - 0.4) / columns * height, title)
    grid = figure.subplots(len(plans), columns, squeeze=False)
    for row, (name, plan) in zip(grid, plans.items(), strict=True):
        count = max(map(len, plan.panels))
        for step, axes in enumerate(row):
            if step >= min(count, steps):
                axes.set_axis_off()
                continue
            _step(axes, plan, step, shades)
            last = step == steps - 1 < count - 1
            axes.set_title(f"{name}, step {step}" + (f", {count - steps} more" if last else ""))
    draw.legend(
        figure,
        [
            *(draw.line_entry(f"a part of {a}, to its reader", _OPERANDS[a]) for a in _OPERANDS),
            *(draw.patch_entry(f"k {a} to {b}", shade) for (a, b), shade in shades.items()),
        ],
        5,
    )
    return figure


_SHADES = PALETTE[2:] + PALETTE[:2]  # not the colours of the arrows, as long as there are others


def _step(axes: "Axes", plan: ProductPlan, step: int, shades: Mapping) -> None:
    p, q = plan.work.mesh
    sent = Counter(
        (at, piece.source)
        for rank, mine in enumerate(plan.panels)
        for at, panel in enumerate(mine)
        for piece in (*panel.a, *panel.b)
        if piece.source != rank
    )
    most = max(sent.values(), default=0)
    for rank, mine in enumerate(plan.panels):
        i, j = divmod(rank, q)
        colour = shades[mine[step].depth] if step < len(mine) else "white"
        draw.box(axes, (j, i, 1, 1), colour, linewidth=2, gid="rank")
        axes.text(j + 0.08, i + 0.1, str(rank), va="top", fontsize=8)
        if q <= 3 and sent[step, rank] == most > 0:
            look = {"ha": "right", "va": "bottom", "fontsize": 8, "weight": "bold", "gid": "sends"}
            ground = {"facecolor": colour, "linewidth": 0, "pad": 0.6}  # arrows may pass below
            axes.text(j + 0.96, i + 0.95, f"sends {most}", bbox=ground, zorder=6, **look)
        if step < len(mine):
            for operand, pieces in (("A", mine[step].a), ("B", mine[step].b)):
                for piece in pieces:
                    if piece.source != rank:
                        _arrow(axes, piece, q, operand)
    axes.set(xlim=(0, q), ylim=(p, 0), aspect="equal")
    draw.bare(axes)


def _arrow(axes: "Axes", piece: Piece, columns: int, operand: str) -> None:
    (i, j), (to_i, to_j) = divmod(piece.source, columns), divmod(piece.destination, columns)
    ends = (j + 0.5, i + 0.55), (to_j + 0.5, to_i + 0.55)
    draw.arrow(axes, *ends, _OPERANDS[operand], gid=f"{operand} read")
