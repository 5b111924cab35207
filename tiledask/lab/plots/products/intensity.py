"""Two levels, one figure: intensity follows the tile, bytes between workers follow the mesh."""

from collections.abc import Callable, Sequence

from tiledask.errors import ConfigError
from tiledask.lab.plots import primitives as draw
from tiledask.lab.plots.primitives import Axes, Figure
from tiledask.lab.plots.style import GREY, PALETTE, canvas, styled
from tiledask.plan.units import format_bytes

__all__ = ["intensity"]

Table = Sequence[Sequence[float]]


@styled
def intensity(
    tiles: Sequence[str],
    meshes: Sequence[str],
    flop_per_byte: Table,
    bytes_moved: Table,
    *,
    title: str | None = None,
) -> "Figure":
    """A figure of every tile on every mesh; bars of a group that are equally high show
    that the other level makes no difference.

    ``flop_per_byte`` and ``bytes_moved`` are [tile][mesh]: the tile's arithmetic intensity,
    and the bytes between workers.
    """
    rows, columns = len(tiles), len(meshes)
    for name, table in (("flop_per_byte", flop_per_byte), ("bytes_moved", bytes_moved)):
        if not rows or not columns or len(table) != rows or any(len(r) != columns for r in table):
            raise ConfigError(
                f"{name} has one row per tile and one column per mesh: {rows} x {columns}, got "
                f"rows of {[len(row) for row in table]}; give every tile a value for every mesh"
            )
    moved = list(zip(*bytes_moved, strict=True))
    # whether every group's bars are equally high
    same = [all(len(set(row)) == 1 for row in table) for table in (flop_per_byte, moved)]
    figure = canvas(3.9, title or f"The two levels are {'' if all(same) else 'not '}independent")
    left, right = figure.subplots(1, 2)
    _groups(left, tiles, meshes, flop_per_byte, lambda v: f"{v:.4g}", PALETTE)
    _groups(right, meshes, tiles, moved, format_bytes, PALETTE[4:])
    found = [("same for every" if equal else "differs by") for equal in same]
    left.set_title(f"Intensity of a tile: {found[0]} mesh")
    right.set_title(f"Between workers: {found[1]} tile")
    left.set(xlabel="tile", ylabel="arithmetic intensity (FLOP/byte)")
    right.set(xlabel="mesh", ylabel="bytes between workers")
    draw.byte_ticks(right.yaxis)
    draw.legend_under(left, 4, title="mesh")
    draw.legend_under(right, 4, title="tile")
    return figure


def _groups(
    axes: "Axes",
    groups: Sequence[str],
    series: Sequence[str],
    table: Table,
    words: Callable[[float], str],
    colours: Sequence[str],
) -> None:
    """Bars [group][series], with one number over a group whose bars are equal."""
    draw.grouped_bars(axes, list(zip(series, zip(*table, strict=True), strict=True)), colours)
    for g, row in enumerate(table):
        # one value where all are the same; else the range, to the last digit where it must be
        low, high = min(row), max(row)
        if low == high:
            label = words(low)
            draw.curve(axes, [g - 0.36, g + 0.36], [1.015 * high] * 2, GREY, 1.0)
        else:
            short = words(low), words(high)
            label = " to ".join(short if short[0] != short[1] else (f"{low:,}", f"{high:,}"))
        draw.note(axes, (g, high), label, (0, 3))
    axes.set_xticks(range(len(groups)), groups)
    axes.set_ylim(0, 1.12 * max(map(max, table)) or 1)
    axes.tick_params(axis="x", length=0)
