"""The words of `tiledask idle`: of a schedule by name, an order in a file, a utilisation."""

import argparse
import json
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

from rich.console import Console

from tiledask.errors import ConfigError, DeadlockError, ScheduleError, short
from tiledask.lab.puzzles.orders import in_full
from tiledask.lab.table import Grid, say
from tiledask.plan.pipelines.causes import CAUSES
from tiledask.plan.pipelines.known import Known, known_makespan
from tiledask.plan.pipelines.schedule import Schedule
from tiledask.plan.pipelines.schedules import V_SHAPED, called, is_looped, schedule, schedules
from tiledask.plan.pipelines.simulate import simulate
from tiledask.plan.pipelines.timeline import Timeline
from tiledask.plan.pipelines.utilisation import Exact, FewestMicrobatches, fewest_microbatches
from tiledask.plan.units import format_percent, format_seconds
from tiledask.plan.whole import whole_number

__all__ = ["idle"]

EXAMPLE = "such as: tiledask idle 1f1b 4 8"
SHOWN = 32
"""Rows of devices; of more the first and the last half."""


def idle(args: argparse.Namespace, console: Console) -> tuple[int, dict[str, Any]]:
    """What was asked for, simulated and shown; 1 for an order that cannot run, and for a
    utilisation that is not reached."""
    reached: list[FewestMicrobatches] = []
    if args.order is not None:
        if any(given is not None for given in (args.schedule, *_given(args), args.utilisation)):
            raise ConfigError(
                "--order FILE has its devices and micro-batches in the file; leave out the "
                "schedule, its numbers and --utilisation"
            )
        made = _read_order(args.order)
    elif args.utilisation is not None:
        made, reached = _reaching(args)
    else:
        made = _made(args)
    times = _times(args, made.stages)
    try:
        timeline = simulate(
            made, **{k: _floats(v) for k, v in times.items()}, transfers=args.transfers
        )
    except ScheduleError as error:
        if args.order is None and not isinstance(error, DeadlockError):
            raise
        reason = str(error)
        if isinstance(error, DeadlockError):
            reason = reason.replace("paired ones post", "--transfers paired posts")
            reason += "; rank r is device r + 1"
        say(console, f"{_name(made)} cannot run: {reason}")
        return 1, {"legal": False, "reason": reason}
    result = _facts(made, timeline) | {"legal": True}
    met = _show_reached(args, made, reached, result, console) if reached else True
    _show(args, made, timeline, times, console)
    known = _known(made, times, args.transfers)
    if known:
        result["closed_form"] = known.seconds
    if args.explain:
        _explain(timeline, known, console)
    if args.write_order:
        Path(args.write_order).write_text(f"{made.to_text()}\n", encoding="utf-8")
    if args.trace:
        timeline.to_trace(args.trace)
    if args.figure:
        from tiledask.lab.files import save_figure
        from tiledask.lab.plots import gantt

        save_figure(gantt(timeline, title=f"{made!r}"), args.figure)
    return (0 if met else 1), result


# -- what is asked for ---------------------------------------------------------------------------


def _given(args: argparse.Namespace) -> tuple[int | None, int | None, int | None]:
    """Devices, micro-batches and chunks, each as an argument or as an option."""
    found = []
    for name in ("devices", "microbatches"):
        place, option = getattr(args, name), getattr(args, f"{name}_option")
        if None not in (place, option) and place != option:
            raise ConfigError(
                f"{name.upper()} is {place} behind the schedule's name and {option} behind "
                f"--{name}; give it once"
            )
        found.append(place if option is None else option)
    return *found, args.chunks


