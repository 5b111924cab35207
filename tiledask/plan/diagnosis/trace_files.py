"""Traces in files: CSV of intervals, CSV of polled utilisation, Chrome's JSON.

device,start,end            time,device0,device1      timestamp, index, utilization.gpu [%]
0,0.0,1.0                   0.0,1.0,0.0               2026/01/01 10:00:00.000, 0, 97 %
"""

import csv
import json
import math
import re
from collections.abc import Iterable, Iterator
from datetime import datetime
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from tiledask.errors import ConfigError
from tiledask.plan.diagnosis.trace import UNITS, Row, Trace, of_samples, of_timeline
from tiledask.plan.pipelines.timeline import TRANSFER, Timeline
from tiledask.plan.units import format_bytes

__all__ = ["MAX_BYTES", "read_trace"]

MAX_BYTES = 256_000_000
"""Bytes above which a file is refused: as JSON it would take ten times as much memory."""

TIME = ("time", "timestamp", "t")
DEVICE = ("device", "index", "gpu", "rank", "uuid", "pci.bus_id")
SHARE = ("utilisation", "utilization", "utilization.gpu", "util", "share", "busy")


def read_trace(trace: Any, unit: str | None = None) -> Trace:
    """The Trace in a Timeline, a pandas DataFrame with the columns of one, or a file.

    ``unit``: of the times, "s", "ms", "us" or "ns". A CSV file is in seconds unless told, Chrome's
    JSON in microseconds. Raises ConfigError for what cannot be read, naming the line.
    """
    if unit is not None and unit not in UNITS:
        raise ConfigError(f"a unit of time is {', '.join(UNITS)}; got {unit!r}")
    if isinstance(trace, Trace):
        return trace
    if isinstance(trace, Timeline):
        return of_timeline(trace)
    if isinstance(trace, str | PathLike):
        return _read_file(Path(trace), unit)
    if hasattr(trace, "columns") and hasattr(trace, "itertuples"):
        header = [str(name) for name in trace.columns]
        rows = [[str(v) for v in row] for row in trace.itertuples(index=False)]
        return _of_table(header, rows, "the table", unit)
    raise ConfigError(
        f"a trace is a Timeline, a table with the columns device, start, end, or the path of a "
        f"file; got {type(trace).__name__}"
    )


def _read_file(path: Path, unit: str | None) -> Trace:
    if not path.is_file():
        raise ConfigError(f"no trace at {str(path)!r}; give a CSV or a Chrome trace JSON file")
    size = path.stat().st_size
    if size > MAX_BYTES:
        raise ConfigError(
            f"{path.name} has {format_bytes(size)}, and a trace is read up to "
            f"{format_bytes(MAX_BYTES)}; cut it to one training step, or keep only the kernels"
        )
    try:
        text = path.read_text("utf-8-sig")
    except UnicodeDecodeError:
        raise ConfigError(
            f"{path.name} is not text; unpack it, and give CSV or a Chrome trace JSON"
        ) from None
    if not text.strip():
        raise ConfigError(f"{path.name} is empty; a trace needs one action or more")
    if text.lstrip()[0] in "[{":
        return _of_chrome(text, path.name, unit)
    lines = [line for line in text.splitlines() if line.strip()]
    separator = max(",;\t", key=lines[0].count)
    table = list(csv.reader(lines, delimiter=separator, skipinitialspace=True))
    return _of_table(table[0], table[1:], path.name, unit)


def _of_table(header: list[str], rows: list[list[str]], source: str, unit: str | None) -> Trace:
    names = [_column(name) for name in header]
    for number, row in enumerate(rows):
        if len(row) != len(header):
            raise ConfigError(
                f"line {number + 2} of {source} has {len(row)} columns and the head {len(header)}"
            )
    columns = {name: [row[i].strip() for row in rows] for i, name in enumerate(names)}
    scale = UNITS[unit or "s"]
    said = "" if unit else " (times taken as seconds)"
    if {"start", "end"} <= columns.keys():
        return _of_intervals(columns, source + said, scale)
    time = next((name for name in TIME if name in columns), None)
    if time is None:
        raise ConfigError(
            f"{source} has the columns {', '.join(header)}; a trace has device, start, end, or "
            f"time and a column of utilisation for each device"
        )
    said = "" if re.match(_DATE, columns[time][0] if rows else "") else said
    seconds = _times(columns.pop(time), source, scale)
    device = next((name for name in DEVICE if name in columns), None)
    share = next((name for name in SHARE if name in columns), None)
    if share is not None and device is not None:
        return _of_long(columns, device, share, seconds, source + said)
    shares = {n: c for n, c in zip(names, zip(*rows, strict=True), strict=False) if n in columns}
    shares.pop("", None)
    read = _shares({n: _numbers(c, n, source) for n, c in shares.items()}, shares, source)
    return of_samples({n: (seconds, values) for n, values in read.items()}, source + said)


