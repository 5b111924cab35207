"""HTML for notebooks and pages: every word that goes in comes out as a word, not as markup."""

from collections.abc import Container, Iterable, Mapping
from html import escape

__all__ = ["table", "words"]


def words(value: object) -> str:
    """``value`` as text that is safe in HTML, between tags and inside quoted attributes."""
    return escape(str(value))


def table(
    head: Iterable[object],
    rows: Iterable[Iterable[object]],
    caption: object = "",
    *,
    first: str = "td",
    style: Mapping[int, str] | None = None,
    bold: Container[int] = (),
) -> str:
    """An HTML table of values, each escaped. ``first``: the tag of each row's first cell, "th" for
    a title. ``style``: column -> CSS of its cells, its title's too. ``bold``: rows that stand out.

    >>> table(("stage", "bytes"), [(0, "<1 GB")])
    '<table><tr><th>stage</th><th>bytes</th></tr><tr><td>0</td><td>&lt;1 GB</td></tr></table>'
    """
    styles = {column: f" style='{words(css)}'" for column, css in (style or {}).items()}

    def cell(tag: str, column: int, value: object) -> str:
        return f"<{tag}{styles.get(column, '')}>{words(value)}</{tag}>"

    titles = "".join(cell("th", *each) for each in enumerate(head))
    page = f"<caption>{words(caption)}</caption>" if caption else ""
    page += f"<tr>{titles}</tr>" if titles else ""
    for number, row in enumerate(rows):
        page += "<tr style='font-weight:bold'>" if number in bold else "<tr>"
        page += "".join(cell("td" if i else first, i, value) for i, value in enumerate(row))
        page += "</tr>"
    return f"<table>{page}</table>"
