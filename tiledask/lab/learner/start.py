"""JupyterLab on a learner's folder: the contents; the first cluster opens the dashboard's page.

    tiledask notebooks learn --lab

All that JupyterLab keeps lies in the folder: settings and layout in .lab, predictions in .progress.
data/jupyterlab.json has both; the panels' own cluster button is hidden, as its clusters would
listen on every network interface.
"""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from tiledask.files import atomic_write
from tiledask.lab.learner.kept import FOLDER, PROGRESS
from tiledask.lab.learner.score import PAGE
from tiledask.plan.data import data_file

__all__ = ["lab_command"]

PORT = "TILEDASK_DASHBOARD_PORT"
"""Clusters read it, and the panels watch it until the first cluster tells them its address."""
SAVED = "default-37a8.jupyterlab-workspace"
"""The file in which JupyterLab looks for the layout that it opens with."""


def lab_command(
    folder: str | os.PathLike[str], arguments: Sequence[str] = ()
) -> tuple[list[str], dict[str, str]]:
    """The command that starts JupyterLab on ``folder``, with ``arguments`` of its own, and its
    environment; the settings that it reads are written.

    It listens on this machine only. Links from the notebooks lead out of the folder, so it
    serves the one above. A layout that is there already is the learner's, and stays.
    """
    folder, environment = Path(folder).resolve(), dict(os.environ)
    dashboard = f"http://127.0.0.1:{environment.setdefault(PORT, '8787')}"
    text = data_file("jupyterlab.json").read_text("utf-8").replace("$DASHBOARD", dashboard)
    page = json.dumps(f"{folder.name}/{PAGE}")[1:-1]
    given = json.loads(text.replace("$PAGE", page))
    workspaces = folder / ".lab" / "workspaces"
    saved = workspaces / SAVED
    settings = folder / ".lab" / "labconfig" / "default_setting_overrides.json"
    wanted = {settings: given["settings"]}
    if not saved.exists():
        wanted[saved] = given["workspace"]
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
