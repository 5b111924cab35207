"""The bench of scale, for people: a table, a page beside its record, a figure."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Table

from tiledask.lab.plots import primitives as draw
from tiledask.lab.plots import style
from tiledask.plan.judged import MARKS
from tiledask.plan.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["page", "picture", "table"]

COLUMNS = {
    "client": "client CPU",
    "scheduler": "scheduler CPU",
    "messages in": "messages in",
    "messages out": "messages out",
    "bytes in": "bytes in",
    "bytes out": "bytes out",
}
TITLES = {
    "product": "a repeated product",
    "step": "a training step, data parallel",
    "training": "a training's start and end",
    "connecting": "connecting, once",
}
HEAD = ("", "workers", *COLUMNS.values())


def _said(name: str, value: float) -> str:
    value = max(0.0, value)  # what goes on anyway is not the same each second
    if name.startswith("messages"):
        return f"{value:,.0f}"
    if name.startswith("bytes"):
        return format_bytes(round(value))
    return format_seconds(value)


def _lines(
    rows: Sequence[dict[str, Any]], laws: Sequence[dict[str, Any]]
) -> Iterator[tuple[str, ...]]:
    """Cells under HEAD: what was measured, how it grows, where that leads."""
    for what, title in TITLES.items():
        for row in (row for row in rows if row["what"] == what):
            yield title, f"{row['workers']:,}", *(_said(name, row[name]) for name in COLUMNS)
        grown = {law["amount"]: law for law in laws if law["what"] == what}
        if not grown:
            continue
        yield (
            title,
            "exponent",
            *(
                f"{law['exponent']:.2f} (x{law['scatter']:.2f})" if law else "—"
                for law in map(grown.get, COLUMNS)
            ),
        )
        for workers in next(iter(grown.values()))["carried"]:
            cells = (
                _said(name, grown[name]["carried"][workers]) if name in grown else "—"
                for name in COLUMNS
            )
            yield title, f"{int(workers):,}, carried", *cells


def table(rows: Sequence[dict[str, Any]], laws: Sequence[dict[str, Any]]) -> Table:
    """A row per number of workers; exponents from 8 workers on, and by what factor the law is off
    at most."""
    found = Table(title="what client and scheduler do for all workers together, beyond idling")
    for number, name in enumerate(HEAD):
        found.add_column(name, justify="right" if number else "left", no_wrap=True)
    for cells in _lines(rows, laws):
        found.add_row(*cells)
    return found


def page(facts: dict[str, Any], figure: str) -> str:
    """The record ``facts`` as Markdown, with the picture of that name."""
    marks = [
        f"| {g['what']} | {g['goal']} | {g['reached']} | {MARKS[g['met']]} |"
        for g in facts["goals"]
    ]
    plans = [
        f"| {p['ranks']:,} | {format_seconds(p['first'])} | {format_seconds(p['again'])} | "
        f"{format_bytes(p['tables'])} |"
        for p in facts["planned"]
    ]
    cells = _lines(facts["rows"], facts["growth"])
    return "\n".join(
        [
            "# What a product costs client and scheduler, by workers",
            "",
            "`make bench-scale`: blocks of 256 x 256 float32 on `dask worker` processes of one "
            "thread, many more than cores; CPU seconds and counts, never the clock, less what goes "
            "on when nothing is asked. Medians. Exponents are of a power law from 8 workers on, "
            "with the factor by which it is off at most. Carried: from the largest measured, with "
            "that exponent, and linearly at least.",
            "",
            "## What breaks first",
            "",
            *(f"- {words}" for words in facts["what breaks first"]),
            "",
            f"![growth]({figure})",
            "",
            "| " + " | ".join(HEAD) + " |",
            "|:--" + "|--:" * (len(HEAD) - 1) + "|",
            *("| " + " | ".join(each) + " |" for each in cells),
            "",
            "| what | goal | reached |  |",
            "|:--|:--|--:|:--|",
            *marks,
            "",
            "Planning, once for arrays that lie alike, CPU of the client (arithmetic, no workers):",
            "",
            "| ranks | the first product | the next | tables of a result's traffic |",
            "|--:|--:|--:|--:|",
            *plans,
            "",
        ]
    )


@style.styled
def picture(rows: Sequence[dict[str, Any]], laws: Sequence[dict[str, Any]]) -> "Figure":
    """Seconds and bytes of a product over workers, with the laws that carry them on."""
    figure = style.canvas(3.6, "What a repeated product costs for all workers together")
    seconds, sizes = figure.subplots(1, 2)
    found = [row for row in rows if row["what"] == "product"]
    workers = [row["workers"] for row in found]
    drawn = (
        (seconds, "client", style.BLUE),
        (seconds, "scheduler", style.ORANGE),
        (sizes, "bytes in", style.BLUE),
        (sizes, "bytes out", style.ORANGE),
    )
    for axes, name, colour in drawn:
        draw.curve(axes, workers, [row[name] for row in found], colour, 1.6, marker="o")
        carried = [
            law["carried"] for law in laws if (law["what"], law["amount"]) == ("product", name)
        ]
        for there in carried:
            xs = [workers[-1], *map(int, there)]
            draw.curve(axes, xs, [found[-1][name], *there.values()], colour, 1.2, linestyle="--")
    for axes, words, low, high in (
        (seconds, format_seconds, 1e-3, 100.0),
        (sizes, format_bytes, 1e4, 1e10),
    ):
        draw.grid(axes)
        draw.log_ticks(axes.xaxis, 1.5, 15_000, lambda n: f"{n:,.0f}", (1,))
        draw.log_ticks(axes.yaxis, low, high, words, (1,))
        axes.set_xlabel("workers")
    seconds.set_title("CPU seconds")
    sizes.set_title("bytes through the scheduler")
    entries = [
        draw.line_entry("client; bytes into the scheduler", style.BLUE, marker="o"),
        draw.line_entry("scheduler; bytes out of it", style.ORANGE, marker="o"),
        draw.line_entry("carried on", linestyle="--"),
    ]
    draw.legend(figure, entries, 3)
    figure.lay_out()
    return figure