def _made(args: argparse.Namespace, microbatches: int | None = None) -> Schedule:
    """The schedule by name, of so many devices with so many chunks on each."""
    if args.schedule is None:
        raise ConfigError(
            f"a schedule needs its name, DEVICES and MICROBATCHES, {EXAMPLE}; an order of your own "
            f"is read by --order FILE, a measured run by --diagnose TRACE"
        )
    name = called(args.schedule)
    if name.isdecimal():
        raise ConfigError(f"the schedule's name comes first, {EXAMPLE}; got {short(name)}")
    devices, given, chunks = _given(args)
    microbatches = given if microbatches is None else microbatches
    if name not in schedules:
        schedule(name, 1, 1)  # says which is the nearest
    if microbatches is None and name == "naive":
        microbatches = 1
    if None in (devices, microbatches):
        lacks = "DEVICES and MICROBATCHES" if devices is None else "MICROBATCHES"
        raise ConfigError(
            f"{args.schedule} needs {lacks} behind it, {EXAMPLE.replace('1f1b', args.schedule)}; "
            f"--utilisation 0.9 finds the micro-batches that reach it"
        )
    for what, number in (("DEVICES", devices), ("MICROBATCHES", microbatches)):
        whole_number(what, number, 1)
    each = _chunks(name, chunks)
    if name == "dualpipe" and devices % 2:
        raise ConfigError(
            f"dualpipe's two directions meet in the middle: DEVICES must be even, got {devices}; "
            f"take {devices + 1}"
        )
    options = {"devices": devices} if is_looped(name) else {}
    return schedule(name, each * devices, microbatches, **options)


def _chunks(name: str, chunks: int | None) -> int:
    """Stages on each device."""
    if is_looped(name):
        each = 2 if chunks is None else whole_number("--chunks", chunks, 1)
        return each
    only = 2 if name in V_SHAPED else 1
    if chunks not in (None, only):
        looped = ", ".join(each for each in schedules if is_looped(each))
        raise ConfigError(
            f"{name} has {only} {'stage' if only == 1 else 'stages'} on each device, got --chunks "
            f"{chunks}; any number of them have {looped}"
        )
    return only


def _reaching(args: argparse.Namespace) -> tuple[Schedule, list[FewestMicrobatches]]:
    """The schedule with the fewest micro-batches that reach --utilisation."""
    if args.schedule is None:
        args.schedule = "1f1b"
    if _given(args)[1] is not None:
        raise ConfigError("--utilisation finds MICROBATCHES; leave them out, or --utilisation")
    wanted = _utilisation(args.utilisation)
    first = _made(args, 1)
    times = {k: v for k, v in _times(args, first.stages).items() if v is not None}
    found = fewest_microbatches(lambda m: _made(args, m), wanted, times, args.transfers)
    return _made(args, found[-1].microbatches), found


def _utilisation(text: str) -> Fraction:
    share = text.strip()
    try:
        value = Fraction(share.rstrip("% ")) / (100 if share.endswith("%") else 1)
    except (ValueError, ZeroDivisionError):
        value = Fraction(-1)
    if not 0 < value <= 1:
        raise ConfigError(
            f"--utilisation is a share above 0, of 1 at most, such as 0.9 or 90%; got {short(text)}"
        )
    return value


def _times(args: argparse.Namespace, stages: int) -> dict[str, Exact | None]:
    """Seconds, exactly as they were typed: one number, or one per stage or boundary."""
    counts = {"forward": stages, "backward": stages, "latency": stages - 1, "overlapped": stages}
    found: dict[str, Exact | None] = {}
    for name, count in counts.items():
        text = getattr(args, name)
        if text is None:
            continue
        try:
            numbers = [Fraction(word) for word in text.split(",")]
        except (ValueError, ZeroDivisionError):
            raise ConfigError(
                f"--{name} is seconds, or several between commas, such as 1,1,2; got {short(text)}"
            ) from None
        if len(numbers) not in (1, count):
            per = "boundary between stages" if name == "latency" else "stage"
            raise ConfigError(
                f"--{name} is one number, or {count}, one per {per}; got {len(numbers)}"
            )
        found[name] = numbers[0] if len(numbers) == 1 else numbers
    return found


def _floats(times: Any) -> Any:
    return [float(x) for x in times] if isinstance(times, list) else float(times)


