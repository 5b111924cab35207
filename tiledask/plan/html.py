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
    a title. ``style``: column -> CSS of its cells. ``bold``: rows that stand out.

    >>> table(("stage", "bytes"), [(0, "<1 GB")])
    '<table><tr><th>stage</th><th>bytes</th></tr><tr><td>0</td><td>&lt;1 GB</td></tr></table>'
    """

    def tagged(tag: str, inner: str, css: str = "") -> str:
        return f"<{tag}" + (f" style='{words(css)}'" if css else "") + f">{inner}</{tag}>"

    titles = "".join(tagged("th", words(title)) for title in head)
    parts = [tagged("caption", words(caption))] if caption else []
    parts += [tagged("tr", titles)] if titles else []
    for number, row in enumerate(rows):
        cells = (
            tagged("td" if column else first, words(value), (style or {}).get(column, ""))
            for column, value in enumerate(row)
        )
        parts.append(tagged("tr", "".join(cells), "font-weight:bold" * (number in bold)))
    return tagged("table", "".join(parts))
