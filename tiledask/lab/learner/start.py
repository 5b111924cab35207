"""JupyterLab on a learner's folder: the contents at the left, the dashboard's page docked right.

    tiledask notebooks learn --lab

All that JupyterLab keeps lies in the folder: settings and layout in .lab, predictions in .progress.
"""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from tiledask.files import atomic_write
from tiledask.lab.learner.contents import PAGE
from tiledask.lab.learner.kept import FOLDER, PROGRESS

__all__ = ["lab_command"]

_PORT = "TILEDASK_DASHBOARD_PORT"
"""Clusters read it, and the panels watch it until the first cluster tells them its address."""
_PANEL = "dask-dashboard-launcher"
_ROUTE = "/individual-tiledask"


def lab_command(
    folder: str | os.PathLike[str], arguments: Sequence[str] = ()
) -> tuple[list[str], dict[str, str]]:
    """The command that starts JupyterLab on ``folder``, with ``arguments`` of its own, and its
    environment; the settings that it reads are written.

    It listens on this machine only. Links from the walkthroughs lead out of the folder, so it
    serves the one above. A layout that is there already is the learner's, and stays.
    """
    folder = Path(folder).resolve()
    environment = dict(os.environ)
    port = environment.setdefault(_PORT, "8787")
    dashboard = f"http://127.0.0.1:{port}"
    settings = {
        # the panels' own cluster button is hidden: its clusters would listen on every network
        # interface
        "dask-labextension:plugin": {"defaultURL": dashboard, "hideClusterManager": True},
        "@jupyterlab/docmanager-extension:plugin": {
            "defaultViewers": {"markdown": "Markdown Preview"}
        },
        "@jupyterlab/apputils-extension:notification": {"fetchNews": "false"},
    }
    _write(folder / ".lab" / "labconfig" / "default_setting_overrides.json", settings)
    workspaces = folder / ".lab" / "workspaces"
    saved = workspaces / _file_of("default")
    if not saved.exists():
        _write(saved, _workspace(f"{folder.name}/{PAGE}", dashboard))
    more = environment.get("JUPYTER_CONFIG_PATH")
    environment["JUPYTER_CONFIG_PATH"] = os.pathsep.join(filter(None, [f"{folder}/.lab", more]))
    environment["JUPYTERLAB_WORKSPACES_DIR"] = str(workspaces)
    environment[FOLDER] = str(folder / PROGRESS)
    command = [
        *(sys.executable, "-m", "jupyterlab", "--ServerApp.ip=127.0.0.1"),
        f"--ServerApp.root_dir={folder.parent}",
        f"--FileContentsManager.preferred_dir={folder}",
        # what a notebook shows may then point the panels at its cluster
        "--LabApp.expose_app_in_browser=True",
        *(["--allow-root"] if os.geteuid() == 0 else []),
        *arguments,
    ]
    return command, environment


def _file_of(workspace: str) -> str:
    """The name of the file in which JupyterLab looks for ``workspace``."""
    from jupyterlab_server.workspaces_handler import slugify

    return f"{slugify(workspace)}.jupyterlab-workspace"


def _workspace(page: str, dashboard: str) -> dict:
    """A layout: ``page`` at the left, tiledask's page of the dashboard docked at its right."""
    contents, panel = f"markdownviewer-widget:{page}", f"{_PANEL}:{_ROUTE}"

    def tabs(name: str) -> dict:
        return {"type": "tab-area", "currentIndex": 0, "widgets": [name]}

    dock = {
        "type": "split-area",
        "orientation": "horizontal",
        "sizes": [0.56, 0.44],
        "children": [tabs(contents), tabs(panel)],
    }
    # without a "current" here: it would open in spite of collapsed
    left = {"collapsed": True, "visible": True, "widgets": ["filebrowser", _PANEL]}
    right = {"collapsed": True, "visible": True, "widgets": []}
    layout = {
        "main": {"dock": dock, "current": contents},
        "left": {**left, "widgetStates": {}},
        "right": {**right, "widgetStates": {}},
        "down": {"size": 0, "widgets": []},
        "relativeSizes": [0, 1, 0],
        "top": {"simpleVisibility": True},
    }
    item = {"route": _ROUTE, "label": "Tiledask", "key": "Individual Tiledask"}
    data = {
        "layout-restorer:data": layout,
        contents: {"data": {"path": page, "factory": "Markdown Preview"}},
        panel: {"data": {"item": item}},
        _PANEL: {"url": dashboard, "cluster": ""},
    }
    return {"metadata": {"id": "default"}, "data": data}


def _write(path: Path, content: dict) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(path, json.dumps(content, indent=1).encode())
