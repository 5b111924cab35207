"""The tour: runs nbs/tour.ipynb, prints what its cells say as they finish, and leaves a page."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from tiledask.distributed.cluster.gpus import choose_device
from tiledask.extras import needed_for
from tiledask.files import atomic_write
from tiledask.plan.data import shipped
from tiledask.plan.tables import print_parts

__all__ = ["tour"]

_LIMIT = 600
"""Seconds that a cell may take."""


def tour(
    folder: str | os.PathLike[str] = "build/tour",
    *,
    device: str = "auto",
    echo: Callable[..., None] = print_parts,
    notebook: Path | None = None,
) -> list[dict[str, Any]]:
    """The tables of the tour, as JSON can hold them; page and notebook are in ``folder``.

    ``device`` is "auto", "cuda" or "cpu", as for ``start_cluster``. A cell that breaks off is a
    claim that fails, and the others go on. Takes about a minute on two cores.
    """
    with needed_for("the tour"):
        import nbconvert  # noqa: F401  # a lack of it is refused now, too
        import nbformat
        from nbclient import NotebookClient

    choose_device(device)  # what cannot be had is refused now, not in the middle
    folder = Path(folder).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    found = folder / "tour.json"
    found.unlink(missing_ok=True)
    cells = nbformat.read(notebook or shipped("nbs") / "tour.ipynb", as_version=4)
    broken = []

    def begin(cell_index: int, **_: Any) -> None:
        cell = cells.cells[cell_index]
        if cell.cell_type == "markdown":
            echo((cell.source.partition("\n")[0], ""))

    def show(cell: Any, **_: Any) -> None:
        for output in cell.outputs:
            if output.output_type == "error":
                broken.append(f"{output.ename}: {output.evalue}")
                echo((broken[-1], ""))
            elif output.output_type == "stream" and output.name == "stdout":
                echo(output.text)

    client: Any = NotebookClient(
        cells,
        timeout=_LIMIT,
        allow_errors=True,
        # of its connection, which no other machine sees
        extra_arguments=["--IPKernelApp.log_level=ERROR"],
        resources={"metadata": {"path": str(folder)}},
        on_cell_start=begin,
        on_cell_executed=show,
    )
    # a debugger of the kernel would warn of what nobody debugs here
    quiet = {"PYDEVD_DISABLE_FILE_VALIDATION": "1"}
    client.execute(env=os.environ | quiet | {"TILEDASK_TOUR_DEVICE": device})
    atomic_write(folder / "report.html", _page(cells).encode())
    echo(f"the page: {folder / 'report.html'}")
    tables = json.loads(found.read_text()) if found.is_file() else []
    for words in broken:
        row = {"quantity": "runs to its end", "holds": False, "reason": words}
        tables.append({"title": "The tour", "ok": False, "held": 0, "checked": 1, "rows": [row]})
    return tables


def _page(cells: Any) -> str:
    """The notebook as HTML: neither formulas nor widgets, so it needs no script from anywhere."""
    from nbconvert import HTMLExporter

    exporter: Any = cast(Any, HTMLExporter)(mathjax_url="", require_js_url="", jquery_url="")
    exporter.log.setLevel("ERROR")
    page, _ = exporter.from_notebook_node(cells, {"metadata": {"name": "tiledask: the tour"}})
    return str(page)
