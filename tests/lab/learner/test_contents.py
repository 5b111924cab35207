"""The contents page says what the notebooks and the kept predictions say."""

import json
import os
import re
from pathlib import Path

import pytest
from oracles.finished import ROOT

from tiledask.lab.learner import kept
from tiledask.lab.learner.score import score, write_contents
from tiledask.lab.learner.start import lab_command


@pytest.fixture
def nbs(tmp_path):
    """Three notebooks, of so many questions, and their contents."""
    folder = tmp_path / "nbs"
    folder.mkdir()
    rows = ["| unit | afterwards you can | minutes |", "|---|---|--:|"]
    for name, title, asked in (
        ("00_x", "00 One", 0),
        ("01_y", "01 Two", 4),
        ("02_z", "02 End", 2),
    ):
        sources = [f'guess = td.predict("q{i}")\nguess' for i in range(asked)]
        cells = [{"cell_type": "code", "source": [s], "metadata": {}} for s in sources]
        (folder / f"{name}.ipynb").write_text(json.dumps({"cells": cells}))
        rows.append(f"| [{title}]({name}.ipynb) | do {title} | 29 |")
    (folder / "contents.md").write_text("\n".join(["# All\n\nWords.\n", *rows, ""]))
    return folder


def test_the_page_says_what_was_predicted_and_where_to_go_on(nbs, tmp_path):
    learn = tmp_path / "learn"
    (learn / ".progress").mkdir(parents=True)

    def page(name: str = "", *stars: int | None) -> str:
        """With a prediction for each of ``stars``; None: asked, and nothing typed."""
        into = kept.Kept(name, learn / ".progress" / f"{name}.json")
        for i, each in enumerate(stars):
            into.put(f"q{i}", **({"unit": ""} if each is None else {"value": 1.0, "stars": each}))
        write_contents(nbs, learn)
        return (learn / "contents.md").read_text()

    first = page()
    assert first.startswith("# All\n\n**0 of 6 predictions made, 0 of 18 stars** when ")
    assert "takes about 1 hours. Begin with [01 Two](01_y.ipynb)." in first
    some = page("01_y", 3, 1, None, 0)
    assert "**3 of 6 predictions made, 4 of 18 stars**" in some
    assert "| do 01 Two | 29 | 3&nbsp;of&nbsp;4 | 4&nbsp;of&nbsp;12 |" in some
    assert "Go on with [01 Two]" in some
    assert "Go on with [02 End]" in page("01_y", 3, 1, 0, 0)
    assert "Go on" not in page("02_z", 3, 3)


def test_the_score_is_written_to_the_page_that_is_there_and_only_then(tmp_path, monkeypatch):
    learn = tmp_path / "learn"
    monkeypatch.setenv(kept.FOLDER, str(learn / ".progress"))
    monkeypatch.setenv("JPY_SESSION_NAME", "learn/03_one_product_on_many_workers.ipynb")
    monkeypatch.setattr(kept, "_open", {})
    score()
    assert not learn.exists()
    learn.mkdir()
    write_contents(ROOT / "nbs", learn)
    kept.here().put("bytes of A", value=8e6, stars=3)
    score()
    assert "| 1&nbsp;of&nbsp;" in (learn / "contents.md").read_text()


# -- the start -----------------------------------------------------------------------------------


def test_jupyterlab_stays_on_this_machine_and_in_the_learners_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("JUPYTER_CONFIG_PATH", "/mine")
    monkeypatch.setenv("TILEDASK_DASHBOARD_PORT", "9000")
    command, environment = lab_command(tmp_path / "learn", ["--port=1"])
    assert "--ServerApp.ip=127.0.0.1" in command
    said = " ".join(command)
    assert not re.search(r"token=|password=|disable_check_xsrf|allow_origin|0\.0\.0\.0", said)
    assert f"--ServerApp.root_dir={tmp_path}" in command  # links lead out of the folder
    learn = str(tmp_path / "learn")
    assert environment[kept.FOLDER].startswith(learn)
    assert environment["JUPYTERLAB_WORKSPACES_DIR"].startswith(learn)
    own, mine = environment["JUPYTER_CONFIG_PATH"].split(os.pathsep)
    assert (own.startswith(learn), mine) == (True, "/mine")
    assert [path.name for path in tmp_path.iterdir()] == ["learn"]
    settings = json.loads(Path(own, "labconfig", "default_setting_overrides.json").read_text())
    assert settings["dask-labextension:plugin"]["defaultURL"] == "http://127.0.0.1:9000"
