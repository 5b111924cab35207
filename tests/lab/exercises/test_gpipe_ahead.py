"""The exercise on latency: the best answer, a late one, one that is too early, and nonsense.

Holds `tiledask.lab.exercises.latency`.
"""

import pytest

from tiledask.lab.sweep import same_work
from tiledask.lab.tasks import gpipe_ahead


@pytest.fixture(scope="module")
def exercise():
    return gpipe_ahead(against=("1f1b", "zb-h1"))


@pytest.mark.long
def test_the_smallest_latencies_are_found_and_only_they_are_enough(exercise):
    assert exercise.check((0.01, 0.81))
    late = exercise.check((0.01, 0.82))
    assert not late
    assert late.legal
    assert "against zb-h1 0.82: near, more than is needed" in late.reason
    assert [target.best for target in late.targets] == [0, 0.01, 0.81]


@pytest.mark.long
def test_a_tie_is_not_ahead(exercise):
    ends = [same_work(name, 4, 8, latency=0.8).makespan for name in ("gpipe", "zb-h1")]
    assert ends == pytest.approx([37.8, 37.8])
    result = exercise.check((0.01, 0.8))
    assert not result
    assert "GPipe needs 37.8 s and zb-h1 37.8 s: too low, GPipe is not ahead" in result.reason
    assert "0.81" not in f"{result.reason} {result._repr_html_()} {result.to_dict()}"


@pytest.mark.parametrize("answer", ["xy", (0.01,), (0, 0.81), (0.015, 0.81), (0.01, 3), (True, 1)])
def test_what_is_no_answer_is_refused_in_words(exercise, answer):
    result = exercise.check(answer)
    assert not result.legal
    assert "2 latencies in seconds, hundredths above 0 and up to 2, for" in result.reason


@pytest.mark.long
def test_it_is_drawn_without_giving_the_answer_away(exercise):
    for answer, lines in ((None, 0), ((0.1, 0.9), 2)):
        (axes,) = exercise.draw(answer).axes
        assert sum(line.get_gid() == "answer" for line in axes.lines) == lines
        assert not [line for line in axes.lines if line.get_gid() == "crossing"]
        names = [line.get_label() for line in axes.lines if not line.get_label().startswith("_")]
        assert names == ["gpipe", "1f1b", "zb-h1"][: 3 if lines else 1]
    assert exercise.check(None).reason == "Not attempted yet."
