"""A kind of puzzle: how an answer is read, measured, and beaten if it can be; readers of inputs.

A kind is a row of functions of the puzzle's inputs. None of them knows a stored answer: ``best``
and ``solve`` work it out. Lists of inputs may be written in full, or as text with repeats:
"2, 22 x 1, 4" is 2, 22 ones and 4.
"""

import json
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tiledask.errors import ConfigError
from tiledask.lab.tasks.result import OPTIMUM
from tiledask.plan.pipelines.schedules import schedules
from tiledask.plan.pipelines.timeline import Timeline
from tiledask.plan.units import format_seconds, parse_bytes
from tiledask.plan.whole import whole_rule

__all__ = ["INPUTS", "LONGEST", "TIMES", "Inputs", "Kind", "Measured", "Reader"]
__all__ += ["Targets", "frozen_key", "idle_causes", "number"]

Inputs = Mapping[str, Any]
Targets = Mapping[str, float]
Measured = Mapping[str, tuple[float, str]]
"""Measure -> (what a legal answer reaches, which device, stage or action makes it so large)."""


@dataclass(frozen=True)
class Kind:
    """One kind of puzzle: its functions. Names of its inputs and measures, and how an answer is
    written, are in data/puzzle_kinds.json."""

    validate: Callable[[Inputs], None]
    """Raises a tiledask error for inputs that contradict each other."""
    read: Callable[[Inputs, Any], Any]
    """The answer as a value; a tiledask error that names the rule it breaks."""
    measure: Callable[[Inputs, Any], Measured]
    """What that value reaches."""
    best: Callable[[Inputs, Targets], Mapping[str, float]]
    """For each target, the least that an answer reaches which meets all the others."""
    solve: Callable[[Inputs, Targets], str | None]
    """The answer to try for these targets, written as people do; None if there is none."""
    yardstick: str = OPTIMUM
    """What ``best`` is: proven, or the best of a search, which an answer may beat."""
    runs: Callable[[Inputs, Any], Mapping[str, Timeline]] | None = None
    """By name the runs of an answer that can run, legal or not; its own is the first. None: what is
    drawn is layers on devices."""


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


# -- readers of inputs -----------------------------------------------------------------------------

Reader = Callable[[Any], Any]
"""What JSON holds -> the value. Raises ValueError with the rule, as in "must be ... "."""

LONGEST = 1000
"""Items in a list: more than anyone reads."""
_HUGE = 1e18


def _number(rule: str, of: Callable[[Any], Any], least: float = 0, most: float = _HUGE) -> Reader:
    """A number from ``least`` to ``most``; ``of`` makes it of what JSON holds, or fails."""

    def read(value: Any) -> Any:
        try:
            found = None if isinstance(value, bool) else of(value)
        except (ConfigError, ValueError, TypeError, AttributeError, OverflowError):
            found = None
        if found is None or not least <= found <= most:
            raise ValueError(f"must be {rule}")
        return found

    return read


def _whole(least: int, most: int) -> Reader:
    def of(value: Any) -> int:
        return int(value) if isinstance(value, str) and len(value) < 10 else operator.index(value)

    return _number(whole_rule(least, most), of, least, most)


number = _number(f"a finite number of at least 0 and at most {_HUGE:g}", float)
_size = _number("a number of bytes, or text such as '8 GB'", parse_bytes)


def _several(one: Reader, or_one: bool = False) -> Reader:
    """A list of what ``one`` reads, written in full or as text with repeats; or ``one`` by itself.

    >>> _several(number)("2, 3 x 1, 4.5"), _several(_size, True)("4 GB, 2 x 512 MB")
    ([2.0, 1.0, 1.0, 1.0, 4.5], [4000000000, 512000000, 512000000])
    """

    def read(value: Any) -> Any:
        if or_one and not isinstance(value, list):
            try:
                return one(value)
            except ValueError:
                if not isinstance(value, str):
                    raise
        if isinstance(value, str):
            words = [word.strip() for word in value.split(",")]
            repeats = [re.fullmatch(r"(\d{1,4})\s*x\s*(.+)", word) for word in words]
            pairs = zip(words, repeats, strict=True)
            each = ([many[2]] * int(many[1]) if many else [word] for word, many in pairs)
            value = [item for items in each for item in items]
        if not isinstance(value, list) or not 1 <= len(value) <= LONGEST:
            example = "in full or as text with repeats, as in '2, 22 x 1, 4'"
            raise ValueError(f"must be a list of 1 to {LONGEST} numbers, {example}")
        try:
            return [one(item) for item in value]
        except ValueError as error:
            raise ValueError(f"every item {error}") from None

    return read


def _choice(words: Iterable[Any]) -> Reader:
    known = tuple(words)

    def read(value: Any) -> Any:
        if value not in known:
            raise ValueError(f"must be one of {', '.join(map(str, known))}")
        return value

    return read


def _open(value: Any) -> dict[str, Any]:
    """Names that are chosen -> a list of values, or a range of whole numbers."""
    if not isinstance(value, dict) or not value or not set(value) <= set(_CHOSEN):
        example = '{"microbatches": {"from": 1, "to": 64}}'
        raise ValueError(f"must be an object such as {example}, with some of {', '.join(_CHOSEN)}")
    found: dict[str, Any] = {}
    for name, values in value.items():
        ends = values if isinstance(values, dict) else {}
        try:
            read = {key: _CHOSEN[name](end) for key, end in ends.items()}
            found[name] = read or _several(_CHOSEN[name])(values)
        except ValueError as error:
            raise ValueError(f"has a {name} that {error}") from None
        if read and (set(read) != {"from", "to"} or read["from"] > read["to"]):
            raise ValueError(f"has a range of {name} {values}: give from and to, the larger last")
    return found


TIMES = ("forward", "backward", "backward_input", "backward_weight")

_CHOSEN: dict[str, Reader] = {
    "schedule": _choice(schedules),
    "devices": _whole(1, 128),
    "microbatches": _whole(1, LONGEST),
    "chunks": _whole(1, 16),
}
INPUTS: Mapping[str, Reader] = {
    **_CHOSEN,
    **dict.fromkeys((*TIMES, "latency", "communication"), _several(number, or_one=True)),
    **dict.fromkeys(("costs", "speeds"), _several(number)),
    **dict.fromkeys(("memory", "weights", "activations"), _several(_size)),
    "capacity": _several(_size, or_one=True),
    "memory_limit": _several(_whole(1, 10_000), or_one=True),
    "open": _open,
    "place": _several(_whole(0, 15)),
    "rival": _choice(schedules),
    "shown": lambda value: "\n".join(map(str, value if isinstance(value, list) else [value])),
    "split": _choice((True, False)),
    "stages": _whole(1, 16),
}
"""Name in a file -> who reads it, whatever the kind of puzzle."""
