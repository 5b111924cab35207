"""How a result prints itself: its parts, tables and sentences, once for terminal, notebook, text.

         moved    idle
summa  134.2 MB  27.0 %          a table of which no number and no word is cut off
"""

import re
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from textwrap import wrap
from typing import Any, TextIO

from tiledask.errors import ConfigError
from tiledask.extras import needed_for
from tiledask.plan import html
from tiledask.plan.units import format_bytes, format_percent, format_seconds
from tiledask.plan.whole import is_whole

__all__ = ["MARKS", "Judged", "Part", "Printable", "Table", "Value", "format_value"]
__all__ += ["frame", "print_parts", "table"]

GAP = "  "
"""Between columns."""
WORD = re.compile(r"^\s*\S+|\S+")
"""A word of a line, the first with its indent."""
Value = int | float | str | bool | tuple[Any, ...] | None
"""What a table's cell is made of; None where there is nothing."""


@dataclass(frozen=True)
class Table:
    """Rows of words under titles."""

    head: Sequence[str]
    rows: Sequence[Sequence[Any]]
    title: str = ""
    left: Collection[int] = (0,)  # columns of words, which wrap; numbers end at the right
    bold: Collection[int] = ()  # rows that stand out on a page
    below: str = ""  # a line below the rows

    def to_text(self, width: int = 100) -> str:
        """The table as plain text, no line longer than ``width`` where words can be wrapped."""
        widths, least = [], []  # each column as wide as it likes, and the longest word of words
        for i, (name, *cells) in enumerate(zip(self.head, *self.rows, strict=True)):
            lines = "\n".join(map(str, cells)).split("\n")
            parts = [w for line in lines for w in WORD.findall(line)] if i in self.left else lines
            widths.append(max(map(len, (name, *lines))))
            least.append(max(map(len, ("", *WORD.findall(name), *parts))))
        for _ in range(sum(widths) + len(GAP) * (len(widths) - 1) - width):
            widest = max(range(len(widths)), key=lambda i: (widths[i] > least[i], widths[i]))
            widths[widest] = max(least[widest], widths[widest] - 1)
        lines = _wrapped(self.title, width) if self.title else []
        sides = ["<" if i in self.left else ">" for i in range(len(self.head))]
        for row in (self.head, *self.rows):
            cells = [_wrapped(str(cell), w) for cell, w in zip(row, widths, strict=True)]
            for line in zip_longest(*cells, fillvalue=""):
                each = zip(line, sides, widths, strict=True)
                lines.append(GAP.join(f"{c:{side}{w}}" for c, side, w in each).rstrip())
        return "\n".join([*lines, "", *(_wrapped(self.below, width) if self.below else [])]) + "\n"

    def __repr__(self) -> str:
        return self.to_text(80).rstrip("\n")

    def _repr_html_(self) -> str:
        # JupyterLab puts words at the right, too
        left, right = "text-align:left;white-space:pre-line", "text-align:right;white-space:pre"
        style = {i: left if i in self.left else right for i in range(len(self.head))}
        title = f"{self.title} ({self.below})" if self.title and self.below else self.title
        return html.table(self.head, self.rows, title or self.below, style=style, bold=self.bold)


def _wrapped(text: str, width: int) -> list[str]:
    """The lines of ``text``, broken between words where they are longer than ``width``."""
    broken = (wrap(line, max(width, 1), break_on_hyphens=False) for line in text.split("\n"))
    return [line for lines in broken for line in lines or [""]]


Part = str | tuple[str, str] | Table
"""A sentence, (what stands out, the words behind it), or a table."""
MARKS = {True: "✓", None: "", False: "✗"}


@dataclass(frozen=True)
class Judged:
    """A claim, judged; ``holds`` is None where nothing can be judged, and ``why`` says why."""

    claim: str
    holds: bool | None
    why: str = ""

    def __str__(self) -> str:
        claim = self.claim and f"{self.claim}:"
        return " ".join(filter(None, (MARKS[self.holds], claim, self.why)))


