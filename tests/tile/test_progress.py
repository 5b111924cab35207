"""Bars: seen while something runs, never in what is compared.

Holds `tiledask.tile.progress` and `tiledask.distributed.cluster.progress`.
"""

import threading

import nbformat
import pytest
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook

from tiledask.tile.progress import showing

CELL = """
import os, time
from tiledask.tile.progress import showing
done = [0]
with showing("a product", lambda: (done[0], 20, ""), after=0.0):
    for done[0] in range(21):
        time.sleep(0.02)
print("18000000")
"""


@pytest.mark.parametrize("after", [2.0, 0.0])
def test_a_log_keeps_the_last_word_and_standard_output_nothing(capfd, after):
    """Of what is short there is no word; the bar ends with what it shows, though that fails."""
    looked, seen = threading.Event(), [(3, 20, "ill")]

    def look():
        looked.set()
        return seen[-1]

    def fails():
        with showing("a [4, 4] product", look, after):
            assert after or looked.wait(240)
            seen.append((20, 20, "well"))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert "progress" not in {thread.name for thread in threading.enumerate()}
    out, err = capfd.readouterr()
    assert out == ""
    assert [word in err for word in ("a [4, 4] product", "20/20 well")] == [not after] * 2


def test_a_notebook_shows_a_bar_while_the_cell_runs(tmp_path):
    messages = []

    class Listening(NotebookClient):
        def process_message(self, message, *rest):
            messages.append(message)
            return super().process_message(message, *rest)

    notebook = new_notebook(cells=[new_code_cell(CELL)])
    notebook.metadata.kernelspec = {"name": "python3", "display_name": "", "language": "python"}
    Listening(notebook, timeout=240, resources={"metadata": {"path": str(tmp_path)}}).execute()
    nbformat.validate(notebook)
    (cell,) = notebook.cells
    first = messages[0]["parent_header"]["msg_id"]
    of_cell = [m for m in messages if m["parent_header"]["msg_id"] == first]
    updates = [m["content"]["data"] for m in of_cell if m["msg_type"] == "update_display_data"]
    shown = [data["text/plain"] for data in updates if data]
    assert len(shown) > 2
    assert all(text.startswith("a product ") for text in shown)
    assert shown[-1] == "a product 20/20"
    assert '<progress value="20" max="20">' in updates[-2]["text/html"]
    (printed,) = [out for out in cell.outputs if out.output_type == "stream"]
    assert (printed.name, printed.text) == ("stdout", "18000000\n")
    assert all(out.get("data") == {} for out in cell.outputs if out is not printed)
