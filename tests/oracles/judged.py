"""What is asked of every exercise: quiet before an answer, and in words why one is none."""

import pytest

from tiledask.lab.judging import UnsolvedError


def targets(result) -> dict[str, tuple]:
    return {t.name: (t.got, t.wanted, t.best) for t in result.targets}


def missed(result) -> list[str]:
    return [t.name for t in result.targets if not t.met]


def assert_illegal(exercise, answer, words: str) -> None:
    """``answer`` is refused with these words."""
    result = exercise.check(answer)
    assert result.attempted
    assert not result.legal
    assert words in result.reason, result.reason
    with pytest.raises(UnsolvedError):
        result.require()
