"""Two levels, one figure: intensity follows the tile, bytes between workers follow the blocking."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tiledask.errors import ConfigError
from tiledask.lab.plots.style import PALETTE, canvas, styled
from tiledask.plan.units import format_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["intensity"]

Table = Sequence[Sequence[float]]


@styled
def intensity(
    tiles: Sequence[str],
    blockings: Sequence[str],
    flop_per_byte: Table,
    bytes_moved: Table,
    *,
    title: str | None = None,
) -> "Figure":
    """A figure of every tile with every blocking; bars of a group that are equally high show
    that the other level makes no difference.

    ``flop_per_byte`` and ``bytes_moved`` are [tile][blocking]: the tile's arithmetic intensity,
    and the bytes between workers.
    """
    rows, columns = len(tiles), len(blockings)
    for name, table in (("flop_per_byte", flop_per_byte), ("bytes_moved", bytes_moved)):
        if not rows or not columns or len(table) != rows or any(len(r) != columns for r in table):
            raise ConfigError(
                f"{name} has one row per tile and one column per blocking: {rows} x {columns}, got "
                f"rows of {[len(row) for row in table]}; give every tile a value for every blocking"
            )
    same = _same(flop_per_byte), _same(_turned(bytes_moved))
    figure = canvas(3.9, title or f"The two levels are {'' if all(same) else 'not '}independent")
    left, right = figure.subplots(1, 2)
    _groups(left, tiles, blockings, flop_per_byte, lambda v: f"{v:.4g}", PALETTE)
    _groups(right, blockings, tiles, _turned(bytes_moved), format_bytes, PALETTE[4:])
    left.set_title(f"Intensity of a tile: {_finding(same[0], 'blocking')}")
    right.set_title(f"Between workers: {_finding(same[1], 'tile')}")
    left.set_xlabel("tile")
    left.set_ylabel("arithmetic intensity (FLOP/byte)")
    right.set_xlabel("blocking")
    right.set_ylabel("bytes between workers")
    right.yaxis.set_major_formatter(lambda size, _: format_bytes(size) if size else "0")
    left.legend(title="blocking", loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=4)
    right.legend(title="tile", loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=4)
    return figure


def _turned(table: Table) -> Table:
    return list(zip(*table, strict=True))


def _same(table: Table) -> bool:
    """Whether every group's bars are equally high."""
    return all(len(set(row)) == 1 for row in table)


def _finding(same: bool, other: str) -> str:
    return f"same for every {other}" if same else f"differs by {other}"


def _groups(
    axes: "Axes",
    groups: Sequence[str],
    series: Sequence[str],
    table: Table,
    words: Callable[[float], str],
    colours: Sequence[str],
) -> None:
    """Bars [group][series], with one number over a group whose bars are equal."""
    width = 0.8 / len(series)
    for s, name in enumerate(series):
        xs = [g + (s - (len(series) - 1) / 2) * width for g in range(len(groups))]
        axes.bar(
            xs, [row[s] for row in table], 0.92 * width, color=colours[s % len(colours)], label=name
        )
    for g, row in enumerate(table):
        # one value where all are the same; else the range, to the last digit where it must be
        low, high = min(row), max(row)
        if low == high:
            label = words(low)
        else:
            short = words(low), words(high)
            label = " to ".join(short if short[0] != short[1] else (f"{low:,}", f"{high:,}"))
        axes.annotate(
            label,
            (g, max(row)),
            (0, 3),
            textcoords="offset points",
            ha="center",
            va="bottom",
            fontsize=8.5,
        )
    axes.set_xticks(range(len(groups)), groups)
    axes.set_ylim(0, 1.12 * max(max(row) for row in table) or 1)
    axes.tick_params(axis="x", length=0)
