"""Walkthroughs lead to each other, to the contents and to the glossary, and no link leads nowhere.

A link's file is there, and so is its anchor: an ``<a id=...>`` of a page, a heading of a notebook.
What the text calls "notebook 07" is one. Each entry of the glossary is linked by some walkthrough.
"""

import json
import re
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path

import pytest
from oracles.finished import ROOT

NBS = ROOT / "nbs"
LINK = re.compile(r"\]\((?!\w+:)([^)#\s]*)(?:#([^)\s]+))?\)")
BARE = re.compile(r"\bnotebooks?\s+\d\d[a-z]?\b", re.IGNORECASE)
ENTRY = re.compile(r'^<a id="([^"]+)"></a>\*\*(.+?)\*\*', re.MULTILINE)


def texts(folder: Path) -> dict[str, list[str]]:
    """File -> its text: a page whole, a notebook cell by cell."""
    pages = {path.name: [path.read_text("utf-8")] for path in sorted(folder.glob("*.md"))}
    for path in sorted(folder.glob("[0-9]*.ipynb")):
        cells = json.loads(path.read_text("utf-8"))["cells"]
        pages[path.name] = ["".join(c["source"]) for c in cells if c["cell_type"] == "markdown"]
    return pages


def anchors(cells: list[str]) -> set[str]:
    """What a link may name in a file: ids, and headings as JupyterLab spells them."""
    text = "\n".join(cells)
    headings = {line.replace(" ", "-") for line in re.findall(r"^#+ (.+)$", text, re.MULTILINE)}
    return headings | set(re.findall(r'<a id="([^"]+)">', text))


def faults(folder: Path) -> Iterator[str]:
    pages = texts(folder)
    linked = set()
    for name, cells in pages.items():
        for file, anchor in LINK.findall("\n".join(cells)):
            if file and not (folder / file).exists():
                yield f"{name} links {file}, which is not there"
            elif anchor and anchor not in anchors(pages.get(file or name, [])):
                yield f"{name} links {file}#{anchor}, which is not there"
            if name.endswith(".ipynb") and file == "glossary.md":
                linked.add(anchor)
        if name.endswith(".ipynb"):
            yield from (f"{name}: {bare!r} is no link" for bare in BARE.findall("\n".join(cells)))
    entries = ENTRY.findall("\n".join(pages["glossary.md"]))
    yield from (
        f"the glossary's {i} is linked by no walkthrough" for i, _ in entries if i not in linked
    )
    in_order = sorted(entries, key=lambda entry: entry[1].lower())
    if entries != in_order or len({i for i, _ in entries}) < len(entries):
        yield "the glossary's entries are in order of the alphabet, each once"
    yield from way(pages)


def way(pages: Mapping[str, list[str]]) -> Iterator[str]:
    """From the contents to each notebook, and on from each to the next, and back."""
    notebooks = [name for name in pages if name.endswith(".ipynb")]
    contents = [file for file, _ in LINK.findall(pages["contents.md"][0]) if file in notebooks]
    if contents != notebooks:
        yield "the contents have every notebook, in order"
    for name in notebooks:
        cells = pages[name]
        for place, cell in (("begins", cells[0]), ("ends", cells[-1])):
            if "](contents.md)" not in cell:
                yield f"{name} {place} without a link to the contents"
    for name, following in pairwise(notebooks):
        if f"]({following})" not in pages[name][-1]:
            yield f"{name} does not end with a link to {following}"
        if f"]({name})" not in pages[following][0]:
            yield f"{following} does not begin with a link back to {name}"


@pytest.mark.long
def test_links_lead_somewhere_and_each_walkthrough_to_the_next():
    assert list(faults(NBS)) == []
    assert len(ENTRY.findall((NBS / "glossary.md").read_text())) >= 60


# -- the checker ---------------------------------------------------------------------------------

GOOD = {
    "contents.md": "[00](00_a.ipynb) [01](01_b.ipynb)",
    "glossary.md": '<a id="halo"></a>**Halo.** Rows.\n\n<a id="rank"></a>**Rank.** [No](#halo).',
    "00_a.ipynb": [
        "# A\n[c](contents.md) [halo](glossary.md#halo)",
        "[on](01_b.ipynb) [c](contents.md)",
    ],
    "01_b.ipynb": [
        "# B\n[c](contents.md) [back](00_a.ipynb) [A](00_a.ipynb#A)",
        "[r](glossary.md#rank) [c](contents.md)",
    ],
}
PLANTED = [
    ("00_a.ipynb", "(glossary.md#halo)", "(glossary.md#hallo)", "glossary.md#hallo, which is not"),
    ("00_a.ipynb", "(glossary.md#halo)", "(glosary.md#halo)", "links glosary.md, which is not"),
    ("01_b.ipynb", "00_a.ipynb#A", "00_a.ipynb#Z", "00_a.ipynb#Z, which is not there"),
    ("glossary.md", "(#halo)", "(#hallo)", "links #hallo"),
    ("01_b.ipynb", "[r](glossary.md#rank)", "r", "glossary's rank is linked by no"),
    ("01_b.ipynb", "# B", "# B, see Notebook 00", "'Notebook 00' is no link"),
    ("00_a.ipynb", "[on](01_b.ipynb)", "on", "does not end with a link to 01_b"),
    ("01_b.ipynb", "[back](00_a.ipynb)", "back", "not begin with a link back to 00_a"),
    ("00_a.ipynb", "[c](contents.md) [halo]", "[halo]", "begins without a link to the contents"),
    ("contents.md", "[00](00_a.ipynb) ", "", "the contents have every notebook"),
    ("glossary.md", 'id="rank"></a>**Rank', 'id="rank"></a>**A rank', "order of the alphabet"),
]


def written(folder: Path) -> Path:
    for name, text in GOOD.items():
        if name.endswith(".md"):
            (folder / name).write_text(text)
        else:
            cells = [{"cell_type": "markdown", "source": [cell]} for cell in text]
            (folder / name).write_text(json.dumps({"cells": cells}))
    return folder


@pytest.mark.parametrize(("file", "old", "new", "fault"), PLANTED)
def test_a_planted_fault_is_found(tmp_path, file, old, new, fault):
    assert list(faults(written(tmp_path))) == []
    text = (tmp_path / file).read_text()
    old, new = (x if file.endswith(".md") else json.dumps(x)[1:-1] for x in (old, new))
    assert old in text
    (tmp_path / file).write_text(text.replace(old, new, 1))
    found = list(faults(tmp_path))
    assert any(fault in f for f in found), found
