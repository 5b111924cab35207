"""What is wrong with pages: links to nowhere, pictures without words, what needs a network."""

from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

__all__ = ["faults"]

_LOADED = {"img": "src", "script": "src", "iframe": "src", "source": "src", "link": "href"}
"""What a page loads by itself, and the attribute that says from where."""


class _Page(HTMLParser):
    def __init__(self, path: Path) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.wordless: list[str] = []
        self.feed(path.read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        said = {name: value or "" for name, value in attrs}
        self.ids.add(said.get("id", said.get("name", "")))
        if tag == "a" and said.get("href"):
            self.links.append(said["href"])
        if said.get(_LOADED.get(tag, "")):
            self.loads.append(said[_LOADED[tag]])
        if tag == "img" and not said.get("alt", "").strip():
            self.wordless.append(said.get("src", "")[:80])


def faults(folder: Path) -> Iterator[str]:
    """A sentence for each thing that is wrong with the pages under ``folder``."""
    pages = {path.resolve(): _Page(path) for path in sorted(folder.rglob("*.html"))}
    for path, page in pages.items():
        name = path.relative_to(folder.resolve())
        yield from (f"{name}: a picture without words, {src}" for src in page.wordless)
        for address in page.loads:
            if urlsplit(address).scheme in ("http", "https") or address.startswith("//"):
                yield f"{name}: loads {address} from the network"
        for link in dict.fromkeys(page.links):
            where = urlsplit(link)
            if where.scheme or where.netloc:
                continue
            target = (path.parent / unquote(where.path)).resolve() if where.path else path
            if not target.exists():
                yield f"{name}: links {link}, which is not there"
            elif target in pages and unquote(where.fragment) not in {"", *pages[target].ids}:
                yield f"{name}: links {link}, and there is no such place on that page"
