"""Tables of which nothing is ever cut off, whatever the width of the terminal.

Comparison  predicted, simulated and measured side by side, with a verdict for every row
Grid        any other rows under titles; `table` makes one of numbers, each in its column's unit

Each is one value for the terminal (rich), the notebook and the report (HTML), and text.
"""

import io
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from tiledask.errors import ConfigError
from tiledask.lab.claim import COLUMNS, Claim, Value, exact, format_value
from tiledask.plan import html
from tiledask.plan.judged import Judged

if TYPE_CHECKING:
    from rich.console import Console

    from tiledask.distributed.cluster.load import Load

__all__ = ["Claim", "Comparison", "Grid", "say", "show", "table"]

STYLE = {True: "green", False: "bold red", None: ""}
GAP = 2
"""Spaces between columns."""


@dataclass(frozen=True)
class Grid:
    """Rows of words under titles: a table where there is room for every word, else a list.

    >>> from rich.console import Console
    >>> grid = Grid(("", "time", "how"), [("compute", "6.81 s", "4 micro-batches")])
    >>> Console(width=40).print(grid)  # doctest: +NORMALIZE_WHITESPACE
               time  how
    compute  6.81 s  4 micro-batches
    <BLANKLINE>
    >>> Console(width=20).print(grid)  # doctest: +NORMALIZE_WHITESPACE
    compute: time 6.81
    s, how 4
    micro-batches
    <BLANKLINE>
    """

    head: Sequence[str]
    rows: Sequence[Sequence[Any]]
    """Of words, or of rich's Text."""
    title: str = ""
    left: Collection[int] = (0,)
    """Columns that begin at the left; numbers end at the right."""
    bold: Collection[int] = ()
    """Rows that stand out."""
    below: str = ""
    """A line below the rows."""

    def to_text(self, width: int = 100) -> str:
        """The table as plain text, no line longer than ``width`` characters."""
        from rich.console import Console

        out = io.StringIO()
        # or rich takes a notebook for its screen, and shows there what is only to be words
        options: dict[str, Any] = {"legacy_windows": False, "force_jupyter": False}
        Console(file=out, width=width, color_system=None, **options).print(self)
        return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"

    def __repr__(self) -> str:
        """The whole table: it has nothing else to say."""
        return self.to_text(80).rstrip("\n")

    def _repr_html_(self) -> str:
        # JupyterLab puts words at the right, too
        sides = ("left" if i in self.left else "right" for i in range(len(self.head)))
        lines = any("\n" in str(cell) for row in self.rows for cell in row)
        keep = ";white-space:pre-line" * lines
        style = {i: f"text-align:{side}{keep}" for i, side in enumerate(sides)}
        title = f"{self.title} ({self.below})" if self.below else self.title
        return html.table(self.head, self.rows, title, style=style, bold=self.bold)

    def __rich_console__(self, console: Any, options: Any) -> Iterator[Any]:
        from rich.table import Table
        from rich.text import Text

        if self.title:
            yield Text(self.title, style="bold", overflow="fold")
        if widths := self._widths(options.max_width):
            table = Table(box=None, padding=(0, GAP, 0, 0), pad_edge=False, header_style="bold")
            for i, (name, width) in enumerate(zip(self.head, widths, strict=True)):
                justify: Any = "left" if i in self.left else "right"
                table.add_column(Text(name), justify=justify, width=width, overflow="fold")
            for number, row in enumerate(self.rows):
                cells = [cell if isinstance(cell, Text) else Text(str(cell)) for cell in row]
                table.add_row(*cells, style="bold" if number in self.bold else "")
            yield table
        for row in () if widths else self.rows:
            pairs = zip(self.head, row, strict=True)
            parts = [
                f"{name} {cell}".strip().replace("\n", " ") for name, cell in pairs if f"{cell}"
            ]
            words = ": ".join(filter(None, (*parts[:1], ", ".join(parts[1:]))))
            yield Text(words, overflow="fold")
        yield Text()
        if self.below:
            yield Text(self.below, style="dim")

    def _widths(self, most: int) -> list[int]:
        """The width of each column, from the one that it likes down to its longest word; []
        where even those are too wide."""
        columns = [
            [line for cell in cells for line in str(cell).split("\n")]
            for cells in zip(self.head, *self.rows, strict=True)
        ]
        least = [max(len(p) for cell in cells for p in ("", *_unbroken(cell))) for cells in columns]
        widths = [max(map(len, cells)) for cells in columns]
        for _ in range(sum(widths) + GAP * (len(widths) - 1) - most):
            widest = max(range(len(widths)), key=lambda i: (widths[i] > least[i], widths[i]))
            if widths[widest] <= least[widest]:
                return []
            widths[widest] -= 1
        return widths


