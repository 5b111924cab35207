"""`make site`: the notebooks, run, and the public names, as pages that need no network.

    sphinx-build -c docs -D nb_execution_mode=force build/site-source build/site

``build/site-source`` is a copy of nbs/: the contents are the root, and the reference is written
beside them.
"""

import json
import os
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import latex2mathml.converter
from docutils.nodes import SkipNode

import tiledask as td

project = "tiledask"
html_title = "tiledask: split large models over devices"
extensions = ["myst_nb", "sphinx.ext.autodoc"]
root_doc = "contents"
html_theme = "furo"
html_copy_source = False
html_show_copyright = False
html_static_path = ["_static"]
html_js_files = ["sliders.js", "boards.js", "predict.js"]
html_css_files = ["pages.css"]
html_math_renderer = "mathml"
default_role = "code"
nb_execution_mode = "off"
nb_execution_timeout = 600
nb_merge_streams = True
nb_code_prompt_show = "Show the code"
nb_ipywidgets_js: dict[str, object] = {}
# a task is shown by its words: the button for its hints needs Python
nb_mime_priority_overrides = [("html", "application/vnd.jupyter.widget-view+json", 35)]
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3
myst_heading_slug_func = "conf.slug"
autodoc_typehints = "none"
suppress_warnings = ["mystnb.unknown_mime_type"]
os.environ["TILEDASK_FRAMES"] = "64"  # of sliders, at some 20 kB each
_CUTS = {"06_cut_24_layers": {"costs": [1] * 24, "devices": 4}}
"""Pages whose sliders are the places between devices."""
_ROW = re.compile(r"^\| \[([^]]+)\]\((\w+)\.ipynb\)", re.MULTILINE)


def slug(heading: str) -> str:
    """Where a link of JupyterLab's leads that is meant for ``heading``."""
    return heading.replace(" ", "-")


def contents(_app: object, docname: str, source: list[str]) -> None:
    """The contents name all pages; anchors of the glossary are Sphinx's; what a notebook hides, as
    solutions, a page hides, too."""
    if source[0].startswith("{"):
        notebook = json.loads(source[0])
        for about in (cell["metadata"] for cell in notebook["cells"]):
            if about.get("jupyter", {}).get("source_hidden"):
                about["tags"] = [*about.get("tags", ()), "hide-input"]
        source[0] = json.dumps(notebook)
        return
    source[0] = re.sub(r'^<a id="([^"]+)"></a>', r"(\1)=\n", source[0], flags=re.MULTILINE)
    if docname == root_doc:
        pages = [f"{title} <{name}>" for title, name in _ROW.findall(source[0])]
        pages += ["tour", "glossary", "questions", "reference"]
        source[0] += "\n```{toctree}\n:hidden:\n\n" + "\n".join(pages) + "\n```\n"


def first_order(inputs: Any) -> list[list[tuple[int, str, int]]]:
    """All forwards of each device, then all that is due of the way back: legal, and slow."""
    stages, many = [*range(inputs["stages"])], range(inputs["microbatches"])
    kinds = [("F", stages), ("I" if inputs.get("split") else "B", stages[::-1])]
    kinds += [("W", stages)] * bool(inputs.get("split"))
    actions = [(stage, kind, m) for kind, each in kinds for stage in each for m in many]
    place = inputs.get("place", stages)
    return [[a for a in actions if place[a[0]] == d] for d in range(1 + max(place))]


def boards(app: Any, page: str, _template: str, _context: object, tree: Any) -> None:
    """Give a page what its boards are about: its cut, and the orders that it names as tasks."""
    found: dict[str, Any] = {"sliders": _CUTS[page]} if page in _CUTS else {}
    for name in re.findall(r'td\.task\("([^"]+)"\)', tree.astext() if tree else ""):
        task = td.task(name)
        if task.kind == "order":
            targets = [
                {"measure": measure, "name": each.name, "wanted": each.wanted, "best": each.best}
                for measure, each in zip(task.targets, task.judge(task.solve()), strict=True)
            ]
            found[name] = {"title": task.title, "task": task.question, "hints": task.hints}
            found[name] |= {"inputs": dict(task.inputs), "orders": first_order(task.inputs)}
            found[name]["targets"] = targets
    app.add_js_file(None, body=f"const BOARDS = {json.dumps(found)};", priority=100)


def formula(block: bool) -> Any:
    """Write a formula as MathML, which browsers draw by themselves: no script, no font."""

    def visit(writer: Any, node: Any) -> None:
        display = "block" if block else "inline"
        writer.body.append(latex2mathml.converter.convert(node.astext(), display=display))
        raise SkipNode

    return visit, None


def setup(app: Any) -> None:
    """Write the page of the public names beside the notebooks."""
    lines = ["Reference", "=========", ""]
    for name in td.__all__:
        value = getattr(td, name)
        if not isinstance(value, ModuleType) and callable(value):
            kind = "autoclass" if isinstance(value, type) else "autofunction"
            lines += [f".. {kind}:: tiledask.{name}", ""]
    Path(app.srcdir, "reference.rst").write_text("\n".join(lines), "utf-8")
    app.add_html_math_renderer("mathml", formula(False), formula(True))
    app.connect("source-read", contents)
    app.connect("html-page-context", boards)
