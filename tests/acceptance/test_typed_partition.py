"""Layers over devices as people ask for it, and answers of their own as they judge them."""

import re
from math import comb

import pytest

from tiledask.cli import main


def test_24_equal_layers_on_4_devices(answers):
    shown, cut = answers("partition 24 4")
    assert shown.code == 0
    assert cut["bounds"] == [0, 6, 12, 18, 24]
    assert (cut["sizes"], cut["bottleneck"], cut["crossings"]) == ([6, 6, 6, 6], 6, 3)
    assert cut["cuts"] == comb(23, 3) == 1771  # places for 3 cuts among 23
    assert "1-6 | 7-12 | 13-18 | 19-24" in shown.words
    assert "1,771 contiguous cuts" in shown.words
    assert "change device 3 times" in shown.words
    rows = re.findall(r"device (\d)\s+(\S+)\s+█+ (\S+)", shown.out)
    assert rows == [("0", "1-6", "6"), ("1", "7-12", "6"), ("2", "13-18", "6"), ("3", "19-24", "6")]
    assert max(map(len, shown.out.splitlines())) <= 80


def test_4_devices_of_2_chunks_are_8_pieces(answers):
    shown, cut = answers("partition 24 4 --chunks 2")
    assert (cut["devices"], cut["sizes"], cut["bottleneck"]) == (4, [3] * 8, 3)
    # chunks in turns: layers 1-3 on device 0, ..., 13-15 on device 0 again
    assert cut["place"] == [d for _ in range(2) for d in range(4) for _ in range(3)]
    assert (cut["device_times"], cut["crossings"]) == ([6] * 4, 7)
    assert "device 0, chunk 1 13-15" in shown.words
    assert "stage" not in shown.out


@pytest.mark.parametrize(
    ("command", "sizes", "bottleneck"),
    [
        ("partition 6 2 --speeds 1,2", [2, 4], 2),  # 2 / 1 = 4 / 2
        ("partition 2,1,1,1,1,4 3", [2, 3, 1], 4),  # the last alone takes 4
    ],
)
def test_uneven_layers_and_devices(answers, command, sizes, bottleneck):
    _, cut = answers(command)
    assert (cut["sizes"], cut["bottleneck"]) == (sizes, bottleneck)


WRONG = [
    ("12 3", "1,4,7,10 | 2,5,8,11 | 3,6,9,12", "not contiguous", "Device 0 holds layers 1, 4, 7,"),
    ("24 4", "1-6 | 7-12 | 13-18 | 19-23", "layer missing", "missing: 24"),
    ("24 4", "1-6 | 7-12 | 13-18 | 19-25", "unknown layer", "Device 3 is given layer 25"),
    ("24 4", "1-8 | 9-16 | 17-24 |", "idle device", "Device 3 has 0 of 24"),
    ("24 4", "7-12 | 1-6 | 13-18 | 19-24", "out of order", "Device 1 runs layer 1 after layer 7"),
    ("24 4", "1-6 | 7-12 | 13-18 | 19-24 | 3", "unknown device", "names 5 devices and there are 4"),
    ("4 2", "1, 1, 2, 2", "unknown device", "names 3 devices and there are 2; they count from 0"),
    ("12 2 --chunks 2", "1-3 | 4-6 | 7,9 | 8,10-12", "not contiguous", "Device 0, chunk 1 holds"),
]  # fmt: skip


@pytest.mark.parametrize(("question", "answer", "rule", "words"), WRONG)
def test_a_wrong_answer_names_the_rule_and_never_the_best(answers, question, answer, rule, words):
    shown, verdict = answers(f'partition {question} --judge "{answer}"')
    assert (shown.code, verdict["ok"], verdict["rule"]) == (1, False, rule)
    assert words in verdict["reason"]
    assert words in shown.words
    assert f"{rule}: " in shown.words
    assert not {"bounds", "sizes", "solution", "optimum", "best"} & set(verdict)
    assert "best" not in shown.out
    assert shown.out.startswith("device 0")
    assert not re.search("[Ss]tage", shown.out)


def test_what_is_legal_is_compared_and_only_the_solution_shows_the_best(answers):
    legal = 'partition 24 4 --judge "1-7 | 8-12 | 13-18 | 19-24"'
    shown, verdict = answers(legal)
    assert (shown.code, verdict["best"]) == (0, False)
    assert (verdict["bottleneck"], verdict["optimum"]) == (7, 6)  # 7 layers on device 0, 24 / 4
    assert "1-6 |" not in shown.words
    shown, verdict = answers(f"{legal} --solution")
    assert verdict["solution"]["sizes"] == [6, 6, 6, 6]
    assert "1-6 | 7-12 | 13-18 | 19-24" in shown.words
    shown, verdict = answers('partition 24 4 --judge "1-6 | 7-12 | 13-18 | 19-24"')
    assert (shown.code, verdict["best"]) == (0, True)
    assert "right, " in shown.words


@pytest.mark.parametrize(
    "answer",
    [
        "1-2 | 3-4",
        "[1-2][3-4]",
        "1,2 | 3,4",
        "[[1, 2], [3, 4]]",
        "0, 0, 1, 1",  # the device of each layer
        "0, 2, 4",
        "1-2; 3-4",
    ],
)
def test_a_cut_is_read_as_people_write_it(answers, answer):
    _, verdict = answers(f'partition 4 2 --judge "{answer}"')
    assert verdict["best"]
    assert verdict["times"] == [2, 2]


def test_a_thousand_layers_print_no_thousand_rows(capsys):
    assert main(["partition", "1000", "200"]) == 0
    assert "and 168 more" in capsys.readouterr().out  # of 200 rows 32 are drawn
