"""Tables and figures of the bench of training: where a step's time goes, ours beside torch's."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Table

from tiledask.lab.plots import primitives as draw
from tiledask.lab.plots import style
from tiledask.plan.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["PARTS", "peer_table", "picture", "table"]

PARTS = {
    "compute": (style.BLUE, "compute: ranks' threads outside collectives"),
    "transfer": (style.GREEN, "transfer: ranks' threads in collectives"),
    "dask": (style.ORANGE, "scheduling: Dask's own threads"),
    "waits": (style.YELLOW, "scheduling: idle cores and the rest"),
}
"""What is drawn of a row: colour, and what it is called."""
_BAR, _PITCH = 0.3, 0.42
"""Inches of a bar, and from one to the next."""


def table(rows: Sequence[dict[str, Any]]) -> Table:
    """A row per layout and width: core-seconds of a step, and their shares."""
    found = Table(
        title="where a step's core-seconds go",
        caption="whole = cores x seconds of a step = compute + transfer + scheduling + others; the "
        "share is of what others left.\nscheduling = Dask's threads + idle cores + the rest; "
        "bubble: cores that the pipeline's schedule alone leaves idle, simulated;\n"
        "alone: what one rank computes for the whole step. Of all steps the one that others "
        "disturbed least.",
    )
    names = (
        "whole",
        "compute",
        "alone",
        "transfer",
        "scheduling",
        "Dask",
        "idle",
        "bubble",
        "others",
    )
    found.add_column("hidden", justify="right")
    found.add_column("layout", no_wrap=True)
    found.add_column("a step", justify="right", no_wrap=True)
    for name in (*names, "scheduling\nshare"):
        found.add_column(name, justify="right")
    for row in rows:
        cells = (f"{row[name.lower()]:.2f}" for name in names)
        found.add_row(
            str(row["hidden"]),
            row["layout"],
            format_seconds(row["seconds"]),
            *cells,
            f"{100 * row['share']:.1f} %",
        )
    return found


def peer_table(rows: Sequence[dict[str, Any]]) -> Table:
    """A row per layout and width: the same training by torch over gloo."""
    found = Table(
        title="the same training in torch, over gloo: medians and best steps of runs that take "
        "turns",
        caption="speed: torch's seconds / ours; core: the same of core-seconds of all processes. "
        "bytes leave all ranks in a step: ours counted,\ntorch's of its calls' tensors on a ring, "
        "and what the system saw its processes write.",
    )
    heads = (
        "hidden",
        "layout",
        "ours",
        "torch",
        "speed",
        "best\nspeed",
        "core\nspeed",
        "losses\ndiffer by",
        "bytes,\nours",
        "torch,\non a ring",
        "torch,\nwritten",
    )
    for head in heads:
        side = "left" if head == "layout" else "right"
        found.add_column(head, justify=side, no_wrap=True)
    for row in rows:
        found.add_row(
            str(row["hidden"]),
            row["layout"],
            format_seconds(row["ours"]),
            format_seconds(row["torch"]),
            f"{row['speed']:.2f}",
            f"{row['best speed']:.2f}",
            f"{row['core speed']:.2f}",
            f"{row['losses differ by']:.1e}",
            *(format_bytes(row[name]) for name in ("bytes", "ring bytes", "written bytes")),
        )
    return found


@style.styled
def picture(rows: Sequence[dict[str, Any]]) -> "Figure":
    """A bar for each row: the shares of what others left of the machine's core-seconds."""
    widths = list(dict.fromkeys(row["hidden"] for row in rows))
    height = 1.3 + _PITCH * len(rows) + 0.45 * len(widths)
    figure = style.canvas(height, "Where the core-seconds of a training step go, 8 ranks")
    counts = [sum(row["hidden"] == hidden for row in rows) for hidden in widths]
    every = draw.stacked_axes(figure, counts, sharex=True)
    entries = [draw.patch_entry(label, colour) for colour, label in PARTS.values()]
    draw.legend(figure, entries, 2)
    for axes, hidden in zip(every, widths, strict=True):
        axes.set(title=f"hidden {hidden}", xlim=(0, 1.16))
        draw.lanes(axes, [row["layout"] for row in rows if row["hidden"] == hidden])
    every[-1].set_xlabel("share of cores x time of a step, without what other programs took")
    every[-1].set_xticks([n / 5 for n in range(6)])
    draw.percent_ticks(every[-1].xaxis)
    figure.lay_out()
    for axes, hidden in zip(every, widths, strict=True):
        for y, row in enumerate(row for row in rows if row["hidden"] == hidden):
            _bar(axes, y, row)
    return figure


def _bar(axes: "Axes", y: int, row: dict[str, Any]) -> None:
    whole = row["compute"] + row["transfer"] + row["scheduling"]
    # by the clocks' errors Dask's threads may seem to take more than all of scheduling
    dask = min(row["dask"], row["scheduling"])
    drawn = {**row, "dask": dask, "waits": row["scheduling"] - dask}
    shares = {part: drawn[part] / whole for part in PARTS}
    parts = [(part, share, PARTS[part][0]) for part, share in shares.items()]
    boxes = draw.stack(axes, y, parts, _BAR / _PITCH)
    for (_, share, colour), box in zip(parts, boxes, strict=True):
        draw.fitting_text(axes, box, f"{100 * share:.0f} %", colour)
    draw.note(axes, (1.0, y), format_seconds(row["seconds"]))
