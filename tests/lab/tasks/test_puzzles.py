"""Every level can be solved, and not at once; each wrong answer is refused in its own words."""

import pytest
from oracles.tasks import text

from tiledask.lab.tasks import load_puzzle, puzzle_names
from tiledask.lab.tasks.result import Result, Target, UnsolvedError


def with_targets(puzzle, **targets):
    """The same puzzle with other targets, or with none of a measure for None."""
    wanted = {n: most for n, most in {**puzzle.targets, **targets}.items() if most is not None}
    file = {"title": "x", "kind": puzzle.kind, "task": "x", "inputs": dict(puzzle.inputs)}
    return load_puzzle(file | {"targets": wanted})


# --- the levels -------------------------------------------------------------------------


@pytest.mark.few(8)
@pytest.mark.parametrize("name", puzzle_names())
def test_a_target_below_the_best_is_out_of_reach(name):
    """The best that the score compares with is the best: nothing meets a target below it."""
    puzzle = load_puzzle(name)
    solved = puzzle.check(puzzle.solve())
    assert solved.stars == 3
    reached = dict(zip(puzzle.targets, solved.targets, strict=True))
    puzzle = with_targets(puzzle, **{measure: t.wanted for measure, t in reached.items()})
    for measure, target in reached.items():
        below = with_targets(puzzle, **{measure: target.best * 0.99 - 1e-3})
        assert below.solve() is None or not below.check(below.solve())


# --- wrong answers ------------------------------------------------------------------------

ONE_F = text("1f1b", 2, 4)
EVEN = "1-6 | 7-12 | 13-18 | 19-24"

WRONG = [
    ("24-on-4", [n % 4 for n in range(24)], "not contiguous. Device 0 holds layers 1, 5, 9, 13"),
    ("24-memory-cap", EVEN, "over memory. Device 0 would hold 9 GB and has room for 8 GB"),
    ("order-on-2", ONE_F.replace("0B3", "0B2"), "micro-batch 2 rank 0 does 0F2, 0B2, 0B2"),
    ("order-on-2", "0F0,0B0,0F1,0F2,0F3,0B1,0B2,0B3\n1F1,1B1,1F0,1B0,1F2,1B2,1F3,1B3", "deadlock"),
    ("order-on-2", text("zb-h1", 2, 4), "one piece here"),
    ("order-on-2", text("chimera", 2, 4), "every stage is on one device here; got 2 replicas"),
    ("order-on-2", ONE_F.replace("1B0,1F1", "(1F1;1B0)OVERLAP_F_B"), "one action at a time"),
]
"""More of them are in tests/golden/judged.json.gz."""


@pytest.mark.parametrize(("name", "answer", "words"), WRONG)
def test_a_wrong_answer_is_refused_in_its_own_words(name, answer, words):
    result = load_puzzle(name).check(answer)
    assert result.attempted
    assert result.stars <= 1
    assert words in result.reason
    with pytest.raises(UnsolvedError, match=f"{name}: "):
        result.require()


def test_what_is_not_ambiguous_is_read():
    for answer in (
        "0F0,0F1,0B0,0F2,0B1,0F3,0B2,0B3; 1F0,1B0,1F1,1B1,1F2,1B2,1F3,1B3",
        "F0,F1,B0,F2,B1,F3,B2,B3; F0,B0,F1,B1,F2,B2,F3,B3",
        "device 1: f0 b0 f1 b1 f2 b2 f3 b3\n\ndevice 0: f0 f1 b0 f2 b1 f3 b2 b3",
    ):
        assert load_puzzle("order-on-2").result(answer)
    reason = load_puzzle("v-by-hand").result("F0,I0,W0; F0,I0,W0").reason
    assert "a device holds several stages here; say which, as in 0F3" in reason


# --- results -----------------------------------------------------------------


def test_stars_and_scores():
    def score(got):
        return Result("x", True, True, "", (Target("seconds", 18, got, 16),))

    assert [score(got).stars for got in (16, 17, 20)] == [3, 2, 1]
    assert score(17).score == "★★☆ solved; seconds 6.2 % above the best possible"
    assert score(16).score == "★★★ as good as can be"
    slow = load_puzzle("24-uneven").check(EVEN)
    assert slow.reason == (
        "Not yet: time of the slowest device 9, target at most 7: 2 too much; device 3, with "
        "layers 19 to 24, is the slowest, device 1 takes 6."
    )
    solved = with_targets(load_puzzle("24-uneven"), bottleneck=9).check(EVEN)
    assert "29 % above the best possible" in solved.score
    assert solved.to_dict()["targets"][1]["gap"] == pytest.approx(2 / 7)
