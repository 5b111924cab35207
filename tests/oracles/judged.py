"""What is asked of every exercise: quiet before an answer, and in words why one is none."""

import pytest
from oracles.figures import still_drawn

from tiledask.lab.judging import UnsolvedError


def targets(result) -> dict[str, tuple]:
    return {t.name: (t.got, t.wanted, t.best) for t in result.targets}


def missed(result) -> list[str]:
    return [t.name for t in result.targets if not t.met]


def assert_quiet(*exercises) -> None:
    for exercise in exercises:
        result = exercise.check(None)
        assert not result
        assert not result.attempted
        assert result.reason == "Not attempted yet."
        with pytest.raises(UnsolvedError, match="Not attempted"):
            result.require()
        assert still_drawn(exercise, None)


def assert_illegal(exercise, answer, words: str) -> None:
    """``answer`` is refused with these words."""
    result = exercise.check(answer)
    assert result.attempted
    assert not result.legal
    assert words in result.reason, result.reason
    with pytest.raises(UnsolvedError):
        result.require()


def assert_still_drawn(cases) -> None:
    """Of each (exercise, answer, words) there is a picture, though the answer is refused."""
    for exercise, answer, _ in cases:
        assert still_drawn(exercise, answer)
