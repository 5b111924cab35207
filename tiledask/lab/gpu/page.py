"""The record as one page: what ran, what is fast, what is wrong, what to send back.

nvidia-h200.json    the record
nvidia-h200.md      the page
nvidia-h200-*.png   its figures, six at most
"""

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tiledask.lab.gpu.advice import meaning, shared
from tiledask.lab.gpu.part import STATES, GpuPart
from tiledask.lab.report import write_whole
from tiledask.lab.table import Grid
from tiledask.plan.judged import MARKS
from tiledask.plan.units import format_bytes, format_seconds

__all__ = ["counts", "first_wrong", "write"]

Row = dict[str, Any]

MOST_FIGURES = 6
_MOST_ROWS = 24
"""Of a table that no part has made; the record has them all."""
_LONGEST = 240
_ALIKE = 80
"""Characters at its end that make a message the same as another."""
_BAD = ("wrong", "failed")


def write(path: Path, facts: Row, parts: Sequence[GpuPart], figures: bool = True) -> list[Path]:
    """The files of the record in ``path``: itself, its page, its figures.

    Without ``figures`` no new ones are drawn, which takes seconds.
    """
    drawn = _figures(path, facts["rows"], parts) if figures else {}
    page = path.with_suffix(".md")
    files = [path, page, *(file for file, _ in drawn.values() if file)]
    ended = {row["part"]: row for row in facts["parts"]}
    blocks = [
        f"# {facts['device']['name']}: what `make gpu` found",
        *_short(facts),
        *_wrong(facts, parts),
        "## Send back",
        f"These files, from {files[0].parent}: " + ", ".join(f"`{f.name}`" for f in files) + ". "
        "All that is on this page is in the first one, and more.",
        "## What ran",
        _table(_parts_grid(_in_order(facts["parts"], parts), facts["rows"])),
    ]
    if skipped := [row for row in facts["rows"] if row["state"] == "skipped"]:
        blocks += ["What was skipped, and why:", _table(_causes(_in_order(skipped, parts)))]
    for part in parts:
        rows = [row for row in facts["rows"] if row["part"] == part.name]
        if rows or part.name in drawn:
            blocks += [f"## {part.name}: {part.title}", *_part(part, rows, drawn)]
            if part.name in ended and ended[part.name]["why"]:
                blocks.append(f"{ended[part.name]['state']}: {_cell(ended[part.name]['why'])}")
    write_whole(page, ("\n\n".join(blocks) + "\n").encode())
    return files


def counts(rows: Sequence[Row]) -> dict[str, int]:
    """State -> number of rows."""
    found = Counter(row["state"] for row in rows)
    return {state: found[state] for state in STATES}


def first_wrong(facts: Row, parts: Sequence[GpuPart]) -> Row | None:
    """The failing row that comes first in the order of the parts, if there is one."""
    bad = _in_order([row for row in facts["rows"] if row["state"] in _BAD], parts)
    return bad[0] if bad else None


def _in_order(rows: Sequence[Row], parts: Sequence[GpuPart]) -> list[Row]:
    """The rows in the order of the parts, and of what they measured."""
    order = {part.name: number for number, part in enumerate(parts)}
    return sorted(rows, key=lambda row: order.get(row["part"], len(order)))


# -- the first screen ----------------------------------------------------------------------------


def _short(facts: Row) -> list[str]:
    """The machine, the counts, the goals."""
    device, code = facts["device"], facts["code"]
    known = {
        "compute capability": device.get("compute capability"),
        "memory": format_bytes(device["memory"]) if device.get("memory") else None,
        "driver": device.get("driver"),
        "CUDA": device.get("CUDA"),
        "CuPy": device.get("CuPy"),
        "GPUs": device.get("GPUs"),
    }
    machine = ", ".join(f"{name} {value}" for name, value in known.items() if value)
    run = facts["runs"][-1] if facts["runs"] else {}
    older = sum(row.get("code") != code["digest"] for row in facts["rows"])
    at = run.get("at", "")[:16].replace("T", " ")
    of = f"commit {code['commit']}, " if code["commit"] else ""
    goals = [
        (
            g["what"],
            g["key"],
            f"{g['wanted']:.2f}",
            _number(g["reached"]),
            "not measured" if g["reached"] is None else MARKS[g["met"]],
        )
        for g in facts["goals"]
    ]
    return [
        f"{machine or 'nothing is known of the device'}. Measured {at} with "
        f"{of}code {code['digest']}"
        + (f"; ended early, by {run['ended']}" if run.get("ended") else "")
        + ".",
        *[f"{older} of these rows were measured by earlier code."] * bool(older),
        _table(Grid(STATES, [tuple(counts(facts["rows"]).values())], left=())),
        "## What is fast",
        _table(Grid(("speed", "measurement", "goal", "reached", ""), goals, left=(0, 1))),
    ]