class Printable:
    """A result that prints itself: ``printed`` has the parts, one below the other."""

    printed: Callable[..., Iterator[Part]]

    def to_text(self, width: int = 100) -> str:
        """All of it as plain text, no line of prose longer than ``width`` characters."""
        return "".join(_text(part, width) for part in self.printed())

    def _repr_html_(self) -> str:
        page = ""
        for part in self.printed():
            if isinstance(part, Table):
                page += part._repr_html_()
                continue
            first, words = part if isinstance(part, tuple) else ("", part)
            bold = f"<b>{html.words(first)}</b>" if first else ""
            page += f"<p>{bold}{html.words(words)}</p>"
        return page


def _text(part: Part, width: int) -> str:
    """Prose wraps; several lines, or a command, stay as they are."""
    if isinstance(part, Table):
        return part.to_text(width)
    text = part if isinstance(part, str) else "".join(part)
    if "\n" not in text and "tiledask " not in text:
        text = "\n".join(_wrapped(text, width))
    return f"{text}\n"


def frame(columns: Mapping[str, Any]) -> Any:
    """A pandas DataFrame of columns by name; without pandas an error in words."""
    with needed_for("a frame"):
        import pandas as pd

    return pd.DataFrame(columns)


def print_parts(*parts: Part, file: TextIO | None = None, width: int = 0) -> None:
    """Print each at once, in lines of ``width``, by default as wide as the terminal is."""
    width = width or shutil.get_terminal_size().columns
    print("".join(_text(part, width) for part in parts), end="", file=file, flush=True)


def table(
    rows: Mapping[Any, Mapping[str, Any]] | Iterable[Mapping[str, Any]],
    title: str = "",
    **units: str,
) -> Table:
    """Rows of values as people read them, in a terminal and in a notebook.

    rows
        Column -> value of each; of a mapping, each row begins with its name. None shows a dash.
    units
        Column -> "bytes", "seconds", "percent" (of values that are shares of 1), "count" or a
        unit to print. Others are shown as they are, numbers with at most four digits.

    >>> table({"summa": {"moved": 134_217_728, "idle": 0.27}}, moved="bytes", idle="percent")
              moved    idle
    summa  134.2 MB  27.0 %
    """
    if isinstance(rows, Mapping):
        rows = [{"": format_value(name), **row} for name, row in rows.items()]
    listed = list(rows)
    columns = list(dict.fromkeys(column for row in listed for column in row))
    if missing := [column for column in units if column not in columns]:
        raise ConfigError(
            f"there is no column {missing[0]!r} to show in {units[missing[0]]}; columns are "
            f"{', '.join(filter(None, columns)) or 'none'}"
        )
    cells = [[format_value(row.get(c), units.get(c, "")) for c in columns] for row in listed]
    words = (all(isinstance(row.get(c), str | None) for row in listed) for c in columns)
    return Table(columns, cells, title, [i for i, left in enumerate(words) if left])


def format_value(value: Any, unit: str = "") -> str:
    """``value`` as people read it, in ``unit``.

    >>> format_value(3.2e12, "bytes"), format_value(0.275, "percent"), format_value(1771, "count")
    ('3.2 TB', '27.5 %', '1,771')
    >>> format_value(None), format_value(True), format_value((6, 6)), format_value(21.33, "FLOP/B")
    ('—', 'yes', '6, 6', '21.33 FLOP/B')
    """
    value = value.item() if hasattr(value, "dtype") and not value.ndim else value
    if value is None or isinstance(value, bool):
        return {None: "—", True: "yes", False: "no"}[value]
    if isinstance(value, tuple):
        return ", ".join(format_value(v, unit) for v in value)
    if not isinstance(value, int | float):
        return str(value)
    known = {"bytes": format_bytes, "seconds": format_seconds, "percent": format_percent}
    if unit in known:
        return known[unit](value)
    form = "," if is_whole(value) else ",.0f" if 1000 <= abs(value) < 1e15 else ".4g"
    return f"{value:{form}}" if unit in ("", "count") else f"{value:{form}} {unit}"
