"""Puzzle files: what is read, what is refused and how it is said; and the command."""

import json
import re
from functools import reduce
from operator import getitem

import pytest
from oracles.finished import ROOT

from tiledask.cli import main
from tiledask.errors import ConfigError
from tiledask.lab.learner.kept import PROGRESS, TASKS, Kept
from tiledask.lab.learner.score import score
from tiledask.lab.tasks import load_puzzle, puzzle_levels
from tiledask.plan.data import shipped_json

PAGE = ROOT / "nbs" / "README.md"
OF_KIND = {
    "partition": "24-memory-cap",
    "order": "shifted-by-one",
}


def write(path, text):
    path.write_text(text)
    return path


def changed(name, **changes):
    """The file of a level with values put in ("inputs__costs") or, for None, taken out."""
    values = json.loads((ROOT / f"data/puzzles/{name}.json").read_text())
    for where, value in changes.items():
        *path, key = where.split("__")
        inner = reduce(getitem, path, values)
        inner[key] = value
        if value is None:
            del inner[key]
    return values


# --- files of one's own -------------------------------------------------------------------


def test_the_example_of_the_page_for_instructors_can_be_set(tmp_path):
    page = PAGE.read_text()
    (example,) = re.findall(r"```json\n(.*?)```", page, re.DOTALL)
    puzzle = load_puzzle(write(tmp_path / "mine.json", example))
    assert (puzzle.name, puzzle.level) == ("mine", 40)
    assert puzzle.check("1-4 | 5-8 | 9-10").stars == 3
    assert not puzzle.check("1-3 | 4-6 | 7-10")
    assert load_puzzle(str(tmp_path / "mine.json")).inputs == puzzle.inputs


def test_the_page_names_every_kind_input_target_and_level():
    page, levels = PAGE.read_text(), puzzle_levels()
    assert f"{len(levels)} levels" in page
    assert [each.level for each in levels] == list(range(1, len(levels) + 1))
    for name, kind in shipped_json("puzzle_kinds.json").items():
        (row,) = (line for line in page.splitlines() if line.startswith(f"| `{name}`"))
        for word in [*kind["needed"], *kind["optional"], *kind["measures"]]:
            assert f"`{word}`" in row, (name, word)


def test_a_mapping_is_the_puzzle_of_its_file_and_has_its_title_for_a_name():
    values = changed("24-memory-cap")
    own = {key: values[key] for key in values if key != "level"}
    puzzle, shipped = load_puzzle(own), load_puzzle("24-memory-cap")
    assert puzzle.name == values["title"]
    assert (puzzle.inputs, puzzle.targets) == (shipped.inputs, shipped.targets)
    with pytest.raises(ConfigError, match="the puzzle: key 'targets' is missing; add it"):
        load_puzzle({key: own[key] for key in own if key != "targets"})


BAD = [
    ("partition", {"kind": "riddle"}, "'kind' must be one of partition, order"),
    ("partition", {"task": None}, "'task' is missing"),
    ("partition", {"targets": {}}, "'targets' has none of crossings, bottleneck"),
    ("partition", {"inputs__device": 4}, "'device' is not known here; did you mean 'devices'"),
    ("partition", {"inputs__devices": 0}, "whole number from 1 to 128; got 0"),
    ("partition", {"inputs__costs": "23 x 1"}, "got 24 memory values where 23 are needed"),
    ("partition", {"inputs__costs": "9999 x 1"}, "must be a list of 1 to 1000 numbers"),
    ("partition", {"inputs__capacity": "1 GB"}, "the largest 4 GB"),
    ("order", {"inputs__microbatches": 40}, "160; the best order is proven for up to 48"),
    ("order", {"inputs__place": [0, 2]}, "place has the rank, from 0, of each of 4 stages"),
]


@pytest.mark.parametrize(("kind", "changes", "words"), BAD)
def test_a_bad_file_is_refused_by_its_key(tmp_path, kind, changes, words):
    values = changed(OF_KIND[kind], **changes)
    text = json.dumps(values).replace("Infinity", "1e400")
    with pytest.raises(ConfigError, match=re.escape(words)) as refused:
        load_puzzle(write(tmp_path / "bad.json", text))
    assert "bad.json" in str(refused.value)


# --- the command --------------------------------------------------------------------------


def run(capsys, *arguments):
    main(["puzzle", *arguments, "--json"])
    return json.loads(capsys.readouterr().out)


@pytest.fixture
def kept_in(tmp_path, monkeypatch):
    """Where the command line keeps progress, begun anew."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "tiledask" / "terminal.json"


def stars(capsys):
    return {level["name"]: level["stars"] for level in run(capsys) if level["stars"]}


def test_terminal_and_notebooks_count_what_the_other_solved(capsys, kept_in, tmp_path, monkeypatch):
    monkeypatch.setattr("tiledask.lab.learner.kept.NEAR", (PROGRESS, f"learn/{PROGRESS}"))
    (tmp_path / "learn" / PROGRESS).mkdir(parents=True)
    monkeypatch.setenv("JPY_SESSION_NAME", str(tmp_path / "learn" / "06_cut.ipynb"))
    load_puzzle(5).check("1-6 | 7-13 | 14-20 | 21-24")
    for folder in (tmp_path, tmp_path / "learn"):
        monkeypatch.chdir(folder)
        assert stars(capsys) == {"24-uneven": 3}
    run(capsys, "1", "--answer", "1-7 | 8-12 | 13-18 | 19-24")
    assert [row[0] for row in score().rows] == ["06 cut", "terminal", "all"]
    assert not kept_in.exists()


def test_hints_come_one_by_one_and_stars_are_listed(capsys, kept_in):
    hints = [run(capsys, "5", "--hint")["hint"] for _ in range(4)]
    assert [hint[:11] for hint in hints] == [f"Hint {n} of 3" for n in (1, 2, 3, 3)]
    run(capsys, "5", "--answer", "1-6 | 7-13 | 14-20 | 21-24", "--answer", "x")
    run(capsys, "1", "--answer", "1-7 | 8-12 | 13-18 | 19-24")
    assert stars(capsys) == {"24-on-4": 1, "24-uneven": 3}
    assert main(["puzzle"]) == 0
    assert f"1 of {len(puzzle_levels())} solved" in capsys.readouterr().out
    kept = Kept("", kept_in).all(TASKS)
    assert kept["24-uneven"] == {"hints": 3, "tries": 2, "stars": 3, "solved": True}
    load_puzzle(5).check("x")  # not the command line's: nowhere to be kept
    assert Kept("", kept_in).all(TASKS) == kept


def test_an_answer_may_be_in_a_file(capsys, tmp_path):
    order = "0F0,0F1,0B0,0F2,0B1,0F3,0B2,0B3\n1F0,1B0,1F1,1B1,1F2,1B2,1F3,1B3\n"
    file = write(tmp_path / "answer.txt", order)
    assert main(["puzzle", "order-on-2", "--answer", str(file)]) == 0
    shown = capsys.readouterr().out
    assert "device 0  F0 0-1, F1 1-2, B0 4-6, F2 6-7, B1 7-9" in shown
    assert "★★★ as good as can be" in shown
