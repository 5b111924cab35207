"""Pages: what Sphinx is given, and what is found wrong with what it makes.

Holds `tiledask.lab.site.build`, `tiledask.lab.site.conf`, `tiledask.lab.site.looked_at` and
`tiledask.lab.site.reference`.
"""

from importlib.util import find_spec

import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from oracles.finished import ROOT

import tiledask as td
from tiledask.lab.site import looked_at, reference

GOOD = {
    "a.html": '<h1 id="A">A</h1><a href="b.html#B">b</a><img src="data:image/png,0" alt="a cut">',
    "b.html": '<h1 id="B">B</h1><a href="#B">here</a><a href="https://example.org">there</a>',
}
PLANTED = [
    ("b.html#B", "b.html#C", "a.html: links b.html#C, and there is no such place on that page"),
    ("b.html#B", "c.html", "a.html: links c.html, which is not there"),
    ('alt="a cut"', 'alt=" "', "a.html: a picture without words, data:image/png,0"),
    ("data:image/png,0", "https://cdn.example.org/x.png", "loads https://cdn.example.org/x.png"),
    ("data:image/png,0", "//cdn.example.org/x.png", "loads //cdn.example.org/x.png from the net"),
]


@pytest.mark.parametrize(("old", "new", "fault"), [("", "", ""), *PLANTED])
def test_what_is_wrong_with_pages_is_found(tmp_path, old, new, fault):
    for name, text in GOOD.items():
        (tmp_path / name).write_text(text.replace(old, new) if name == "a.html" else text)
    found = list(looked_at.faults(tmp_path))
    assert len(found) == bool(fault)
    assert all(fault in each for each in found)


def test_every_public_name_has_an_entry():
    pages = reference.pages()
    there = "\n".join(pages.values())
    for name in td.__all__:
        assert f":: tiledask.{name}\n" in there or f"td.{name}" in pages[name]
    assert ":: tiledask.plots.gantt\n" in pages["plots"]
    assert "autoexception:: tiledask.errors.ConfigError" in pages["errors"]


def test_a_page_has_no_fields_folds_what_is_folded_and_says_what_pictures_show():
    build = pytest.importorskip("tiledask.lab.site.build", reason="needs nbclient")
    field = {"application/vnd.jupyter.widget-view+json": {}, "text/plain": "Predict"}
    figure = {"image/png": "0", "text/plain": "Figure: idle share\n against m"}
    hidden = {"jupyter": {"source_hidden": True}}
    cells = [
        new_markdown_cell("# T"),
        new_code_cell("guess", outputs=[new_output("execute_result", field)]),
        new_code_cell("draw()", outputs=[new_output("execute_result", figure)]),
        new_code_cell("# Yours", metadata=hidden),
        new_code_cell("# A solution.", metadata={**hidden, "tags": ["solution"]}),
    ]
    made = build.readable(new_notebook(cells=cells)).cells
    assert made[1].outputs[0].data == {"text/plain": "Predict"}
    assert made[2].metadata["mystnb"] == {"image": {"alt": "Figure: idle share against m"}}
    assert made[3].metadata["tags"] == ["hide-input"]
    assert made[4].metadata["tags"] == ["solution", "hide-cell"]


def test_a_figure_says_what_it_shows():
    figure = td.plots.canvas(3, "Idle share")
    axes = figure.subplots()
    axes.plot([1, 2], label="1F1B")
    axes.set(xlabel="micro-batches", ylabel="idle")
    axes.legend()
    assert repr(figure) == "Figure: Idle share | idle against micro-batches | 1F1B"


@pytest.mark.slow
@pytest.mark.skipif(not find_spec("sphinx"), reason="Sphinx is not installed: make site brings it")
def test_the_site_is_made_without_a_warning(tmp_path):
    from tiledask.lab.site.build import main

    to = tmp_path / "site"
    assert main(["--stored", "--walkthroughs", str(ROOT / "nbs"), "--to", str(to)]) == 0
    page = (to / "contents.html").read_text()
    assert "reference/td.html" in page
