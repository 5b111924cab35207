"""`make site`: runs the walkthroughs and makes pages of them that open without a network."""

import argparse
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from rich.console import Console
from rich.progress import Progress

from tiledask.lab.site import looked_at, reference

__all__ = ["anchor", "main", "readable"]

_HERE = Path(__file__).parent
_TOC = """```{{toctree}}
:hidden:

{names}
```
"""
_ANCHOR = re.compile(r'^<a id="([^"]+)"></a>', re.MULTILINE)
_ROW = re.compile(r"^\| \[([^]]+)\]\((\w+)\.ipynb\)", re.MULTILINE)
_AT_ONCE = 2
"""Walkthroughs that run at a time: each has workers of its own."""
_LIMIT = 600
"""Seconds that a cell may take."""


def run(path: Path) -> Any:
    """The walkthrough of ``path`` with the outputs of a run of today."""
    notebook = nbformat.read(path, as_version=4)
    client: Any = NotebookClient(notebook, timeout=_LIMIT, resources={"metadata": {"path": "."}})
    client.execute()
    return notebook


def readable(notebook: Any) -> Any:
    """``notebook`` for a page: no fields to type into, what is folded in JupyterLab folded there
    too, and words for each picture, which are what its figure is called as text."""
    notebook.metadata.pop("widgets", None)
    for cell in notebook.cells:
        if cell.cell_type != "code":
            continue
        if cell.metadata.get("jupyter", {}).get("source_hidden"):
            solution = "solution" in cell.metadata.get("tags", ())
            tag = "hide-cell" if solution else "hide-input"
            cell.metadata["tags"] = [*cell.metadata.get("tags", ()), tag]
        for output in cell.outputs:
            data = output.get("data", {})
            data.pop("application/vnd.jupyter.widget-view+json", None)
            if "image/png" in data:
                words = " ".join("".join(data.get("text/plain", "")).split())
                cell.metadata["mystnb"] = {"image": {"alt": words}}
    return notebook


def anchor(heading: str) -> str:
    """Where a link of JupyterLab's leads that is meant for ``heading``."""
    return heading.replace(" ", "-")


def sources(walkthroughs: Path, folder: Path, console: Console, *, runs: bool) -> None:
    """None, once ``folder`` has what Sphinx reads."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "reference").mkdir(parents=True)
    paths = sorted(walkthroughs.glob("*.ipynb"))
    with Progress(console=console) as progress, ThreadPoolExecutor(_AT_ONCE) as pool:
        going = progress.add_task("walkthroughs", total=len(paths))

        def page(path: Path) -> None:
            notebook = run(path) if runs else nbformat.read(path, as_version=4)
            nbformat.write(readable(notebook), folder / path.name)
            progress.advance(going)

        list(pool.map(page, paths))
    for path in walkthroughs.glob("*.md"):
        text = _ANCHOR.sub(r"(\1)=\n", path.read_text("utf-8"))
        if path.name == "contents.md":
            titles = (f"{title} <{name}>" for title, name in _ROW.findall(text))
            names = [*titles, "glossary", "questions", "reference/index"]
            text += "\n" + _TOC.format(names="\n".join(names))
        (folder / path.name).write_text(text, "utf-8")
    for name, text in reference.pages().items():
        (folder / "reference" / f"{name}.rst").write_text(text, "utf-8")
    for name in ("conf.py", "site.css"):
        shutil.copy(_HERE / name, folder / name)


def main(arguments: list[str] | None = None) -> int:
    """Make the site, and say what is wrong with it; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tiledask.lab.site.build", description=__doc__)
    parser.add_argument("--walkthroughs", type=Path, default=Path("nbs"), metavar="DIR")
    parser.add_argument("--to", type=Path, default=Path("build/site"), metavar="DIR")
    parser.add_argument(
        "--stored", action="store_true", help="no runs: the outputs that are stored"
    )
    asked = parser.parse_args(arguments)
    console = Console()
    source = asked.to.with_name(asked.to.name + "-source")
    sources(asked.walkthroughs, source, console, runs=not asked.stored)
    from sphinx.cmd.build import build_main

    shutil.rmtree(asked.to, ignore_errors=True)
    failed = build_main(["-q", "-W", "--keep-going", "-j", "2", str(source), str(asked.to)])
    wrong = list(looked_at.faults(asked.to))
    for fault in wrong[:40]:
        console.print(fault, style="red", highlight=False, soft_wrap=True)
    pages = len([*asked.to.rglob("*.html")])
    console.print(
        f"{pages} pages in {asked.to}, {len(wrong)} faults: open {asked.to}/contents.html"
    )
    return int(bool(failed or wrong))


if __name__ == "__main__":
    raise SystemExit(main())
