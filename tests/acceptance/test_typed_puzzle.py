"""Puzzles on the command line: shown, hinted at, judged; wrong answers stay without the best."""

import json
import re

import pytest

from tiledask.lab.tasks import load_puzzle, puzzle_names


@pytest.fixture(autouse=True)
def progress(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


def test_the_list_is_a_table_of_80_columns(answers):
    shown, levels = answers("puzzle")
    assert (shown.code, len(levels)) == (0, 19 + 12 + 2)
    assert levels[0] == {"level": 1, "name": "24-on-4", "title": "24 layers on 4 devices",
                         "kind": "partition", "stars": 0}  # fmt: skip
    lines = shown.out.splitlines()
    assert max(map(len, lines)) <= 80
    assert re.match(r"level +name +title +kind +stars", lines[0])
    assert "0 of 19 solved" in lines


def test_a_task_is_shown_with_its_numbers_and_without_an_answer(answers):
    shown, task = answers("puzzle 24-on-4")
    assert (shown.code, task["targets"]) == (0, {"crossings": 3, "bottleneck": 6})
    assert "at most 3" in shown.words
    assert "1-6" not in shown.out


def test_answers_are_judged_by_rule_target_and_stars(answers):
    shown, said = answers("puzzle 24-uneven --answer '1-6 | 7-12 | 13-18 | 19-24'")
    # 2 + 5, 6, 6, 5 + 4 = 9: above 7
    assert (shown.code, said["results"][0]["stars"]) == (1, 1)
    assert "device 3, with layers 19 to 24, is the slowest, device 1 takes 6" in shown.words
    shown, said = answers("puzzle 24-uneven --answer '1-6 | 7-13 | 14-20 | 21-24'")
    # 2 + 5, 7, 7, 3 + 4
    assert (shown.code, said["results"][0]["stars"]) == (0, 3)


def test_an_order_speaks_of_ranks_from_0_and_its_picture_of_devices_from_1(answers):
    forwards_first = "F0,F1,F2,F3,B0,B1,B2,B3; F0,F1,F2,F3,B0,B1,B2,B3"
    shown, _ = answers(f"puzzle order-on-2 --answer '{forwards_first}'")
    assert shown.code == 1
    assert "4 kept from 0F3 on" in shown.words
    assert re.search(r"device 0  F0 0-1,(.|\n)*\ndevice 1  F0 1-2,", shown.out)
    shown, _ = answers("puzzle order-on-2 --answer 'B0,F0; F0,B0'")
    assert "rank 0 is at 0B0 and waits for 0F0" in shown.words


@pytest.mark.parametrize("name", puzzle_names())
def test_no_wrong_answer_shows_the_best(typed, name):
    puzzle = load_puzzle(name)
    solution = str(puzzle.solve())
    wrong = {
        "partition": " | ".join(map(str, range(1, 1 + puzzle.inputs.get("devices", 1)))),
        "order": "0F0,0B0; 1F0,1B0",
    }[puzzle.kind]
    shown, facts = (typed(f'puzzle {name} --answer "{wrong}"{more}') for more in ("", " --json"))
    assert (shown.code, facts.code) == (1, 1)
    assert solution not in shown.out.replace("\n", " ")
    (result,) = json.loads(facts.out)["results"]
    assert {target["best"] for target in result["targets"]} <= {None}
