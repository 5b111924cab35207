"""A trace as a Timeline: rows of device, start, end and, where they are known, kind, stage and
microbatch, in seconds."""

from collections.abc import Iterable, Sequence

import numpy as np

from tiledask.errors import ConfigError
from tiledask.plan.pipelines.schedule import KINDS
from tiledask.plan.pipelines.timeline import TRANSFER, Timeline

__all__ = ["Row", "Trace", "is_labelled", "trace_of"]

MOST_DEVICES = 4096

Row = tuple[str, float, float, str, int, int]
"""(device, start, end, kind, stage, microbatch); "" and -1 for what is not known."""
Trace = tuple[Timeline, tuple[str, ...], float]
"""(spans of devices in the order in which they begin, with -1 for what is not known, and as origin
what was read and had to be assumed; what the trace calls the devices; seconds by which an edge may
be wrong)."""


def trace_of(rows: Iterable[Row], names: Sequence[str] = (), *, source: str) -> Trace:
    """The Trace of these rows, in any order. ``names`` are devices that should be there.

    Raises ConfigError for rows without work, labels far beyond their number, two intervals of
    a device at once, and a device that never works.
    """
    rows = sorted(rows, key=lambda row: (row[1], len(row[0]), row[0]))
    order = dict.fromkeys(row[0] for row in rows)
    lazy = [name for name in names if name not in order]
    if lazy or len(order) > MOST_DEVICES or not any(row[2] > row[1] for row in rows):
        idle = f"device {lazy[0]} does no work" if lazy else f"{len(order)} devices work"
        raise ConfigError(
            f"{idle} in {source}; a trace has the work of one pipeline, of {MOST_DEVICES} "
            f"devices at most, in intervals above 0 s"
        )
    if (label := max(max(row[4:]) for row in rows)) >= max(1000, len(rows)):
        raise ConfigError(
            f"stage or microbatch {label} in {source}, of {len(rows)} rows; they count from 0, "
            f"and each has a row"
        )
    number, zero = {name: d for d, name in enumerate(order)}, rows[0][1]
    rows.sort(key=lambda row: (number[row[0]], row[1], row[2]))
    own, *times, kinds, stages, microbatches = zip(*rows, strict=True)
    device = np.array([number[name] for name in own], np.int32)
    start, end = np.array(times, float) - zero
    code = np.array([KINDS.find(k) if k else -1 for k in kinds], np.int8)
    labels = np.array(stages, np.int32), np.array(microbatches, np.int32)
    run = Timeline(len(order), device, code, *labels, start, end, source)
    over = np.where(device[1:] == device[:-1], end[:-1] - start[1:], 0.0)
    if over.max(initial=0.0) > 1e-9 * run.makespan:
        (name, x, y, *_), (_, u, v, *_) = rows[int(np.argmax(over)) :][:2]
        raise ConfigError(
            f"device {name} does two things at once: from {x:g} to {y:g} s and from {u:g} to "
            f"{v:g} s of {source}; give one row per action, no transfers but of kind "
            f"{TRANSFER}, and a run without pairs"
        )
    return run, tuple(order), 0.0


def is_labelled(run: Timeline) -> bool:
    """Whether every row says kind, stage and micro-batch."""
    return min(int(c.min()) for c in (run.code, run.stage, run.microbatch)) >= 0
