"""A file of published numbers: each case is checked by one function, or named as not covered."""

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path

__all__ = ["assert_nothing_in_silence", "check_of", "load_cases", "matching"]

FOLDER = Path(__file__).parents[2] / "data" / "published"


def load_cases(name: str) -> list[dict]:
    return json.loads((FOLDER / name).read_text(encoding="utf-8"))


def matching(case: dict, patterns) -> list[str]:
    """Which of ``patterns`` match the whole id of ``case``."""
    return [pattern for pattern in patterns if re.fullmatch(pattern, case["id"])]


def check_of(case: dict, checks: Mapping[str, Callable]) -> Callable:
    """The one function that checks ``case``."""
    (pattern,) = matching(case, checks)
    return checks[pattern]


def assert_nothing_in_silence(cases, checks, not_covered, *, total: int, uncovered: int) -> None:
    """Every case is checked by exactly one function or named in ``not_covered``, never both.

    ``total`` and ``uncovered`` are counts of cases: one that comes or goes is seen. A pattern that
    matches nothing is a leftover.
    """
    ids = {case["id"] for case in cases}
    assert len(ids) == len(cases), "two cases have the same id"
    assert len(ids) == total, f"{len(ids)} cases in the file, the test knows of {total}"
    for case in cases:
        found = matching(case, checks) + matching(case, not_covered)
        assert len(found) == 1, f"{case['id']} is matched by {found or 'nothing'}, not by one"
    for pattern in (*checks, *not_covered):
        assert any(matching(case, [pattern]) for case in cases), f"{pattern} matches nothing"
    left_out = sum(bool(matching(case, not_covered)) for case in cases)
    assert left_out == uncovered, f"{left_out} cases are not covered, the test knows of {uncovered}"
