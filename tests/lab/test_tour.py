"""The tour: its tables come as cells finish, its page is left, and what breaks off is told."""

import io
from functools import partial

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from tiledask.errors import ConfigError
from tiledask.lab.tour import tour
from tiledask.plan.tables import print_parts

KEPT = """
import json, pathlib
import tiledask as td
table = td.Comparison("Bytes", [td.Check("sent", 4096, None, 4096, "bytes", "equal")])
print(table)
pathlib.Path("tour.json").write_text(json.dumps([table.to_dict()]))
td.plots.memory_bars({"mine": {"weights": 2}})
"""


def test_tables_are_printed_a_page_is_left_and_a_cell_that_breaks_off_is_a_claim_that_fails(
    tmp_path,
):
    cells = [new_markdown_cell("# A tour\nof it"), new_code_cell(KEPT), new_code_cell("1 / 0")]
    notebook, out = tmp_path / "small.ipynb", io.StringIO()
    nbformat.write(new_notebook(cells=cells), notebook)
    echo = partial(print_parts, file=out, width=100)
    tables = tour(tmp_path / "out", device="cpu", echo=echo, notebook=notebook)
    assert [table["ok"] for table in tables] == [True, False]
    assert "ZeroDivisionError" in tables[1]["rows"][0]["reason"]
    for words in ("# A tour", "✓ equal to the byte", "ZeroDivisionError", "the page: "):
        assert words in out.getvalue()
    page = (tmp_path / "out" / "report.html").read_text("utf-8")
    assert "data:image/png;base64," in page
    assert "4,096 B" in page


@pytest.mark.slow
@pytest.mark.cluster
def test_every_claim_of_the_tour_holds(tmp_path):
    tables = tour(tmp_path, device="cpu", echo=partial(print_parts, file=io.StringIO()))
    rows = {row["quantity"]: row for table in tables for row in table["rows"]}
    # what a clock says depends on what else this machine does
    failed = [name for name, row in rows.items() if row["holds"] is False and ": idle" not in name]
    assert failed == []
    assert sum(row["rule"] is not None for row in rows.values()) == 44
    assert rows["GPUs for training, 200e9 x 16 B"]["predicted"] == 80
    assert rows["full copy: MemoryError at layer"]["measured"] == 3
    assert rows["bytes between workers"]["measured"] == 2 * 4096 * 4096 * 4
    assert rows["contiguous splits into 4 non-empty parts"]["simulated"] == 1771


def test_a_device_that_is_not_there_is_refused_before_anything_runs(tmp_path):
    with pytest.raises(ConfigError, match="got 'tpu'"):
        tour(tmp_path / "never", device="tpu")
    assert not (tmp_path / "never").exists()
