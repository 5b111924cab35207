"""Traces in files: CSV of intervals, CSV of polled utilisation, Chrome's JSON.

device,start,end            time,device0,device1      timestamp, index, utilization.gpu [%]
0,0.0,1.0                   0.0,1.0,0.0               2026/01/01 10:00:00.000, 0, 97 %
"""

import csv
import gzip
import os
import re
import zlib
from collections.abc import Iterable
from datetime import datetime
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from tiledask.errors import ConfigError
from tiledask.plan.diagnosis.chrome import MeasuredStep, of_chrome, step_of_chrome
from tiledask.plan.diagnosis.trace import UNITS, Trace, of_samples, of_timeline
from tiledask.plan.pipelines.timeline import TRANSFER, Timeline
from tiledask.plan.units import format_bytes

__all__ = ["MAX_BYTES", "read_step", "read_trace"]

MAX_BYTES = 256_000_000
"""Bytes above which a file is refused: as JSON it would take ten times as much memory."""

MOST_FILES = 1024

TIME = ("time", "timestamp", "t")
DEVICE = ("device", "index", "gpu", "rank", "uuid", "pci.bus_id")
SHARE = ("utilisation", "utilization", "utilization.gpu", "util", "share", "busy")


def read_trace(trace: Any, unit: str | None = None) -> Trace:
    """The Trace in a Timeline, a pandas DataFrame with the columns of one, a file, or the files of
    all ranks: a list of paths, or their folder.

    ``unit``: of the times, "s", "ms", "us" or "ns". A CSV file is in seconds unless told, Chrome's
    JSON in microseconds. Raises ConfigError for what cannot be read, naming the line.
    """
    if unit is not None and unit not in UNITS:
        raise ConfigError(f"a unit of time is {', '.join(UNITS)}; got {unit!r}")
    if isinstance(trace, Trace):
        return trace
    if isinstance(trace, Timeline):
        return of_timeline(trace)
    if found := _of_ranks(trace):
        return of_chrome(*found, UNITS[unit or "us"])
    if isinstance(trace, str | PathLike):
        path = Path(trace)
        return _of_text(path.name, _text(path), unit)
    if hasattr(trace, "columns") and hasattr(trace, "itertuples"):
        header = [str(name) for name in trace.columns]
        rows = [[str(v) for v in row] for row in trace.itertuples(index=False)]
        return _of_table(header, rows, "the table", unit)
    raise ConfigError(
        f"a trace is a Timeline, a table with the columns device, start, end, the path of a file, "
        f"or those of all ranks; got {type(trace).__name__}"
    )


def read_step(trace: Any, unit: str | None = None) -> MeasuredStep:
    """How long a step takes of whatever `read_trace` reads: of torch.profiler's files the median of
    those between two of its marks; of everything else, from the first start to the last end, which
    is to be one step. Raises ConfigError for polled utilisation, which does not show where a step
    ends.
    """
    if found := _of_ranks(trace):
        return step_of_chrome(*found, UNITS[unit or "us"])
    if isinstance(trace, str | PathLike):
        name, text = Path(trace).name, _text(Path(trace))
        if text.lstrip()[0] in "[{":
            return step_of_chrome([(name, text)], name, UNITS[unit or "us"])
        read = _of_text(name, text, unit)
    else:
        read = read_trace(trace, unit)
    if read.levels is not None or read.window:
        raise ConfigError(
            f"{read.source} is polled utilisation, which does not show where a step ends; give "
            f"the seconds of a step, or torch.profiler's trace"
        )
    source = read.source or "a timeline"
    return MeasuredStep(read.makespan, None, f"{source}, taken for one step")


