"""`tiledask idle` as it is typed from its help alone; every number is worked out in a comment."""

import re

import pytest

import tiledask as td

TWO_CHUNKS = ("interleaved", "looped-bfs", "interleaved-zb")
TWO_EACH = (*TWO_CHUNKS, "zb-v", "v-half", "v-min", "dualpipev")


@pytest.mark.parametrize("name", ["layer-wise", "layerwise", "naive", "Layer-Wise"])
def test_layer_wise_execution_by_either_name(answers, name):
    shown, facts = answers(f"idle {name} 4")
    # one micro-batch: 4 x (1 + 2) s one after the other; each device works 3 s of 12
    assert shown.code == 0
    assert (facts["makespan"], facts["microbatches"]) == (12, 1)
    assert facts["busy_per_device"] == [3, 3, 3, 3]
    assert facts["idle_per_device"] == [9, 9, 9, 9]
    assert shown.out.startswith("naive (layer-wise), 4 devices, 1 micro-batch: 75.0 % idle")


def test_the_answer_comes_first_and_each_device_after_it(answers):
    shown, facts = answers("idle 1f1b 4 8")
    # (m + p - 1)(F + B) = 11 x 3 = 33 s; 24 s busy; 9 of 33 idle; p - s micro-batches kept
    assert shown.words.startswith(
        "1f1b, 4 devices, 8 micro-batches: 27.3 % idle (37.5 % of the busy time), "
    )
    assert "33 s; a device keeps 4 at most." in shown.words
    assert facts["makespan"] == 33
    assert facts["peak_in_flight"] == [4, 3, 2, 1]
    rows = [line.split() for line in shown.out.splitlines() if re.match("[0-3] ", line)]
    assert rows == [[f"{d}", "24", "s", "9", "s", "27.3", "%", f"{4 - d}"] for d in range(4)]
    assert "bubble_fraction" not in shown.out


@pytest.mark.parametrize("name", [*td.schedules])
def test_the_first_number_is_devices_for_every_schedule(answers, name):
    _, facts = answers(f"idle {name} 4 8")
    assert (facts["devices"], len(facts["busy_per_device"])) == (4, 4)
    assert facts["stages"] == (8 if name in TWO_EACH else 4)
    # every stage does 8 micro-batches of 1 + 2 s, wherever it is
    assert facts["busy"] == 8 * 3 * facts["stages"]


@pytest.mark.parametrize(
    ("asked", "makespan"),
    [
        # m v (F + B) + (p - 1)(F + B): 8 x 2 x 3 + 9, 8 x 4 x 3 + 9
        ("interleaved 4 8", 57),
        ("interleaved 4 8 --chunks 4", 105),
        # m v (F + B) + (p - 1) F, with two on each device: 48 + 3
        ("zb-v 4 8", 51),
        # 4 x 3 s for each of two micro-batches, and 6 transfers of 0.5 s each
        ("layer-wise 4 2 --latency 0.5", 30),
        # 3 down, 1.5 across, 3 + 3 there, 1.5 back, 3: a transfer counts once
        ("layer-wise 2 --forward 3 --backward 3 --latency 1.5", 15),
        # gpipe: 5 + 7 x 2 down, 10 + 7 x 4 back
        ("gpipe 4 8 --forward 1,1,2,1 --backward 2,2,4,2", 57),
    ],
)
def test_chunks_and_times(answers, asked, makespan):
    assert answers(f"idle {asked}")[1]["makespan"] == makespan


def test_the_rest_is_explained_on_request(typed):
    plain, explained = typed("idle 1f1b 4 8"), typed("idle 1f1b 4 8 --explain")
    assert "not yet filled" not in plain.out
    for words in ("not yet filled", "no order of these actions takes less than 33 s"):
        assert words in explained.words
    assert all(len(line) <= 80 for line in explained.out.splitlines())
