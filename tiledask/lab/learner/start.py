"""JupyterLab on a learner's folder: the contents at the left, the dashboard's page docked right.

    tiledask notebooks learn --lab

All that JupyterLab keeps lies in the folder: settings and layout in .lab, predictions in .progress.
"""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tiledask.files import atomic_write
from tiledask.lab.learner.contents import PAGE
from tiledask.lab.learner.kept import FOLDER, PROGRESS

__all__ = ["lab_command"]

PORT = "TILEDASK_DASHBOARD_PORT"
"""Clusters read it, and the panels watch it until the first cluster tells them its address."""
PANEL = "dask-dashboard-launcher"
ROUTE = "/individual-tiledask"

SAVED = "default-37a8.jupyterlab-workspace"
"""The file in which JupyterLab looks for the layout that it opens with."""


def lab_command(
    folder: str | os.PathLike[str], arguments: Sequence[str] = ()
) -> tuple[list[str], dict[str, str]]:
    """The command that starts JupyterLab on ``folder``, with ``arguments`` of its own, and its
    environment; the settings that it reads are written.

    It listens on this machine only. Links from the walkthroughs lead out of the folder, so it
    serves the one above. A layout that is there already is the learner's, and stays.
    """
    folder, environment = Path(folder).resolve(), dict(os.environ)
    dashboard = f"http://127.0.0.1:{environment.setdefault(PORT, '8787')}"
    settings = {
        # the panels' own cluster button is hidden: its clusters would listen on every network
        # interface
        "dask-labextension:plugin": {"defaultURL": dashboard, "hideClusterManager": True},
        "@jupyterlab/docmanager-extension:plugin": {
            "defaultViewers": {"markdown": "Markdown Preview"}
        },
        "@jupyterlab/apputils-extension:notification": {"fetchNews": "false"},
    }
    workspaces = folder / ".lab" / "workspaces"
    saved = workspaces / SAVED
    wanted = {folder / ".lab" / "labconfig" / "default_setting_overrides.json": settings}
    if not saved.exists():
        wanted[saved] = _workspace(f"{folder.name}/{PAGE}", dashboard)
    for path, content in wanted.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(path, json.dumps(content, indent=1).encode())
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


def _workspace(page: str, dashboard: str) -> dict[str, Any]:
    """A layout: ``page`` at the left, tiledask's page of the dashboard docked at its right."""
    contents, panel = f"markdownviewer-widget:{page}", f"{PANEL}:{ROUTE}"
    areas = [{"type": "tab-area", "currentIndex": 0, "widgets": [n]} for n in (contents, panel)]
    split = {"type": "split-area", "orientation": "horizontal", "sizes": [0.56, 0.44]}
    side = {"collapsed": True, "visible": True, "widgetStates": {}}
    layout = {
        "main": {"dock": split | {"children": areas}, "current": contents},
        # without a "current" here: it would open in spite of collapsed
        "left": side | {"widgets": ["filebrowser", PANEL]},
        "right": side | {"widgets": []},
        "down": {"size": 0, "widgets": []},
        "relativeSizes": [0, 1, 0],
        "top": {"simpleVisibility": True},
    }
    item = {"route": ROUTE, "label": "Tiledask", "key": "Individual Tiledask"}
    data = {
        "layout-restorer:data": layout,
        contents: {"data": {"path": page, "factory": "Markdown Preview"}},
        panel: {"data": {"item": item}},
        PANEL: {"url": dashboard, "cluster": ""},
    }
    return {"metadata": {"id": "default"}, "data": data}