_DATE = r"\d{4}[-/]"


def _column(name: str) -> str:
    """A column's name without its unit: "utilization.gpu [%]" is utilization.gpu."""
    return re.sub(r"\s*[\[(][^\])]*[\])]\s*$", "", name.strip()).lower()


def _of_intervals(columns: dict[str, list[str]], source: str, scale: float) -> Trace:
    if "device" not in columns:
        raise ConfigError(f"{source} has start and end but no column device: whose work is it?")
    count = len(columns["device"])
    start, end = (_numbers(columns[name], name, source) * scale for name in ("start", "end"))
    kinds = columns.get("kind", [""] * count)
    stages, numbers = (_labels(columns.get(name), name, count, source) for name in LABELS)
    transfer, rows, names = 0.0, [], []
    for i, (name, a, b) in enumerate(zip(columns["device"], start, end, strict=True)):
        names.append(name)
        kind = "" if kinds[i].lower() in UNKNOWN else kinds[i]
        if kind == TRANSFER:
            transfer += float(b - a)
        else:
            rows.append((name, float(a), float(b), kind, stages[i], numbers[i]))
    return Trace.of(rows, _all_devices(names), transfer=transfer, source=source)


LABELS = ("stage", "microbatch")
UNKNOWN = ("", "nan", "none", "?", "-", "busy")


def _all_devices(names: Iterable[str]) -> list[str]:
    """The devices named; if they are numbers, those that are left out between 0 and the last."""
    there = list(dict.fromkeys(names))
    if not all(name.isdigit() for name in there):
        return there
    last = max(map(int, there), default=-1)
    return [str(d) for d in range(last + 1)] if last < 2 * len(there) else there


def _labels(column: list[str] | None, name: str, count: int, source: str) -> list[int]:
    if column is None:
        return [-1] * count
    if all(v.lower() in UNKNOWN for v in column):
        return [-1] * count
    try:
        return [-1 if v.lower() in UNKNOWN else int(float(v)) for v in column]
    except ValueError:
        wrong = next(v for v in column if not re.fullmatch(r"-?\d+(\.0*)?", v))
        raise ConfigError(f"{name} in {source} is a whole number or empty, got {wrong!r}") from None


def _numbers(column: Iterable[str], name: str, source: str) -> np.ndarray:
    values = []
    for line, word in enumerate(column):
        try:
            values.append(float(word.strip().rstrip("%")))
        except ValueError:
            raise ConfigError(
                f"line {line + 2} of {source}: {name} is a number, got {word.strip()!r}"
            ) from None
    return np.array(values)


def _times(column: list[str], source: str, scale: float) -> np.ndarray:
    """Seconds, from numbers or from dates as nvidia-smi writes them."""
    if not column or not re.match(_DATE, column[0]):
        seconds = _numbers(column, "time", source) * scale
    else:
        try:
            dates = [datetime.fromisoformat(word.replace("/", "-")) for word in column]
        except ValueError as error:
            raise ConfigError(f"{source}: a time cannot be read as a date: {error}") from None
        seconds = np.array([(date - dates[0]).total_seconds() for date in dates])
        return seconds - seconds.min()
    if not np.isfinite(seconds).all() or (seconds < 0).any():
        line = int(np.flatnonzero(~(seconds >= 0) | ~np.isfinite(seconds))[0])
        raise ConfigError(
            f"line {line + 2} of {source}: a time is finite and 0 or more, got {column[line]}"
        )
    return seconds


def _of_long(columns, device: str, share: str, seconds: np.ndarray, source: str) -> Trace:
    values = _numbers(columns[share], share, source)
    names = np.array(columns[device])
    by_name = {str(n): values[names == n] for n in dict.fromkeys(columns[device])}
    read = _shares(by_name, {share: columns[share]}, source)
    return of_samples({n: (seconds[names == n], v) for n, v in read.items()}, source)


