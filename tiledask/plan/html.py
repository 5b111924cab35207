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
    page = f"<caption>{words(caption)}</caption>" if caption else ""
    titles = [*head]
    for number, row in enumerate([titles, *rows] if titles else rows, -bool(titles)):
        page += "<tr style='font-weight:bold'>" if number in bold else "<tr>"
        for i, value in enumerate(row):
            tag = "th" if number < 0 else "td" if i else first
            page += f"<{tag}{styles.get(i, '')}>{words(value)}</{tag}>"
        page += "</tr>"
    return f"<table>{page}</table>"
