"""`make gpu`: what goes wrong in one measurement costs that one, and record and page say so."""

import json
import os
from pathlib import Path

import pytest

from tiledask.lab.gpu import __main__ as command
from tiledask.lab.gpu.page import goals, page
from tiledask.lab.gpu.part import Notes, read_journal
from tiledask.lab.gpu.runner import find_parts, run_part
from tiledask.plan.data import data_file

PARTS = find_parts(["twins.gpu_parts"])


@pytest.fixture(autouse=True)
def _twins_are_found(monkeypatch):
    tests = Path(__file__).parents[2]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, (tests, tests.parent))))


def run(name, journal, seconds):
    return run_part(PARTS[name], journal, seconds, "numpy", print, ["twins.gpu_parts"])


def test_a_part_goes_on_behind_what_dies_hangs_or_raises(tmp_path):
    end = run("wrong", tmp_path / "journal", 120)
    assert end["state"] == "done"
    rows = {line["key"]: line for line in read_journal(tmp_path / "journal") if "key" in line}
    assert {key: row["state"] for key, row in rows.items()} == {
        "dies": "failed",
        "hangs": "failed",
        "raises": "failed",
        "fine": "right",
        "a product": "wrong",
    }
    assert "SIGABRT" in rows["dies"]["why"]
    assert rows["hangs"]["why"] == "did not end within 2 s"
    assert rows["raises"]["why"].startswith("ZeroDivisionError")
    assert rows["dies"]["step"] == "dies"
    assert rows["fine"]["error"] == "nan"


def test_a_part_is_cut_off_when_its_time_is_over_and_needs_what_it_needs(tmp_path):
    journal = tmp_path / "journal"
    assert run("long", journal, 5.0)["state"] == "cut off"
    assert [line["key"] for line in read_journal(journal) if "key" in line] == ["first"]
    end = run("missing", journal, 5.0)
    assert (end["state"], end["why"]) == ("left out", "not installed: no_such_package")


def test_half_a_line_is_not_read(tmp_path):
    notes = Notes("p", tmp_path / "journal", 0.0, tmp_path)
    notes.add("one", "right")
    with notes.journal.open("a") as file:
        file.write('{"key": "tw')
    assert [line["key"] for line in read_journal(notes.journal)] == ["one"]


def test_goals_are_marked_and_what_was_not_measured_is_said():
    row = {"key": "bf16 8192 cubed: x", "goal": "bf16", "reached": 0.97}
    cells = goals([row]).rows
    assert cells[0][1:] == ("bf16 8192 cubed: x", "1.00", "0.97", "✗")
    assert {row[4] for row in cells[1:]} == {"not measured"}


def test_a_record_and_its_page_are_left_without_a_gpu(tmp_path, capsys):
    given = ["--arrays", "numpy", "--only", "first", "--minutes", "2", "--out", str(tmp_path)]
    assert command.main(given) == 0
    (record,) = tmp_path.glob("*.json")
    facts = json.loads(record.read_text())
    assert {row["part"] for row in facts["rows"]} == {"first"}
    assert {row["state"] for row in facts["rows"]} == {"right"}
    assert "\n## first: Each kernel once" in record.with_suffix(".md").read_text()
    assert "0 wrong or failed" in capsys.readouterr().out


def test_an_unknown_part_and_a_machine_without_a_gpu_are_said(capsys, monkeypatch):
    assert command.main(["--arrays", "numpy", "--only", "nothing"]) == 1
    assert "--only takes first, speed" in capsys.readouterr().err
    monkeypatch.setattr(command, "ask_gpu", lambda code: {"usable": False, "reason": "no driver"})
    assert command.main([]) == 1
    assert "no driver" in capsys.readouterr().err


def test_the_shipped_record_has_a_page():
    facts = json.loads((data_file("measured") / "gpu" / "nvidia-h200.json").read_text("utf-8"))
    made = page(facts, [*find_parts().values()])
    assert "# NVIDIA H200: what `make gpu` found" in made
    assert "| bf16 8192 cubed | wgmma\\_ws\\_persistent | 1.56 ms | 702.6 | 1.022 |" in made
