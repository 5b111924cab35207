"""Traces in files: CSV of intervals, CSV of polled utilisation, Chrome's JSON.

device,start,end            time,device0,device1
0,0.0,1.0                   0.0,100,0
"""

import csv
import gzip
import os
import re
import zlib
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from tiledask.errors import ConfigError, short
from tiledask.plan.diagnosis.chrome import MeasuredStep, of_chrome, step_of_chrome
from tiledask.plan.diagnosis.trace import UNITS, Trace, of_polls, of_timeline
from tiledask.plan.pipelines.timeline import TRANSFER, Timeline
from tiledask.plan.units import format_bytes

__all__ = ["MAX_BYTES", "read_step", "read_trace"]

MAX_BYTES = 256_000_000
"""Bytes above which a file is refused: as JSON it would take ten times as much memory."""

MOST_FILES = 1024

UNKNOWN = ("", "nan")
"""A label that a row does not have; "nan" is what pandas writes."""


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
    if read.levels is not None:
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


def _of_table(header: list[str], rows: list[list[str]], source: str, unit: str | None) -> Trace:
    for line, row in enumerate(rows, 2):
        if len(row) != len(header):
            raise ConfigError(
                f"line {line} of {source} has {len(row)} columns and the head {len(header)}"
            )
    names = [name.strip().lower() for name in header]
    columns = {name: [row[i].strip() for row in rows] for i, name in enumerate(names)}
    columns.pop("", None)  # an index
    scale, about = UNITS[unit or "s"], source + ("" if unit else " (times taken as seconds)")
    if {"device", "start", "end"} <= columns.keys():
        return _of_intervals(columns, about, scale)
    if "time" not in columns or len(columns) == 1:
        raise ConfigError(
            f"{source} has the columns {', '.join(header)}; a trace has device, start, end, or "
            f"time and a column of utilisation for each device"
        )
    numbers = {name: _numbers(column, name, source) for name, column in columns.items()}
    time = numbers.pop("time") * scale
    shares = np.stack([*numbers.values()], axis=1)
    if not (np.isfinite(time).all() and ((shares >= 0) & (shares <= 100 + 1e-9)).all()):
        raise ConfigError(
            f"{source} has a time that is not finite, or utilisation that is neither a share of 0 "
            f"to 1 nor a percentage of 0 to 100; drop that sample"
        )
    is_percent = shares.max(initial=0.0) > 1 + 1e-9
    return of_polls(time, shares / (100 if is_percent else 1), [*numbers], about)


def _of_intervals(columns: dict[str, list[str]], source: str, scale: float) -> Trace:
    start, end = (_numbers(columns[name], name, source) * scale for name in ("start", "end"))
    nothing = [""] * len(start)
    kinds = ["" if kind == "nan" else kind for kind in columns.get("kind", nothing)]
    stages, numbers = (
        _labels(columns.get(name, nothing), name, source) for name in ("stage", "microbatch")
    )
    work, transfer = [], 0.0
    for row in zip(
        columns["device"], start.tolist(), end.tolist(), kinds, stages, numbers, strict=True
    ):
        if row[3] == TRANSFER:
            transfer += row[2] - row[1]
        else:
            work.append(row)
    return Trace.of(work, columns["device"], transfer=transfer, source=source)


def _labels(column: list[str], name: str, source: str) -> list[int]:
    """Whole numbers, -1 for what is not told; pandas writes them as 3.0 where some are not."""
    for line, word in enumerate(column, 2):
        if word not in UNKNOWN and not re.fullmatch(r"-?\d{1,9}(\.0)?", word, re.ASCII):
            raise ConfigError(
                f"line {line}: {name} in {source} is a whole number or empty, got {short(word)}"
            )
    return [-1 if word in UNKNOWN else int(float(word)) for word in column]


def _numbers(column: Sequence[str], name: str, source: str) -> np.ndarray:
    for line, word in enumerate(column, 2):
        try:
            float(word)
        except ValueError:
            raise ConfigError(
                f"line {line} of {source}: {name} is a number, got {short(word)}"
            ) from None
    return np.array(column, float)
