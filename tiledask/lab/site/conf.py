"""Sphinx's settings: no page needs a network, neither for formulas nor for letters."""

from typing import Any

from tiledask.lab.site.reference import defined

project = "tiledask"
html_title = "tiledask: split large models over devices"
extensions = ["myst_nb", "sphinx.ext.autodoc"]
root_doc = "contents"
html_theme = "furo"
html_static_path = ["site.css"]
html_css_files = ["site.css"]
html_show_sphinx = html_copy_source = False
default_role = "code"
nb_execution_mode = "off"  # they are run before, two at a time
nb_merge_streams = True
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3
myst_heading_slug_func = "tiledask.lab.site.build.anchor"
autodoc_default_options = {"members": True, "show-inheritance": False}
autodoc_typehints = "none"
python_use_unqualified_type_names = True
toc_object_entries = False


def _inline(translator: Any, node: Any) -> None:
    from latex2mathml.converter import convert

    translator.body.append(convert(node.astext()))
    raise _skip()


def _block(translator: Any, node: Any) -> None:
    from latex2mathml.converter import convert

    translator.body.append(f'<div class="math">{convert(node.astext(), display="block")}</div>')
    raise _skip()


def _skip() -> Exception:
    from docutils.nodes import SkipNode

    return SkipNode()


def _tables(_app: Any, _what: str, _name: str, _of: Any, _options: Any, lines: list[str]) -> None:
    lines[:] = defined(lines)


def setup(app: Any) -> None:
    """Formulas as MathML, which browsers draw themselves; tables of arguments as lists."""
    app.connect("autodoc-process-docstring", _tables)
    app.add_html_math_renderer(
        "mathml", inline_renderers=(_inline, None), block_renderers=(_block, None)
    )
    app.config.html_math_renderer = "mathml"
