"""A report: one self-contained HTML page of text, comparisons and figures, and their PNG files.

report.html         everything inside: no address outside the page, no script
01-memory.png ...   the figures once more, for slides and README
"""

import base64
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from platform import python_version

from tiledask.errors import ConfigError
from tiledask.extras import needed_for
from tiledask.lab.plots.primitives import Figure
from tiledask.lab.table import Comparison, counted

__all__ = ["Report", "Section", "library_versions", "write_whole"]

_DPI = 150
_PACKAGES = ("tiledask", "dask", "distributed", "numpy", "cupy-cuda13x", "dask-cuda", "matplotlib")


@dataclass
class Section:
    """One part of a report: text, comparisons and figures in the order they were added."""

    title: str
    items: list[tuple[str, object]] = field(default_factory=list)
    """(kind, content): ("text", Markdown), ("table", Comparison), ("figure", Picture)."""

    def text(self, markdown: str) -> "Section":
        """Add text: Markdown's paragraphs, lists, tables, ``code``, *emphasis*. HTML in it is
        shown, not used, and so are links."""
        self.items.append(("text", markdown))
        return self

    def table(self, comparison: Comparison) -> "Section":
        """Add a comparison; its claims count in the report's summary."""
        if not isinstance(comparison, Comparison):
            raise ConfigError(
                f"section {self.title!r}: table takes a Comparison, got "
                f"{type(comparison).__name__}; wrap its rows in Comparison(title, rows)"
            )
        self.items.append(("table", comparison))
        return self

    def figure(self, figure: Figure, name: str, caption: str = "") -> "Section":
        """Add a figure. ``name`` becomes a file name: small letters, digits and dashes."""
        if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name):
            raise ConfigError(
                f"a figure's name has small letters, digits and dashes only, got {name!r}; "
                f"write for example 'idle-time'"
            )
        from tiledask.lab.plots.picture import png_of  # loads matplotlib

        self.items.append(("figure", _Picture(name, caption, png_of(figure, _DPI))))
        return self

    @property
    def comparisons(self) -> list[Comparison]:
        return [item for kind, item in self.items if kind == "table"]

    @property
    def pictures(self) -> list["_Picture"]:
        return [item for kind, item in self.items if kind == "figure"]

    @property
    def held(self) -> int:
        return sum(comparison.held for comparison in self.comparisons)

    @property
    def checked(self) -> int:
        return sum(comparison.checked for comparison in self.comparisons)

    @property
    def put_off(self) -> int:
        return sum(comparison.put_off for comparison in self.comparisons)


@dataclass(frozen=True)
class _Picture:
    name: str
    caption: str
    png: bytes

    @property
    def uri(self) -> str:
        return "data:image/png;base64," + base64.b64encode(self.png).decode("ascii")

    @property
    def width(self) -> int:
        """CSS pixels, 100 for an inch."""
        return round(int.from_bytes(self.png[16:20], "big") * 100 / _DPI)


class Report:
    """Collects sections, then writes them as one page.

    >>> from tiledask.lab.table import Claim
    >>> report = Report("A tour", facts={"CPU cores": "2"})
    >>> rows = [Claim("splits searched", 1771, None, 1771, unit="count", rule="equal")]
    >>> part = report.section("24 layers").text("Every **contiguous** split, searched.")
    >>> _ = part.table(Comparison("Partition", rows))
    >>> report.summary, report.ok
    ('1 of 1 claims hold', True)
    """

    def __init__(
        self,
        title: str,
        *,
        facts: Mapping[str, str] | None = None,
        versions: Mapping[str, str] | None = None,
        date: datetime | None = None,
    ) -> None:
        """``facts`` describe the machine; ``versions`` default to the libraries installed, and
        ``date`` to the time of writing."""
        self.title = title
        self.facts = dict(facts or {})
        self.versions = dict(library_versions() if versions is None else versions)
        self.date = date
        self.sections: list[Section] = []

    def section(self, title: str) -> Section:
        """A new section at the end of the report."""
        self.sections.append(Section(title))
        return self.sections[-1]

    @property
    def held(self) -> int:
        """How many claims hold."""
        return sum(section.held for section in self.sections)

    @property
    def checked(self) -> int:
        """How many claims were checked."""
        return sum(section.checked for section in self.sections)

    @property
    def put_off(self) -> int:
        """How many claims about time are judged later, as the machine was busy."""
        return sum(section.put_off for section in self.sections)

    @property
    def ok(self) -> bool:
        """Whether no claim fails."""
        return self.held == self.checked

    @property
    def summary(self) -> str:
        return counted(self) or "No claim was checked"

    def to_html(self) -> str:
        """The page as text. It loads nothing: figures are inside it."""
        with needed_for("a report"):
            from jinja2 import Environment, PackageLoader, StrictUndefined

        jinja = Environment(
            loader=PackageLoader("tiledask.lab"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        jinja.filters["markdown"] = _markdown
        date = self.date or datetime.now().astimezone()
        return jinja.get_template("report.html.j2").render(
            report=self, date=date.strftime("%Y-%m-%d %H:%M %Z").strip()
        )

    def write(self, folder: str | os.PathLike, name: str = "report.html") -> Path:
        """The path of the page, written with the PNG files into ``folder`` (made if missing).

        A file appears complete or not at all: a reader never sees half a page.
        """
        folder = Path(folder)
        # file name -> PNG, numbered in the order of the page
        pictures = [picture for section in self.sections for picture in section.pictures]
        names = [picture.name for picture in pictures]
        twice = {name for name in names if names.count(name) > 1}
        if twice:
            raise ConfigError(
                f"every figure of a report has its own name, got {sorted(twice)[0]!r} "
                f"{names.count(sorted(twice)[0])} times; rename one"
            )
        files = {f"{i:02d}-{p.name}.png": p.png for i, p in enumerate(pictures, start=1)}
        page = self.to_html()
        folder.mkdir(parents=True, exist_ok=True)
        for file, png in files.items():
            write_whole(folder / file, png)
        return write_whole(folder / name, page.encode("utf-8"))


def library_versions() -> dict[str, str]:
    """The versions of Python and of the libraries installed that decide the results."""
    found = {"Python": python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _markdown(text: str):
    """``text`` as safe HTML: no HTML of its own, no link, no image, no heading."""
    from markdown_it import MarkdownIt
    from markupsafe import Markup

    parser = MarkdownIt("commonmark", {"html": False}).enable("table")
    parser.disable(["link", "image", "autolink", "reference", "heading", "lheading"])
    return Markup(parser.render(text))


def write_whole(path: Path, content: bytes) -> Path:
    """``path``, holding ``content``; on an error it holds what it held before."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with open(part, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
    return path
