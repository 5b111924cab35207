"""What kinds of puzzle share: how inputs of a file are read, a run in words.

A kind is a module with functions of a puzzle's inputs; names of these inputs and of measures, and
how an answer is written, are in data/puzzle_kinds.json. None of them knows a stored answer.

check_inputs(inputs)      raises a tiledask error for inputs that contradict each other
read(inputs, answer)      the answer as a value; a tiledask error that names the rule it breaks
measure(inputs, value)    what that value reaches
best(inputs, targets)     for each target, the least that an answer reaches which meets the others
solve(inputs, targets)    the answer to try for these targets, as people write it; None: none is
runs(inputs, answer)      by name the runs of an answer that can run, legal or not, its own first;
                          without it, what is drawn is layers on devices
YARDSTICK                 what ``best`` is, where it is no proof and an answer may beat it
"""

import json
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

from tiledask.errors import ConfigError
from tiledask.plan.data import shipped_json
from tiledask.plan.pipelines.schedules import schedules
from tiledask.plan.pipelines.timeline import COMPUTE, Timeline
from tiledask.plan.units import format_seconds, parse_bytes
from tiledask.plan.whole import whole_rule

__all__ = ["LONGEST", "TIMES", "Inputs", "Measured", "Targets", "frozen_key"]
__all__ += ["idle_causes", "read_input", "run_text"]

Inputs = Mapping[str, Any]
Targets = Mapping[str, float]
Measured = Mapping[str, tuple[float, str]]
"""Measure -> (what a legal answer reaches, which device, stage or action makes it so large)."""


def frozen_key(inputs: Inputs) -> str:
    """The inputs as one hashable text, for caches of what takes long to work out."""
    return json.dumps(dict(inputs))


def idle_causes(run: Timeline) -> str:
    """The idle time of all devices by its causes; empty if there is none.

    >>> import tiledask as td
    >>> idle_causes(td.simulate(td.schedule("gpipe", 2, 2), 1, 2))
    'idle: warm-up 1 s, dependency 3 s, draining 2 s'
    """
    total = run.idle_time.total.items()
    causes = [f"{cause} {format_seconds(seconds)}" for cause, seconds in total if seconds > 0]
    return f"idle: {', '.join(causes)}" if causes else ""


def run_text(run: Timeline, name: str = "device") -> str:
    """Who does what from when to when, a line per device, which has this ``name``.

    >>> import tiledask as td
    >>> print(run_text(td.simulate(td.schedule("1f1b", 2, 1))))
    device 1  F0 0-1, B0 4-6
    device 2  F0 1-2, B0 2-4
    """
    spans: dict[int, list[str]] = {device: [] for device in range(run.devices)}
    rows = zip(run.device, run.kind, run.microbatch, run.start, run.end, strict=True)
    for device, kind, microbatch, start, end in rows:
        if kind in COMPUTE:
            spans[device].append(f"{kind}{microbatch} {start:g}-{end:g}")
    return "\n".join(f"{name} {d + 1}  {', '.join(found)}" for d, found in spans.items())


# -- inputs of a file ------------------------------------------------------------------------------

TIMES = ("forward", "backward", "backward_input", "backward_weight")
LONGEST = 1000
"""Items in a list: more than anyone reads."""
_HUGE = 1e18
_CHOSEN = ("schedule", "devices", "microbatches", "chunks")
"""What a puzzle may leave open."""


def read_input(row: Mapping[str, Any], value: Any) -> Any:
    """The value of an input, as its ``row`` of data/puzzle_inputs.json says; ValueError with the
    rule. A list may be written in full or as text with repeats.

    >>> read_input({"of": "number", "list": "only"}, "2, 3 x 1, 4.5")
    [2.0, 1.0, 1.0, 1.0, 4.5]
    >>> read_input({"of": "bytes", "list": "or one"}, "4 GB, 2 x 512 MB")
    [4000000000, 512000000, 512000000]
    """
    if row["of"] == "open":
        return _open(value)
    if "list" not in row:
        return _one(row, value)
    if row["list"] == "or one" and not isinstance(value, list):
        try:
            return _one(row, value)
        except ValueError:
            if not isinstance(value, str):
                raise
    if isinstance(value, str):
        items = [re.fullmatch(r"(?:(\d{1,4})\s*x\s)?\s*(.*?)", w.strip()) for w in value.split(",")]
        value = [item[2] for item in items if item for _ in range(int(item[1] or 1))]
    if not isinstance(value, list) or not 1 <= len(value) <= LONGEST:
        example = "in full or as text with repeats, as in '2, 22 x 1, 4'"
        raise ValueError(f"must be a list of 1 to {LONGEST} numbers, {example}")
    try:
        return [_one(row, item) for item in value]
    except ValueError as error:
        raise ValueError(f"every item {error}") from None


def _whole(value: Any) -> int:
    return int(value) if isinstance(value, str) and len(value) < 10 else operator.index(value)


_READ: dict[str, tuple[Callable[[Any], Any], str]] = {
    "number": (float, f"a finite number of at least 0 and at most {_HUGE:g}"),
    "bytes": (parse_bytes, "a number of bytes, or text such as '8 GB'"),
    "whole": (_whole, ""),
}
"""What an input may be -> what makes it of JSON, and the rule."""


def _one(row: Mapping[str, Any], value: Any) -> Any:
    if row["of"] == "text":
        return "\n".join(map(str, value if isinstance(value, list) else [value]))
    if row["of"] in ("flag", "schedule"):
        known = (True, False) if row["of"] == "flag" else tuple(schedules)
        if value not in known:
            raise ValueError(f"must be one of {', '.join(map(str, known))}")
        return value
    (read, rule), least, most = _READ[row["of"]], row.get("least", 0), row.get("most", _HUGE)
    try:
        found = None if isinstance(value, bool) else read(value)
    except (ConfigError, ValueError, TypeError, AttributeError, OverflowError):
        found = None
    if found is None or not least <= found <= most:
        raise ValueError(f"must be {rule or whole_rule(least, most)}")
    return found


def _open(value: Any) -> dict[str, Any]:
    """Names that are chosen -> a list of values, or a range of whole numbers."""
    if not isinstance(value, dict) or not value or not set(value) <= set(_CHOSEN):
        example = '{"microbatches": {"from": 1, "to": 64}}'
        raise ValueError(f"must be an object such as {example}, with some of {', '.join(_CHOSEN)}")
    found: dict[str, Any] = {}
    for name, values in value.items():
        row, ends = shipped_json("puzzle_inputs.json")[name], values
        try:
            if not isinstance(values, dict):
                found[name] = read_input({**row, "list": "only"}, values)
                continue
            found[name] = ends = {key: read_input(row, end) for key, end in values.items()}
        except ValueError as error:
            raise ValueError(f"has a {name} that {error}") from None
        if set(ends) != {"from", "to"} or ends["from"] > ends["to"]:
            raise ValueError(f"has a range of {name} {values}: give from and to, the larger last")
    return found
