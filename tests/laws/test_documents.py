"""The pages: links lead somewhere, what they name is there, and they stay as short as they are.

Their commands and their Python are run by tests/acceptance.
"""

import json
import re
import tomllib
from pathlib import Path

import pytest
from oracles.fences import FENCE, SHELL, blocks
from oracles.finished import ROOT, finished

LISTED = finished("git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md").stdout
PAGES = [p for name in LISTED.split() if (p := ROOT / name).exists()] or [ROOT / "README.md"]
COURSE = {ROOT / "nbs" / f"{name}.md" for name in ("contents", "glossary", "questions")}
LINK = re.compile(r"\]\((?!\w+:)([^)#\s]*)(?:#([^)\s]+))?\)")


def text_of(path: Path) -> str:
    """A page, or the prose of a notebook."""
    text = path.read_text("utf-8")
    if path.suffix == ".ipynb":
        cells = json.loads(text)["cells"]
        text = "\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "markdown")
    return FENCE.sub("", text)


def anchors(path: Path) -> set[str]:
    """What a link may name: ids, and headings as JupyterLab and as GitHub spell them."""
    headings = re.findall(r"^#+ (.+)$", text_of(path), re.M)
    spelled = {re.sub(r"[^\w\- ]", "", line.lower()).replace(" ", "-") for line in headings}
    ids = re.findall(r'<a id="([^"]+)">', text_of(path))
    return spelled | {line.replace(" ", "-") for line in headings} | set(ids)


@pytest.mark.parametrize("path", [*PAGES, *sorted((ROOT / "nbs").glob("*.ipynb"))], ids=str)
def test_links_lead_somewhere(path):
    for file, anchor in LINK.findall(text_of(path)):
        there = path.parent / file if file else path
        assert there.exists(), file
        assert not anchor or anchor in anchors(there), f"{file}#{anchor}"


def test_the_readme_and_all_pages_together_are_short():
    assert (ROOT / "README.md").stat().st_size <= 8_000
    assert sum(page.stat().st_size for page in set(PAGES) - COURSE) <= 60_000


def test_targets_of_make_and_extras_of_pip_are_there():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    for page in PAGES:
        shell = "\n".join(blocks(page.read_text("utf-8"), SHELL))
        assert set(re.findall(r"^make ([a-z-]+)", shell, re.M)) <= targets, page
        assert set(re.findall(r"tiledask\[(\w+)\]", page.read_text("utf-8"))) <= set(extras), page
        assert all(m["info"].strip() for m in FENCE.finditer(page.read_text("utf-8"))), page
