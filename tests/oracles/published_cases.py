"""A file of published numbers: each case is checked by one function, or named as not covered."""

import json
import re
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "data" / "published"


def load_cases(name):
    return json.loads((FOLDER / name).read_text(encoding="utf-8"))


def matching(case, patterns):
    """Which of ``patterns`` match the whole id of ``case``."""
    return [pattern for pattern in patterns if re.fullmatch(pattern, case["id"])]


def check_of(case, checks):
    """The one function that checks ``case``."""
    (pattern,) = matching(case, checks)
    return checks[pattern]


def assert_nothing_in_silence(cases, checks, not_covered, *, total, uncovered):
    """Every case is checked by exactly one function or named in ``not_covered``, never both; none
    of the patterns is a leftover. A case that comes or goes is seen by its count."""
    assert len({case["id"] for case in cases}) == len(cases) == total
    patterns = [*checks, *not_covered]
    found = {case["id"]: matching(case, patterns) for case in cases}
    assert {key: each for key, each in found.items() if len(each) != 1} == {}
    assert {pattern for (pattern,) in found.values()} == {*patterns}
    assert sum(pattern in not_covered for (pattern,) in found.values()) == uncovered
