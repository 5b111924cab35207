"""The exercise on a skip connection: programs that have it, lack half of it, or hold too much.

Holds `tiledask.lab.exercises.skip_connection`.
"""

import pytest
from oracles.judged import assert_illegal, missed, targets
from oracles.tasks import BACK, FORTH, skipping

import tiledask as td
from tiledask.lab.tasks import skip_connection


@pytest.fixture(scope="module")
def exercise():
    return skip_connection()


def test_a_skip_connection_is_a_third_more_bytes_and_one_more_message_held(exercise):
    plain = td.Program.from_text(skipping(("program 1f1b", "program one")))
    assert (sum(plain.traffic.sent), plain.memory.per_place[0]) == (16_384, 13_312)
    result = exercise.check(skipping())
    assert result
    assert exercise.check(td.Program.from_text(skipping()))
    assert targets(result) == {
        "inputs that actions lack": (0, 0, 0),
        "bytes that all ranks send": (24_576, 24_576, 24_576),
        "bytes on the fullest rank": (14_336, 14_336, None),
        "seconds until the end": (18.0, 18, None),
    }


def test_each_half_that_is_missing_is_named_and_counted_for_each_micro_batch(exercise):
    for changes, words in ((FORTH, "0B.0 reads nothing that 2B.0"), (BACK, "2F.0 reads nothing")):
        result = exercise.check(skipping(*changes))
        assert words in result.reason
        assert targets(result)["inputs that actions lack"][0] == 4


def test_what_another_rank_passes_on_counts_by_who_made_it(exercise):
    relay = (
        ("send x2 to 2 @to_2", "send x2 to 2 @to_2\n    send x1 to 2 @to_2"),
        FORTH[1],
        ("kept2 = do forward x2", "x1 = recv from 1 @from_1\n    kept2 = do forward x2 x1"),
    )
    assert exercise.check(skipping(*relay, *BACK))


def test_other_orders_hold_too_much_or_end_too_late(exercise):
    one = "0F.0 0F.1 0F.2 0B.0 0F.3 0B.1 0B.2 0B.3"
    gpipe = skipping().replace(one, "0F.0 0F.1 0F.2 0F.3 0B.0 0B.1 0B.2 0B.3")
    assert missed(exercise.check(gpipe)) == ["bytes on the fullest rank"]
    late = skipping().replace(one, "0F.0 0F.1 0B.0 0F.2 0B.1 0F.3 0B.2 0B.3")
    assert missed(exercise.check(late)) == ["seconds until the end"]


def test_what_is_no_program_of_the_task_is_refused_in_words(exercise):
    two = str(td.program(td.schedule("1f1b", 2, 4), block_bytes=1024, activation=4096))
    assert_illegal(exercise, two, "the pipeline has 3 ranks, this program has 2")
    assert_illegal(exercise, skipping().replace("x1 1024 B", "x1 1 B"), "here 1,024 B")
    assert_illegal(exercise, skipping().replace("ds 1024 B,", ""), "ds has no size")
    assert_illegal(exercise, 3, "a program, or its text")