def _unbroken(line: str) -> list[str]:
    """The parts of ``line`` that stay on one line: a number with its unit, otherwise a word. The
    first keeps its indent, from which rich does not part it either."""
    bare = line.lstrip()
    parts = [bare] if bare[:1].isdigit() and len(bare) <= 20 else bare.split()
    return [line[: len(line) - len(bare)] + parts[0], *parts[1:]] if bare else []


@dataclass(frozen=True, repr=False)
class Comparison:
    """Claims under one title: a table for each part of a story.

    >>> table = Comparison("Idle time", (
    ...     Claim("2 workers", 0.5, 0.5, 0.51, unit="percent", rule=("within", 0.03)),
    ...     Claim("4 workers", 0.75, 0.75, 0.81, unit="percent", rule=("within", 0.03))))
    >>> table, table.ok, table.failures[0].quantity
    (Comparison('Idle time': 1 of 2 claims hold), False, '4 workers')
    """

    title: str
    rows: Sequence[Claim]

    def __post_init__(self) -> None:
        object.__setattr__(self, "rows", tuple(self.rows))
        if not self.rows or not all(isinstance(row, Claim) for row in self.rows):
            raise ConfigError(
                f"{self.title!r}: a comparison has one Claim or more in its rows, got "
                f"{[type(row).__name__ for row in self.rows] or 'none'}; without one it proves "
                f"nothing"
            )

    @classmethod
    def of(
        cls,
        title: str,
        values: Mapping[str, Sequence[Value]],
        unit: str = "",
        rule: str | tuple[Any, ...] | None = None,
        load: "Load | None" = None,
    ) -> "Comparison":
        """The table of claims by one rule: quantity -> its predicted, simulated and measured value.

        >>> Comparison.of("Idle time", {"2 workers": (0.5, 0.5, 0.51)}, "percent", ("within", 0.03))
        Comparison('Idle time': 1 of 1 claims hold)
        """
        for name, three in values.items():
            if isinstance(three, str) or len(three) != len(COLUMNS):
                raise ConfigError(
                    f"{name!r}: a claim has 3 values, {', '.join(COLUMNS)}, got {three!r}; write "
                    f"None for what was not asked"
                )
        rows = [Claim(name, p, s, m, unit, rule, load=load) for name, (p, s, m) in values.items()]
        return cls(title, rows)

    @cached_property
    def verdicts(self) -> tuple[Judged, ...]:
        return tuple(row.verdict for row in self.rows)

    @property
    def held(self) -> int:
        """How many claims hold."""
        return sum(verdict.holds is True for verdict in self.verdicts)

    @property
    def checked(self) -> int:
        """How many rows claim something that was judged."""
        return self.held + len(self.failures)

    @property
    def put_off(self) -> int:
        """How many rows claim something that is to be judged later."""
        return sum(verdict.holds is None and bool(verdict.why) for verdict in self.verdicts)

    @property
    def failures(self) -> tuple[Claim, ...]:
        """The claims that do not hold."""
        pairs = zip(self.rows, self.verdicts, strict=True)
        return tuple(row for row, verdict in pairs if verdict.holds is False)

    @property
    def ok(self) -> bool:
        """Whether no claim fails."""
        return not self.failures

    @property
    def summary(self) -> str:
        """ "3 of 4 claims hold, 1 judged later"."""
        said = [f"{self.held} of {self.checked} claims hold"] if self.checked else []
        said += [f"{self.put_off} judged later"] if self.put_off else []
        return ", ".join(said) or "no claims"

    def to_dict(self) -> dict[str, Any]:
        """Everything in the table as JSON can hold it; raw values in bytes, seconds and shares."""
        rows = []
        for row, verdict in zip(self.rows, self.verdicts, strict=True):
            facts: dict[str, Any] = {"quantity": row.quantity}
            facts |= {column: _json(getattr(row, column)) for column in COLUMNS}
            facts |= {"unit": row.unit, "rule": None if row.rule is None else list(row.rule)}
            facts |= {"compare": list(row.compare), "note": row.note}
            rows.append(facts | {"holds": verdict.holds, "reason": verdict.why})
        names = ("title", "ok", "held", "checked", "put_off")
        return {name: getattr(self, name) for name in names} | {"rows": rows}

    def grid(self) -> Grid:
        """A row for each claim, a note and every digit of bytes below it."""
        from rich.text import Text

        rows = []
        for row, verdict in zip(self.rows, self.verdicts, strict=True):
            shown = (format_value(value, row.unit) for value in row.values)
            cells = [Text(words) for words in (row.quantity, *shown)]
            cells.append(Text(str(verdict), STYLE[verdict.holds]))
            digits = ["", "", "", ""]  # once where they are equal, else under each value
            if row.rule == ("equal",) and verdict.holds:
                digits[3] = exact(row.compared[0], row.unit)
            elif row.rule == ("equal",):
                digits[:3] = [exact(value, row.unit) for value in row.values]
            for cell, below in zip(cells, (row.note, *digits), strict=True):
                if below:
                    cell.append("\n").append_text(Text(below, "dim"))
            rows.append(cells)
        return Grid(("", *COLUMNS, "verdict"), rows, self.title, (0, 4), below=self.summary)

    def to_text(self, width: int = 100) -> str:
        """The table as plain text, no line longer than ``width`` characters."""
        return self.grid().to_text(width)

    def __str__(self) -> str:
        return self.to_text()

    def __repr__(self) -> str:
        return f"Comparison({self.title!r}: {self.summary})"

    def __rich__(self) -> Grid:
        return self.grid()

    def _repr_html_(self) -> str:
        return self.grid()._repr_html_()