def _of_ranks(trace: Any) -> tuple[list[tuple[str, str]], str] | None:
    """((file name, JSON) of a Chrome trace per rank, what they are called) of a folder or a list of
    paths; None of anything else."""
    if isinstance(trace, str | PathLike):
        path = Path(trace)
        if not os.path.isdir(path):  # a name that is too long is none
            return None
        source = path.name
        paths = sorted(p for p in path.iterdir() if p.name.endswith((".json", ".json.gz")))
        if not paths:
            raise ConfigError(
                f"folder {source!r} has no .json or .json.gz; give a folder with a trace of "
                f"each rank, as torch.profiler writes them, or a file"
            )
    elif isinstance(trace, list | tuple) and trace:
        if not all(isinstance(t, str | PathLike) for t in trace):
            return None
        paths, source = [Path(t) for t in trace], f"{len(trace)} files"
    else:
        return None
    if len(paths) > MOST_FILES:
        raise ConfigError(
            f"{source} has {len(paths)} traces, and up to {MOST_FILES} are read at once; give the "
            f"ranks of one pipeline"
        )
    texts: list[tuple[str, str]] = []
    for path in paths:
        texts.append((path.name, _text(path, MAX_BYTES - sum(len(text) for _, text in texts))))
        if texts[-1][1].lstrip()[:1] not in ("[", "{"):
            raise ConfigError(f"{path.name} is no Chrome trace JSON; of several files each is one")
    return texts, source


def _text(path: Path, most: int = MAX_BYTES) -> str:
    """What is in a file, unpacked if it is gzip. Raises ConfigError above ``most`` bytes."""
    if not os.path.isfile(path):
        raise ConfigError(f"no trace at {str(path)!r}; give a CSV or a Chrome trace JSON file")
    size = path.stat().st_size
    if size <= most:
        try:
            data = path.read_bytes()
        except OSError as error:
            raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
        if data[:2] == b"\x1f\x8b":
            try:
                with gzip.open(path) as file:
                    data = file.read(most + 1)
            except (OSError, EOFError, zlib.error) as error:
                raise ConfigError(f"{path.name} is gzip but cannot be unpacked: {error}") from None
        size = len(data)
    if size > most:
        raise ConfigError(
            f"{path.name} has {format_bytes(size)}, and a trace is read up to "
            f"{format_bytes(MAX_BYTES)}; cut it to one training step, or keep only the kernels"
        )
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ConfigError(
            f"{path.name} is not text; give CSV, or a Chrome trace as JSON or .json.gz"
        ) from None
    if not text.strip():
        raise ConfigError(f"{path.name} is empty; a trace needs one action or more")
    return text


def _of_text(name: str, text: str, unit: str | None) -> Trace:
    """The Trace in the ``text`` of a file of this ``name``."""
    if text.lstrip()[0] in "[{":
        return of_chrome([(name, text)], name, UNITS[unit or "us"])
    lines = [line for line in text.splitlines() if line.strip()]
    separator = max(",;\t", key=lines[0].count)
    try:
        table = list(csv.reader(lines, delimiter=separator, skipinitialspace=True))
    except csv.Error as error:
        raise ConfigError(f"{name} cannot be read as CSV: {error}") from None
    return _of_table(table[0], table[1:], name, unit)


def _without_unit(name: str) -> str:
    """The name of a column without what stands behind it in brackets.

    >>> _without_unit("utilization.gpu [%]"), _without_unit("time (s)"), _without_unit("start")
    ('utilization.gpu', 'time', 'start')
    """
    opens = max(name.rfind("["), name.rfind("("))
    return name[:opens].rstrip() if opens >= 0 and name.endswith(("]", ")")) else name


def _of_table(header: list[str], rows: list[list[str]], source: str, unit: str | None) -> Trace:
    names = [_without_unit(name.strip()).lower() for name in header]
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
        values = _numbers(columns[share], share, source + said)
        of = np.array(columns[device])
        by_name = {str(n): values[of == n] for n in dict.fromkeys(columns[device])}
        read = _shares(by_name, {share: columns[share]}, source + said)
        return of_samples({n: (seconds[of == n], v) for n, v in read.items()}, source + said)
    shares = {n: c for n, c in zip(names, zip(*rows, strict=True), strict=False) if n in columns}
    shares.pop("", None)
    read = _shares({n: _numbers(c, n, source) for n, c in shares.items()}, shares, source)
    return of_samples({n: (seconds, values) for n, values in read.items()}, source + said)


