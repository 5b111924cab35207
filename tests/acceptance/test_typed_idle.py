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
        # m v (F + B) + (p - 1)(F + B): 8 x 2 x 3 + 9, 8 x 4 x 3 + 9, 8 x 3 + 9
        ("interleaved 4 8", 57),
        ("interleaved 4 8 --chunks 4", 105),
        ("interleaved 4 8 --chunks 1", 33),
        # m v (F + B) + (p - 1) F, with two on each device: 48 + 3
        ("zb-v 4 8", 51),
        # 4 x 3 s for each of two micro-batches, and 6 transfers of 0.5 s each
        ("layer-wise 4 2 --latency 0.5", 30),
        # gpipe: 5 + 7 x 2 down, 10 + 7 x 4 back
        ("gpipe 4 8 --forward 1,1,2,1 --backward 2,2,4,2", 57),
    ],
)
def test_chunks_and_times(answers, asked, makespan):
    assert answers(f"idle {asked}")[1]["makespan"] == makespan


@pytest.mark.parametrize(
    ("asked", "m", "share", "below"),
    [
        # u = m / (m + p - 1): 27 / 30 = 0.9, and 26 / 29 = 0.8966
        ("--utilisation 0.9 --devices 4", 27, 0.9, 26 / 29),
        ("1f1b 4 --utilisation 90%", 27, 0.9, 26 / 29),
        ("gpipe 4 --utilisation 9/10", 27, 0.9, 26 / 29),
        # sums of tenths are rounded, in which 9 / 10 would fall short of 0.9; as fractions not
        ("gpipe 2 --utilisation 0.9 --forward 0.1 --backward 0.2", 9, 0.9, 8 / 9),
        ("1f1b 8 --utilisation 0.8", 28, 28 / 35, 27 / 34),
        ("1f1b 2 --utilisation 0.901", 10, 10 / 11, 9 / 10),  # 9 / 10 is not 0.901
        # busy 15 m of 4 (6 m + 9): 540 of 900 for 36, 525 of 876 for 35
        (
            "gpipe 4 --utilisation 0.6 --forward 1,1,2,1 --backward 2,2,4,2",
            36,
            0.6,
            525 / 876,
        ),
        # v m / (v m + p - 1) = 2 m / (2 m + 3): 28 / 31 for 14, 26 / 29 for 13
        ("interleaved 4 --utilisation 0.9", 14, 28 / 31, 26 / 29),
    ],
)
def test_the_fewest_micro_batches_of_a_utilisation(answers, asked, m, share, below):
    shown, facts = answers(f"idle {asked}")
    assert (shown.code, facts["reached"], facts["microbatches"]) == (0, True, m)
    assert facts["utilisation"] == pytest.approx(share)
    assert facts["below"] == {"microbatches": m - 1, "utilisation": pytest.approx(below)}
    assert shown.out.startswith(f"{m} micro-batches reach")
    assert f"; {m - 1} give" in shown.words


def test_what_one_fewer_gives_is_never_rounded_to_what_was_asked(typed):
    # m / (m + 1): 999 / 1000 is 0.999, and 998 / 999 is 0.998999
    shown = typed("idle 1f1b 2 --utilisation .999")
    assert "999 micro-batches reach 99.9 %" in shown.words
    assert "998 give 99.8999 %" in shown.words


def test_a_utilisation_that_is_never_reached_is_a_no(answers):
    shown, facts = answers("idle layer-wise 4 --utilisation 0.5")
    assert (shown.code, facts["reached"], facts["utilisation"]) == (1, False, 0.25)
    assert shown.out.startswith("No: 50 % is not reached on 4 devices with naive")


def test_a_transfer_counts_once(answers):
    # 3 down, 1.5 across, 3 + 3 there, 1.5 back, 3
    typed = "idle layer-wise 2 --forward 3 --backward 3 --latency 1.5"
    assert answers(typed)[1]["makespan"] == 15


def test_the_rest_is_explained_on_request(typed):
    plain, explained = typed("idle 1f1b 4 8"), typed("idle 1f1b 4 8 --explain")
    assert "not yet filled" not in plain.out
    for words in ("not yet filled", "no order of these actions takes less than 33 s"):
        assert words in explained.words
    assert all(len(line) <= 80 for line in explained.out.splitlines())


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ("idle zbh1 4 8", "did you mean 'zb-h1'?"),
        ("idle 1f1b 4", "needs MICROBATCHES behind it, such as: tiledask idle 1f1b 4 8"),
        ("idle 4 8", "the schedule's name comes first"),
        ("idle", "--diagnose TRACE"),
        ("idle 1f1b 8 4 --devices 4", "8 behind the schedule's name and 4 behind --devices"),
        ("idle 1f1b 4 8 --chunks 2", "any number of them have interleaved"),
        ("idle dualpipe 3 8", "3 devices have none; use 4 stages"),
        ("idle 1f1b 0 8", "DEVICES must be a whole number of 1 or more"),
        ("idle 1f1b 4 8 --backward -1e400", "--backward is numbers between commas"),
        ("idle 1f1b 4 8 --forward 1,2", "--forward is one number, or 4, one per stage; got 2"),
        ("idle 1f1b 4 8 --latency 1,2", "or 3, one per boundary between stages; got 2"),
        ("idle 1f1b 4 8 --utilisation 0.9", "leave them out, or --utilisation"),
        ("idle --utilisation 90 --devices 4", "such as 0.9 or 90%; got '90'"),
    ],
)
def test_mistakes_are_answered_in_the_words_of_the_command_line(typed, asked, words):
    ran = typed(asked)
    assert (ran.code, ran.out) == (2, "")
    assert words in ran.err
    assert not re.search("forward_only|devices=|stages=", ran.err)