def _read_order(path: str) -> Schedule:
    """The order in a file: a line of actions per device, or rows of them as JSON."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "no text"
        raise ConfigError(
            f"{short(path)} cannot be read ({reason}); an order is a text file with a line for "
            f"each device, such as: 0F0 0F1 0B0 0B1"
        ) from None
    if text.lstrip().startswith(("[", "{")):
        text = _of_json(text)
    lines = (line for line in text.splitlines() if not line.startswith("#"))
    return Schedule.from_text(in_full("\n".join(lines)), Path(path).name)


def _of_json(text: str) -> str:
    try:
        rows = json.loads(text)
        rows = rows["orders"] if isinstance(rows, dict) else rows
        return "\n".join(row if isinstance(row, str) else " ".join(row) for row in rows)
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ConfigError(
            'an order as JSON is a row of actions for each device, [["0F0", "0B0"], ["1F0", '
            '"1B0"]], or {"orders": of these}'
        ) from None


# -- what is shown -------------------------------------------------------------------------------


def _name(made: Schedule) -> str:
    name = {"naive": "naive (layer-wise)"}.get(made.name, made.name)
    counts = _count(made.devices, "device"), _count(made.microbatches, "micro-batch", "es")
    return ", ".join((name, *counts))


def _count(number: int, noun: str, plural: str = "s") -> str:
    return f"{number:,} {noun}{plural if number != 1 else ''}"


def _facts(made: Schedule, t: Timeline) -> dict[str, Any]:
    assert t.bound is not None
    return {
        "schedule": made.name,
        "devices": made.devices,
        "stages": made.stages,
        "microbatches": made.microbatches,
        "makespan": t.makespan,
        "lower_bound": t.lower_bound,
        "lower_bound_why": t.bound.why,
        "busy": t.busy,
        "idle": t.idle,
        "utilisation": t.utilisation,
        "bubble_fraction": t.bubble_fraction,
        "bubble_overhead": t.bubble_overhead,
        "span_bubble": t.span_bubble,
        "busy_per_device": t.busy_per_device,
        "idle_per_device": t.idle_per_device,
        "peak_in_flight": t.peak_in_flight,
        "causes": {cause: seconds for cause, seconds in t.idle_time.total.items() if seconds},
        "binds": t.critical_path.binds,
    }


def _show_reached(
    args: argparse.Namespace,
    made: Schedule,
    reached: Sequence[FewestMicrobatches],
    result: dict[str, Any],
    console: Console,
) -> bool:
    """Whether the utilisation is reached, and by how many micro-batches."""
    wanted, (m, share) = _utilisation(args.utilisation), reached[-1]
    met, asked = share >= wanted, f"{100 * float(wanted):g} %"
    result |= {"wanted": float(wanted), "reached": met}
    on = f"on {_count(made.devices, 'device')} with {made.name}"
    if not met:
        words = f"No: {asked} is not reached {on}; {m:,} micro-batches, the most that were tried, "
        say(console, f"{words}give {_exactly(share, wanted)}.", wrap=True)
        return False
    less = ""
    if len(reached) > 1:
        below, under = reached[0]
        less = f"; {below:,} give {_exactly(under, wanted)}"
        result["below"] = {"microbatches": below, "utilisation": float(under)}
    words = f"{_count(m, 'micro-batch', 'es')} {'reaches' if m == 1 else 'reach'} {asked} {on}"
    say(console, f"{words}: {_exactly(share, wanted)}{less}.", wrap=True)
    return True


def _exactly(share: Fraction, beside: Fraction) -> str:
    """In percent, with as many digits as it takes to be told from ``beside``."""
    for digits in range(1, 15):
        shown = f"{100 * float(share):.{digits}f} %"
        if share == beside or shown != f"{100 * float(beside):.{digits}f} %":
            break
    return shown


def _show(
    args: argparse.Namespace,
    made: Schedule,
    t: Timeline,
    times: dict[str, Exact | None],
    console: Console,
) -> None:
    """The answer in a line, what was taken for it, and each device."""
    most = max(t.peak_in_flight, default=0)
    say(
        console,
        f": {format_percent(t.bubble_fraction)} idle ({format_percent(t.bubble_overhead)} of the "
        f"busy time), utilisation {format_percent(t.utilisation)}, "
        f"{_seconds(t.makespan)}; a device keeps {most} at most.",
        bold=_name(made),
        wrap=True,
    )
    each = "each stage" if made.stages == made.devices else f"each of {made.stages} stages"
    took = f"{_said(times['forward'])} forward, {_said(times['backward'])} backward"
    sent = f"transfers {args.transfers}, {_said(times['latency'])}"
    say(console, f"Of {each}: {took}; {sent}. More: --explain", wrap=True)
    share = made.stages // made.devices
    if share > 1 and args.order is None and (args.forward, args.backward) == ("1", "2"):
        say(
            console,
            f"{made.stages} stages of 1 s forward: {share} times the model of 1f1b's "
            f"{made.devices}; for the same model --forward {1 / share:g} --backward {2 / share:g}",
            wrap=True,
        )
    columns = (t.busy_per_device, t.idle_per_device, t.peak_in_flight)
    rows = [
        (
            f"{d}",
            _seconds(busy),
            _seconds(idle),
            format_percent(idle / t.makespan if t.makespan else 0.0),
            f"{kept}",
        )
        for d, (busy, idle, kept) in enumerate(zip(*columns, strict=True), 1)
    ]
    if len(rows) > SHOWN:
        dots = (f"... {len(rows) - SHOWN} more", *[""] * 4)
        rows = [*rows[: SHOWN // 2], dots, *rows[-SHOWN // 2 :]]
    all_of = (_seconds(t.busy), _seconds(t.idle), format_percent(t.bubble_fraction))
    rows.append(("all", *all_of, f"{most} at most"))
    console.print(
        Grid(("device", "busy", "idle", "idle share", "kept"), rows, bold=[len(rows) - 1])
    )
    several = made.stages * made.replicas // made.devices
    of = f", counted once for each of its {several} stages" if several > 1 else ""
    say(console, f"kept: micro-batches whose activations a device keeps at once{of}", wrap=True)


def _seconds(seconds: float) -> str:
    return f"{seconds:,.6g} s" if seconds >= 1000 else format_seconds(seconds)


def _said(seconds: Any) -> str:
    if isinstance(seconds, list):
        return ", ".join(_seconds(float(each)) for each in seconds)
    return _seconds(float(seconds))


def _known(made: Schedule, times: dict[str, Any], transfers: str) -> Known | None:
    """The makespan by formula, if there is one for equal stages and these transfers."""
    if any(isinstance(each, list) for each in times.values()) or transfers != "overlapped":
        return None
    took = {name: float(seconds) for name, seconds in times.items()}
    half = took["backward"] / 2
    return known_makespan(
        made.name,
        made.devices,
        made.microbatches,
        took["forward"],
        half,
        half,
        took["latency"],
        chunks=max(1, made.stages // made.devices),
        overlapped=took.get("overlapped"),
    )


TRANSFERS = {
    "overlapped": "a block travels on a stream of its own, and both devices compute meanwhile",
    "blocking": "the sender waits until the block is in its receiver's buffer, who computes on",
    "rendezvous": "both ends wait for each other, and do nothing else while a block travels; "
    "between two actions a device sends, then receives",
    "paired": "as rendezvous, but all that is between two actions is posted at once",
}


def _explain(t: Timeline, known: Known | None, console: Console) -> None:
    """Why it idles, what no order undercuts, and the path that decides."""
    assert t.bound is not None
    assert t.evidence is not None
    how = t.evidence.links.transfers
    causes = [
        (cause, _seconds(seconds), CAUSES[cause])
        for cause, seconds in t.idle_time.total.items()
        if seconds
    ]
    if causes:
        console.print(Grid(("idle by cause", "device-s", ""), causes, left=(0, 2)))
    lines = [
        f"idle over busy: {format_percent(t.bubble_overhead)}; idle over the longest span of a "
        f"device: {format_percent(t.span_bubble)}",
        f"no order of these actions takes less than {_seconds(t.bound.seconds)} ({t.bound.why})",
        f"by formula: {_seconds(known.seconds)} = {known.formula} ({known.source})"
        if known
        else "",
        f"{t.critical_path!r}",
        f"{how} transfers: {TRANSFERS[how]}",
    ]
    for line in filter(None, lines):
        say(console, line, wrap=True)
