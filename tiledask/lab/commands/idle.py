"""`tiledask idle`: of a schedule by name, or of a measured trace."""

import argparse
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import tiledask as td
from tiledask.errors import ConfigError, short
from tiledask.lab.commands.options import Run, numbers
from tiledask.lab.sweep import schedule_on
from tiledask.plan.pipelines.schedules import LOOPED, called, schedule, schedules
from tiledask.plan.pipelines.timeline import CAUSES
from tiledask.plan.tables import Part, table
from tiledask.plan.units import format_percent, format_seconds
from tiledask.plan.whole import whole_number

__all__ = ["run_idle"]

EXAMPLE = "such as: tiledask idle 1f1b 4 8"
SHOWN = 32
"""Rows of devices; of more the first and the last half."""
SIZES = ("devices", "stages", "microbatches")
SHARES = ("utilisation", "bubble_fraction", "bubble_overhead", "span_bubble")
PER_DEVICE = ("busy_per_device", "idle_per_device", "peak_in_flight")
FACTS = ("makespan", "lower_bound", "busy", "idle", *SHARES, *PER_DEVICE)
"""Of a schedule and of its timeline, for --json."""


def run_idle(args: argparse.Namespace) -> Run:
    """What was asked for, simulated and shown."""
    if args.diagnose is not None:
        others = ("schedule", "devices", "microbatches", "figure")
        if any(getattr(args, name) is not None for name in others):
            raise ConfigError(
                "--diagnose finds schedule, devices and micro-batches in the trace and writes no "
                "figure; leave them out"
            )
        found = td.diagnose(args.diagnose)
        yield from found.printed()
        return 0, found.to_dict()
    made = _made(args)
    times = _times(args, made.stages)
    timeline = td.simulate(made, **times)
    yield from _shown(made, timeline, times, "" if args.explain else " More: --explain")
    if args.explain:
        causes = timeline.idle_time.total.items()
        if rows := {CAUSES[cause]: {"device-s": s} for cause, s in causes if s}:
            yield table(rows, "idle by cause", **{"device-s": "seconds"})
        least = format_seconds(timeline.lower_bound or 0.0)
        yield f"no order of these actions takes less than {least}"
    if args.figure:
        figure = td.plots.gantt(timeline, title=f"{made!r}")
        Path(args.figure).write_bytes(figure.to_png())
    facts = {name: getattr(made, name) for name in SIZES}
    facts |= {name: getattr(timeline, name) for name in FACTS}
    facts["causes"] = {cause: each for cause, each in timeline.idle_time.total.items() if each}
    return 0, {"schedule": made.name, **facts, "legal": True}


# -- what is asked for ---------------------------------------------------------------------------


def _made(args: argparse.Namespace) -> td.Schedule:
    """The schedule that is named."""
    if args.schedule is None:
        raise ConfigError(
            f"a schedule needs its name, DEVICES and MICROBATCHES, {EXAMPLE}; a measured run is "
            f"read by --diagnose TRACE"
        )
    name = called(args.schedule)
    if name.isdecimal():
        raise ConfigError(f"the schedule's name comes first, {EXAMPLE}; got {short(name)}")
    if name not in schedules:
        schedule(name, 1, 1)  # says which is the nearest
    microbatches = 1 if name == "naive" and args.microbatches is None else args.microbatches
    given = {"DEVICES": args.devices, "MICROBATCHES": microbatches}
    if lacks := " and ".join(what for what, number in given.items() if number is None):
        raise ConfigError(
            f"{args.schedule} needs {lacks} behind it, {EXAMPLE.replace('1f1b', args.schedule)}"
        )
    if args.chunks is not None and name not in LOOPED:
        looped = ", ".join(LOOPED)
        raise ConfigError(f"{name} has no --chunks; any number of them have {looped}")
    given["--chunks"] = 2 if args.chunks is None else args.chunks
    devices, microbatches, chunks = (whole_number(*each, 1) for each in given.items())
    return schedule_on(name, devices, microbatches, chunks=chunks)


def _times(args: argparse.Namespace, stages: int) -> dict[str, Any]:
    """Seconds as they were typed: one number, or one per stage or boundary."""
    found: dict[str, Any] = {}
    for name in ("forward", "backward", "latency"):
        seconds = numbers(getattr(args, name), f"--{name} is", lambda word: float(Fraction(word)))
        between = name == "latency"
        count, per = stages - between, "boundary between stages" if between else "stage"
        if len(seconds) not in (1, count):
            raise ConfigError(
                f"--{name} is one number, or {count}, one per {per}; got {len(seconds)}"
            )
        found[name] = seconds[0] if len(seconds) == 1 else seconds
    return found


# -- what is shown -------------------------------------------------------------------------------


def _shown(made: td.Schedule, t: td.Timeline, times: dict[str, Any], more: str) -> Iterator[Part]:
    """The answer in a line, what was taken for it, and each device."""
    devices, m, most = made.devices, made.microbatches, max(t.peak_in_flight, default=0)
    on = f"{devices:,} device{'s' * (devices != 1)}, {m:,} micro-batch{'es' * (m != 1)}"
    name = "naive (layer-wise)" if made.name == "naive" else made.name
    yield (
        f"{name}, {on}",
        f": {format_percent(t.bubble_fraction)} idle ({format_percent(t.bubble_overhead)} of the "
        f"busy time), utilisation {format_percent(t.utilisation)}, "
        f"{format_seconds(t.makespan)}; a device keeps {most} at most.",
    )
    each = "each stage" if made.stages == devices else f"each of {made.stages} stages"
    took = {
        name: ", ".join(map(format_seconds, v if isinstance(v, list) else [v]))
        for name, v in times.items()
    }
    yield (
        f"Of {each}: {took['forward']} forward, {took['backward']} backward; "
        f"transfers overlapped, {took['latency']}.{more}"
    )
    names = ("device", "busy", "idle", "idle share", "kept")
    columns = zip(t.busy_per_device, t.idle_per_device, t.peak_in_flight, strict=True)
    rows: list[tuple[Any, ...]] = [
        (f"{d}", busy, idle, idle / t.makespan, kept)
        for d, (busy, idle, kept) in enumerate(columns)
    ]
    if len(rows) > SHOWN:
        rows[SHOWN // 2 : -SHOWN // 2] = [(f"... {len(rows) - SHOWN} more", *[None] * 4)]
    rows.append(("all", t.busy, t.idle, t.bubble_fraction, f"{most} at most"))
    units = {"busy": "seconds", "idle": "seconds", "idle share": "percent"}
    yield table([dict(zip(names, row, strict=True)) for row in rows], **units)
    several = made.stages * made.replicas // devices
    of = f", counted once for each of its {several} stages" if several > 1 else ""
    yield f"kept: micro-batches whose activations a device keeps at once{of}"