_DATE = r"\d{4}[-/]"


def _of_intervals(columns: dict[str, list[str]], source: str, scale: float) -> Trace:
    if "device" not in columns:
        raise ConfigError(f"{source} has start and end but no column device: whose work is it?")
    count = len(columns["device"])
    start, end = (_numbers(columns[name], name, source) * scale for name in ("start", "end"))
    kinds = columns.get("kind", [""] * count)
    stages, numbers = (_labels(columns.get(name), name, count, source) for name in LABELS)
    transfer, rows = 0.0, []
    for i, (name, a, b) in enumerate(zip(columns["device"], start, end, strict=True)):
        kind = "" if kinds[i].lower() in UNKNOWN else kinds[i]
        if kind == TRANSFER:
            transfer += float(b - a)
        else:
            rows.append((name, float(a), float(b), kind, stages[i], numbers[i]))
    # the devices named; if they are numbers, those that are left out between 0 and the last
    names = list(dict.fromkeys(columns["device"]))
    if all(name.isdecimal() and len(name) < 10 for name in names):
        last = max(map(int, names), default=-1)
        names = [str(d) for d in range(last + 1)] if last < 2 * len(names) else names
    return Trace.of(rows, names, transfer=transfer, source=source)


LABELS = ("stage", "microbatch")
UNKNOWN = ("", "nan", "none", "?", "-", "busy")


def _labels(column: list[str] | None, name: str, count: int, source: str) -> list[int]:
    if column is None:
        return [-1] * count
    if all(v.lower() in UNKNOWN for v in column):
        return [-1] * count
    numbers = []
    for line, v in enumerate(column):
        is_whole = re.fullmatch(r"-?\d{1,9}(\.0*)?", v, re.ASCII)
        if not is_whole and v.lower() not in UNKNOWN:
            raise ConfigError(
                f"line {line + 2}: {name} in {source} is a whole number or empty, got {v[:40]!r}"
            )
        numbers.append(int(float(v)) if is_whole else -1)
    return numbers


def _numbers(column: Iterable[str], name: str, source: str) -> np.ndarray:
    values = []
    for line, word in enumerate(column):
        try:
            values.append(float(word.strip().rstrip("%")))
        except ValueError:
            raise ConfigError(
                f"line {line + 2} of {source}: {name} is a number, got {word.strip()[:40]!r}"
            ) from None
    return np.array(values)


def _times(column: list[str], source: str, scale: float) -> np.ndarray:
    """Seconds, from numbers or from dates as nvidia-smi writes them."""
    if not column or not re.match(_DATE, column[0]):
        seconds = _numbers(column, "time", source) * scale
    else:
        try:
            dates = [datetime.fromisoformat(word.replace("/", "-")) for word in column]
            seconds = np.array([(date - dates[0]).total_seconds() for date in dates])
        except ValueError as error:
            said = str(error)[:100]
            raise ConfigError(f"{source}: a time cannot be read as a date: {said}") from None
        except TypeError:
            raise ConfigError(
                f"{source}: some times have a time zone and some have none; write all in one way"
            ) from None
        later: np.ndarray = seconds - seconds.min()
        return later
    if not np.isfinite(seconds).all() or (seconds < 0).any():
        line = int(np.flatnonzero(~(seconds >= 0) | ~np.isfinite(seconds))[0])
        raise ConfigError(
            f"line {line + 2} of {source}: a time is finite and 0 or more, got {column[line]}"
        )
    return seconds


def _shares(
    values: dict[str, np.ndarray], words: dict[str, Any], source: str
) -> dict[str, np.ndarray]:
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
