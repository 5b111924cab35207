"""RELIABILITY.md: what it says of each fault is the record's."""

import re
from collections.abc import Iterable
from typing import Any

from tiledask.plan.units import format_seconds

__all__ = ["measured", "renewed", "soaked"]


def measured(row: dict[str, Any]) -> str:
    """What came of a row of the record, in words.

    >>> row = {"tried": 70, "median": 0.91, "most": 2.3, "wrong": 0, "hangs": 0, "kept": True}
    >>> measured(row)
    '910 ms, at most 2.3 s; 70 tried, 0 wrong, 0 hangs'
    >>> measured(row | {"kept": False, "broken": ["a: hang"], "hangs": 1})
    '910 ms, at most 2.3 s; 70 tried, 0 wrong, 1 hangs; **1 not as promised**'
    """
    if not row["tried"]:
        return "not tried on this machine"
    times = f"{format_seconds(row['median'])}, at most {format_seconds(row['most'])}"
    broken = "" if row["kept"] else f"; **{len(row['broken'])} not as promised**"
    return f"{times}; {row['tried']} tried, {row['wrong']} wrong, {row['hangs']} hangs{broken}"


def renewed(page: str, rows: Iterable[dict[str, Any]]) -> str:
    """The page, with what is promised and measured of each fault in the first table that has it."""
    for row in rows:
        cells = f"| {row['fault']} | {row['promised']} | {measured(row)} |"
        line = re.compile(rf"^\| {re.escape(row['fault'])} \|[^|]*\|[^|]*\|", re.M)
        page = line.sub(lambda _, cells=cells: cells, page, count=1)
    return page


def soaked(page: str, found: dict[str, Any]) -> str:
    """The page, with what the record of `make soak-faults` found in its line on it."""
    ends, left = found["ends"], sum(sum(names.values()) for names in found["left"].values())
    line = (
        f"Soaked: {found['lost workers']} workers lost in {found['minutes']:.0f} minutes, "
        f"{ends.get('right', 0)} of {sum(ends.values())} results right, {ends.get('hang', 0)} "
        f"hangs; client and scheduler grew by {100 * found['grown after warm-up']:.1f} % after "
        f"half of the time; {max(0, left)} left."
    )
    return re.sub("^Soaked: .*$", line, page, flags=re.M)