def _shares(values: dict[str, np.ndarray], words: dict[str, Any], source: str):
    """Shares of 0..1: a number above 1, or a % sign anywhere, says that they are percent."""
    if not values or not all(len(v) for v in values.values()):
        raise ConfigError(f"{source} has no samples; a trace needs two or more for each device")
    for name, column in values.items():
        wrong = ~(np.isfinite(column) & (column >= 0) & (column <= 100 + 1e-9))
        if wrong.any():
            line = int(np.flatnonzero(wrong)[0])
            raise ConfigError(
                f"device {name} of {source} is busy for {column[line]:g} at its sample {line + 1}; "
                f"utilisation is a share of 0 to 1 or a percentage of 0 to 100"
            )
    percent = any(v.max() > 1 + 1e-9 for v in values.values())
    percent = percent or any("%" in word for column in words.values() for word in column)
    return {name: column / (100 if percent else 1) for name, column in values.items()}


# --- Chrome's JSON, as torch.profiler writes it --------------------------------------------

ACTION = re.compile(r"(?<![A-Za-z0-9])(\d+)([FBIW])(\d+)(?![A-Za-z0-9])")
"""An action in the name of an event, such as record_function("0F3")."""
LAUNCH_GAP = 1e-3
"""Share of the makespan below which a pause between two kernels is no idle time."""


def _of_chrome(text: str, source: str, unit: str | None) -> Trace:
    try:
        data = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{source} begins like JSON but cannot be read: {error}") from None
    events = data.get("traceEvents", []) if isinstance(data, dict) else data
    spans = [e for e in events if isinstance(e, dict) and e.get("ph") == "X" and "ts" in e]
    if not spans:
        raise ConfigError(
            f"{source} has no complete event (ph 'X' with ts and dur); export the trace with "
            f"torch.profiler's export_chrome_trace"
        )
    scale = UNITS[unit or "us"]
    actions = [e for e in spans if ACTION.search(str(e.get("name", "")))]
    kernels = [e for e in spans if str(e.get("cat", "")).lower() == "kernel"]
    on_gpu = [e for e in actions if str(e.get("cat", "")).startswith("gpu")]
    chosen = on_gpu or actions or kernels or spans
    travels = [e for e in chosen if not actions and _is_transfer(e)]
    work = [e for e in chosen if actions or not _is_transfer(e)]
    zero = min((_number(e, "ts", source) for e in work), default=0.0)
    rows = list(_outermost(_chrome_rows(work, source, scale, zero, bool(actions))))
    transfer = sum(_number(e, "dur", source) for e in travels) * scale
    trace = Trace.of(rows, transfer=transfer, source=source)
    return trace.merged(LAUNCH_GAP * trace.makespan) if chosen is kernels else trace


def _is_transfer(event: dict) -> bool:
    """NCCL's kernels send and receive; they are no work of a stage."""
    return "nccl" in str(event.get("name", "")).lower()


def _number(event: dict, name: str, source: str) -> float:
    value = event.get(name, math.nan)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ConfigError(f"event {event.get('name')!r} of {source} has {name} {value!r}")
    return float(value)


def _chrome_rows(
    events: list[dict], source: str, scale: float, zero: float, labelled: bool
) -> Iterator[Row]:
    several = len({e.get("pid") for e in events}) > 1
    for event in events:
        args = event.get("args") or {}
        device = args.get("device", event.get("pid" if several else "tid", 0))
        start, length = _number(event, "ts", source), _number(event, "dur", source)
        if start < 0 or length < 0:
            raise ConfigError(
                f"event {event.get('name')!r} of {source} starts at {start:g} and lasts "
                f"{length:g}; both are 0 or more"
            )
        found = ACTION.search(str(event.get("name", ""))) if labelled else None
        label = (found[2], int(found[1]), int(found[3])) if found else ("", -1, -1)
        yield (str(device), (start - zero) * scale, (start - zero + length) * scale, *label)


def _outermost(rows: Iterable[Row]) -> Iterator[Row]:
    """Without the calls inside calls: events of a thread are nested."""
    reach: dict[str, float] = {}
    for row in sorted(rows, key=lambda r: (r[0], r[1], -r[2])):
        before = reach.get(row[0], -math.inf)
        if row[1] >= before or row[2] > before:
            reach[row[0]] = max(row[2], before)
            yield row