def _wrong(facts: Row, parts: Sequence[GpuPart]) -> list[str]:
    bad = _in_order([row for row in facts["rows"] if row["state"] in _BAD], parts)
    ends = [row for row in facts["parts"] if row["state"] not in ("done", "left out", "cut off")]
    if not bad and not ends:
        return ["## What is wrong", "Nothing that was asked."]
    blocks = ["## What is wrong"]
    if bad:
        first = bad[0]
        of_it = [row for row in facts["rows"] if row["part"] == first["part"]]
        common = ", ".join(f"{name} {value}" for name, value in shared(of_it).items())
        look = meaning(first)
        blocks += [
            f"First, and so the layer to look at: **{first['part']}, {_cell(first['key'])}**, "
            f"{first['state']}: {_cell(_what(first))}.",
            *[f"What it means: {look}."] * bool(look),
            *[f"All that fails in {first['part']}, and not all of the rest, has {common}."]
            * bool(common),
            _table(_causes(bad)),
        ]
    blocks += [f"{row['part']} {row['state']}: {_cell(row['why'])}." for row in ends]
    return blocks


def _causes(rows: Sequence[Row]) -> Grid:
    """What happened, once for all of a part that end with the same words but for numbers."""
    found: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        words = re.sub(r"[\d.]+(e[-+]\d+)?", "#", _what(row))[-_ALIKE:]  # a case comes first
        found.setdefault((row["part"], row["state"], words), []).append(row)
    return Grid(
        ("part", "", "how many", "the first of them", "what happened"),
        [
            (part, state, len(same), same[0]["key"], _what(same[0]))
            for (part, state, _), same in found.items()
        ][:_MOST_ROWS],
        left=(0, 1, 3, 4),
    )


def _what(row: Row) -> str:
    """What happened, in the row's own words or numbers."""
    if row.get("why"):
        return row["why"]
    return ", ".join(f"{n} {_number(row[n])}" for n in ("error", "limit") if n in row)


# -- part by part --------------------------------------------------------------------------------


def _parts_grid(parts: Sequence[Row], rows: Sequence[Row]) -> Grid:
    found = []
    for part in parts:
        had = counts([row for row in rows if row["part"] == part["part"]])
        said = ", ".join(f"{number} {state}" for state, number in had.items() if number)
        took = format_seconds(part["took"]) if "took" in part else ""
        found.append((part["part"], part["state"], took, said, part["why"]))
    return Grid(("part", "", "took", "measurements", "why"), found, left=(0, 1, 3, 4))


def _part(part: GpuPart, rows: list[Row], drawn: Row) -> list[str]:
    """Tables and figure of one part; what it cannot show is said, and its rows are listed."""
    blocks = []
    try:
        for grid in (grid for grid in part.tables(rows) if grid.rows):
            blocks += [f"**{grid.title}**"] * bool(grid.title) + [_table(grid)]
    except Exception as error:  # rows of an older or a broken part
        blocks = [f"Its tables cannot be made: {_cell(f'{type(error).__name__}: {error}')}."]
    if not blocks or blocks[0].startswith("Its tables"):
        blocks += [_table(_rows_grid(rows))] if rows else []
        if len(rows) > _MOST_ROWS:
            blocks.append(f"... and {len(rows) - _MOST_ROWS} more, in the record.")
    file, why = drawn.get(part.name, (None, ""))
    if file:
        blocks.append(f"![{part.name}]({file.name})")
    return blocks + [f"Its figure cannot be drawn: {_cell(why)}."] * bool(why)


_SAID = {"part", "key", "state", "at", "code", "took", "why", "step", "how", "goal"}
"""What a table of all facts leaves out, or has in a column of its own."""


def _rows_grid(rows: Sequence[Row]) -> Grid:
    """Measurements with all that they noted, the bad ones first."""
    found = [
        (
            row["key"],
            row["state"],
            ", ".join(
                [f"{name} {_number(value)}" for name, value in row.items() if name not in _SAID]
                + list(filter(None, [row.get("why")]))
            ),
        )
        for row in sorted(rows, key=lambda row: row["state"] not in _BAD)[:_MOST_ROWS]
    ]
    return Grid(("measurement", "", "found"), found, left=(0, 1, 2))


def _figures(path: Path, rows: list[Row], parts: Sequence[GpuPart]) -> Row:
    """Part -> (file, why there is none)."""
    drawn: dict[str, tuple[Path | None, str]] = {}
    for part in parts:
        own = [row for row in rows if row["part"] == part.name]
        file = path.with_name(f"{path.stem}-{part.name}.png")
        if not own or sum(bool(f) for f, _ in drawn.values()) == MOST_FIGURES:
            continue
        try:
            if figure := part.figure(own):
                from tiledask.lab.plots.picture import png_of  # loads matplotlib

                drawn[part.name] = (write_whole(file, png_of(figure)), "")
        except Exception as error:  # no matplotlib, or rows of an older or a broken part
            drawn[part.name] = (None, f"{type(error).__name__}: {error}")
    return drawn


# -- Markdown ------------------------------------------------------------------------------------


def _table(grid: Grid) -> str:
    def line(cells: Sequence[Any]) -> str:
        return "| " + " | ".join(map(_cell, cells)) + " |"

    rule = [":--" if column in grid.left else "--:" for column in range(len(grid.head))]
    return "\n".join([line(grid.head), "|" + "|".join(rule) + "|", *map(line, grid.rows)])


def _cell(value: Any) -> str:
    text = " ".join(str(value).split())
    text = text if len(text) <= _LONGEST else text[:_LONGEST] + " ..."
    for character in ("\\", "|", "<", "*", "`", "_"):
        text = text.replace(character, "\\" + character)
    return text


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else "" if value is None else str(value)
