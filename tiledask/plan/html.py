"""HTML for notebooks and pages: every word that goes in comes out as a word, not as markup."""

from collections.abc import Container, Iterable, Mapping
from html import escape

__all__ = ["table", "words"]


def words(value: object) -> str:
    """``value`` as text that is safe in HTML, between tags and inside quoted attributes.

    >>> words("<b>T4</b>")
    '&lt;b&gt;T4&lt;/b&gt;'
    """
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
    """An HTML table of values, each escaped.

    head
        Titles of the columns; none: no row of titles.
    first
        The tag of the first cell in each row: "td", or "th" where it is a title itself.
    style
        Column -> CSS of its cells, such as {1: "text-align:right"}.
    bold
        Numbers of the rows that stand out.

    >>> table(("stage", "bytes"), [(0, "<1 GB")])
    '<table><tr><th>stage</th><th>bytes</th></tr><tr><td>0</td><td>&lt;1 GB</td></tr></table>'
    """

    def row(values: Iterable[object], tags: tuple[str, str], styled: Mapping[int, str]) -> str:
        return "".join(
            f"<{tag}{_style(styled.get(column, ''))}>{words(value)}</{tag}>"
            for column, value in enumerate(values)
            for tag in (tags[column > 0],)
        )

    titles = row(head, ("th", "th"), {})
    body = "".join(
        f"<tr{_style('font-weight:bold' if number in bold else '')}>"
        f"{row(values, (first, 'td'), style or {})}</tr>"
        for number, values in enumerate(rows)
    )
    return (
        "<table>"
        + (f"<caption>{words(caption)}</caption>" if caption else "")
        + (f"<tr>{titles}</tr>" if titles else "")
        + f"{body}</table>"
    )


def _style(css: str) -> str:
    return f" style='{words(css)}'" if css else ""
