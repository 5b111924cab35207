"""`make site`: the walkthroughs, run, and the public names, as pages that need no network.

    sphinx-build -c docs -D nb_execution_mode=force build/site-source build/site

``build/site-source`` is a copy of nbs/: the contents are the root, and the reference is written
beside them.
"""

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
html_static_path = ["_static"]
html_js_files = ["predict.js"]
html_css_files = ["predict.css"]
html_math_renderer = "mathml"
default_role = "code"
nb_execution_mode = "off"
nb_execution_timeout = 600
nb_merge_streams = True
nb_ipywidgets_js: dict[str, object] = {}
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3
myst_heading_slug_func = "conf.slug"
autodoc_typehints = "none"
suppress_warnings = ["mystnb.unknown_mime_type"]
_ROW = re.compile(r"^\| \[([^]]+)\]\((\w+)\.ipynb\)", re.MULTILINE)


def slug(heading: str) -> str:
    """Where a link of JupyterLab's leads that is meant for ``heading``."""
    return heading.replace(" ", "-")


def contents(_app: object, docname: str, source: list[str]) -> None:
    """The contents name all pages; anchors of the glossary are Sphinx's."""
    source[0] = re.sub(r'^<a id="([^"]+)"></a>', r"(\1)=\n", source[0], flags=re.MULTILINE)
    if docname == root_doc:
        pages = [f"{title} <{name}>" for title, name in _ROW.findall(source[0])]
        pages += ["tour", "glossary", "questions", "reference"]
        source[0] += "\n```{toctree}\n:hidden:\n\n" + "\n".join(pages) + "\n```\n"


def formula(block: bool) -> Any:
    """Write a formula as MathML, which browsers draw by themselves: no script, no font."""

    def visit(writer: Any, node: Any) -> None:
        display = "block" if block else "inline"
        writer.body.append(latex2mathml.converter.convert(node.astext(), display=display))
        raise SkipNode

    return visit, None


def setup(app: Any) -> None:
    """Write the page of the public names beside the walkthroughs."""
    lines = ["Reference", "=========", ""]
    for name in td.__all__:
        value = getattr(td, name)
        if not isinstance(value, ModuleType) and callable(value):
            kind = "autoclass" if isinstance(value, type) else "autofunction"
            lines += [f".. {kind}:: tiledask.{name}", ""]
    Path(app.srcdir, "reference.rst").write_text("\n".join(lines), "utf-8")
    app.add_html_math_renderer("mathml", formula(False), formula(True))
    app.connect("source-read", contents)
