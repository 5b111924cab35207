"""Tables of the bench of tiles, in 80 columns: products, layouts, the ladder, two levels."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rich import box
from rich.table import Table

from tiledask.lab.bench.tiles.device import device_of
from tiledask.lab.bench.tiles.goals import GOALS, TWO_LEVEL, predictions
from tiledask.lab.bench.tiles.rounds import ratio
from tiledask.lab.bench.tiles.two_level import ALONE
from tiledask.lab.bench.tiles.ways import AGAIN, library
from tiledask.plan.judged import MARKS
from tiledask.plan.units import format_seconds
from tiledask.tile.choice import predict

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["figure", "ladder_table", "layouts_table", "product_table", "two_level_table"]

Row = dict[str, Any]


def _table(title: str, columns: Sequence[str], wraps: str = "bound by") -> Table:
    look = {"box": box.SIMPLE_HEAD, "pad_edge": False, "padding": (0, 1, 0, 0)}
    table = Table(title=title, title_justify="left", **look)
    for name in columns:
        left = name in ("", "kernel", "A", "B", wraps)
        table.add_column(name, justify="left" if left else "right", no_wrap=name != wraps)
    return table


def product_table(rows: Sequence[Row], arrays: str) -> Table:
    """The table of one product: a row per contender, beside the library."""
    timed = [row for row in rows if row["state"] == "timed"]
    base = next((row for row in timed if row["way"] == library(arrays)), None)
    rounds = f", medians of {timed[0]['rounds']} rounds" if timed else ""
    title = f"{rows[0]['work']}{_mark(arrays)}{rounds}; ratio: speed / {library(arrays)}'s"
    heads = ("", "time", "from, to %", _UNIT[arrays], "ratio", "quartiles", "goal")
    table = _table(title, heads)
    for row in rows:
        if row["state"] != "timed":
            table.add_row(row["way"], row["state"], *[""] * 5)
            continue
        found = ratio(row, base) if base else {}
        table.add_row(
            row["way"],
            format_seconds(row["median"]),
            _around(row),
            _speed(row, arrays),
            _ratio(found["ratio"]) if base else "-",
            " ".join(_ratio(found[f"{end} quartile"]) for end in ENDS) if base else "-",
            _goal(row, base, library(arrays)),
        )
    return table


ENDS = ("lower", "upper")
_UNIT = {"cupy": "TFLOP/s", "numpy": "GFLOP/s"}


def _mark(arrays: str) -> str:
    return " on a CPU" if arrays == "numpy" else ""


def _around(row: Row) -> str:
    """The fastest and the slowest beside the median, in percent of it; from double on as times."""
    both = [100 * (row[end] / row["median"] - 1) for end in ("min", "max")]
    digits = 1 if max(map(abs, both)) < 9.95 else 0
    return " ".join(f"{x:+.{digits}f}" if x < 100 else f"×{1 + x / 100:.0f}" for x in both)


def _ratio(value: float) -> str:
    return f"{value:.3f}" if value < 10 else f"{value:.0f}"


def _speed(row: Row, arrays: str) -> str:
    return _flops(row["TFLOP/s"] * 1e12, arrays)


def _flops(speed: float, arrays: str) -> str:
    value = speed / {"TFLOP/s": 1e12, "GFLOP/s": 1e9}[_UNIT[arrays]]
    return f"{value:.4g}" if value < 1000 else f"{value:.0f}"


def _goal(row: Row, base: Row | None, theirs: str) -> str:
    if row["way"].endswith(AGAIN):
        return "noise"
    wanted = [
        goal.wanted
        for goal in GOALS
        if (goal.ours, goal.theirs, goal.precision) == (row["way"], theirs, row["precision"])
        and row["orders"] == "CC"
        and not goal.stretch
    ]
    if not wanted or not base:
        return ""
    return _met(ratio(row, base)["ratio"], wanted[0])


def _met(reached: float, wanted: float) -> str:
    return f"{wanted:.2f} {MARKS[reached >= wanted]}"


def layouts_table(rows: Sequence[Row], arrays: str) -> Table:
    """The layouts of one product, C by rows in all of them."""
    names = {"C": "rows", "F": "columns"}
    ways = [w for w in dict.fromkeys(r["way"] for r in rows) if not w.endswith(AGAIN)]
    title = f"{rows[0]['work'].partition(',')[0]}{_mark(arrays)} by layout: {_UNIT[arrays]}"
    table = _table(title, ("A", "B", *(way.replace("_", "_\n", 1) for way in ways)))
    for orders in ("CC", "CF", "FC", "FF"):
        here = {row["way"]: row for row in rows if row["orders"] == orders}
        if here:
            cells = (_cell(here.get(way), arrays) for way in ways)
            table.add_row(*(names[order] for order in orders), *cells)
    return table


def _cell(row: Row | None, arrays: str) -> str:
    if row is None:
        return "-"
    return _speed(row, arrays) if row["state"] == "timed" else row["state"]


def ladder_table(steps: Sequence[Row], device: str, arrays: str) -> Table:
    """Predicted and measured, step by step."""
    title = f"The ladder at {steps[0]['n']} cubed on {device}: {_UNIT[arrays]}"
    heads = (
        "kernel",
        "at most",
        "bound by",
        "measured",
        "of it",
        "gain\npredicted",
        "gain\nmeasured",
    )
    table = _table(title, heads)
    for step in steps:
        most, had = step["predicted"], step["measured"]
        table.add_row(
            f"{step['kernel']}\n  {step['precision']}",
            _flops(most, arrays) if most else "-",
            step["bound by"] or "-",
            _flops(had, arrays) if had else "-",
            f"{100 * had / most:.0f} %" if most and had else "-",
            *(f"{step[g]:.3g} x" if step[g] else "-" for g in ("gain predicted", "gain measured")),
        )
    return table


def two_level_table(rows: Sequence[Row], arrays: str) -> Table:
    """td.matmul over workers that share the device."""
    base = "cupy.matmul" if arrays == "cupy" else "numpy.matmul"
    title = (
        f"{rows[0]['work']}{_mark(arrays)}: two levels on one device, wall-clock time; alone is "
        f"{base} in one process"
    )
    table = _table(title, ("", "time", "from, to %", _UNIT[arrays], "alone", "ratio", "goal"))
    for row in rows:
        if row["state"] != "timed":
            table.add_row(row["way"], row["state"], *[""] * 5)
            continue
        alone = row[f"{ALONE}, median"]
        reached = alone / row["median"]
        table.add_row(
            row["way"],
            format_seconds(row["median"]),
            _around(row),
            _speed(row, arrays),
            format_seconds(alone),
            f"{reached:.3f}",
            _met(reached, TWO_LEVEL) if row["workers"] == 1 else "",
        )
    return table


def figure(record: Mapping[str, Any]) -> "Figure | None":
    """The ladder under the roofline, from a record of this bench; None if nothing is predicted
    of its device."""
    device, steps = device_of(record["device"]), record["ladder"]
    if device is None or not steps:
        return None
    from tiledask.lab.plots.products.roofline import roofline  # loads matplotlib

    n, bounds, measured = steps[0]["n"], [], {}
    for (kernel, precision), bound in predictions(n, device, "cupy").items():
        name = f"{kernel} {precision}"  # one kernel may stand on two steps
        bounds.append(predict(n, n, n, replace(bound.config, kernel=name), device))
        had = [s["measured"] for s in steps if (s["kernel"], s["precision"]) == (kernel, precision)]
        measured |= {name: had[0]} if had and had[0] else {}
    title = f"Kernels at {n} cubed on {record['device']['name']}: at most, and measured"
    return roofline(bounds, measured=measured, title=title)