def table(
    rows: Mapping[Any, Mapping[str, Any]] | Iterable[Mapping[str, Any]],
    title: str = "",
    **units: str,
) -> Grid:
    """Rows of values as people read them, in a terminal and in a notebook.

    rows
        Column -> value of each; of a mapping, each row begins with its name. A row without a
        column, or None there, shows a dash.
    units
        Column -> "bytes", "seconds", "percent" (of values that are shares of 1), "count" or a
        unit to print. Others are shown as they are, numbers with at most four digits.

    >>> table({"summa": {"moved": 134_217_728, "idle": 0.27}}, moved="bytes", idle="percent")
              moved    idle
    summa  134.2 MB  27.0 %
    """
    named = isinstance(rows, Mapping)
    listed = list(rows.values() if isinstance(rows, Mapping) else rows)
    columns = list(dict.fromkeys(column for row in listed for column in row))
    for column in units:
        if column not in columns:
            raise ConfigError(
                f"there is no column {column!r} to show in {units[column]}; columns are "
                f"{', '.join(columns) or 'none'}"
            )
    cells = [[_shown(row.get(c), units.get(c, "")) for c in columns] for row in listed]
    if named:
        cells = [[_shown(name), *row] for name, row in zip(rows, cells, strict=True)]
    left = [0] * named
    for i, column in enumerate(columns, named):
        left += [i] * all(isinstance(row.get(column), str | None) for row in listed)
    return Grid(("",) * named + tuple(columns), cells, title, left)


def _shown(value: Any, unit: str = "") -> str:
    value = value.item() if hasattr(value, "dtype") and not value.ndim else value
    plain = isinstance(value, int | float | str | None)
    return format_value(value, unit) if plain else str(value)


def _json(value: Value) -> Any:
    if isinstance(value, tuple):
        return [_json(v) for v in value]
    # JSON has no words for infinity and not-a-number
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def say(
    console: "Console", words: str, bold: str = "", *, colour: str = "bold", wrap: bool = False
) -> None:
    """Print ``words`` behind ``bold`` ones, as they are: brackets in a name are no markup.

    Lines stay whole, to be copied; those of prose wrap between words.
    """
    from rich.text import Text

    text = Text.assemble((bold, colour), words, overflow="fold")
    console.print(text, soft_wrap=not wrap)


def show(console: "Console", thing: Any) -> None:
    """Print a table, words, or (what is bold, the words behind it). Prose wraps; several lines, or
    a command, stay as they are."""
    if isinstance(thing, Grid | Comparison):
        console.print(thing)
    else:
        bold, words = thing if isinstance(thing, tuple) else ("", thing)
        say(console, words, bold=bold, wrap=not ("\n" in words or "tiledask " in words))
