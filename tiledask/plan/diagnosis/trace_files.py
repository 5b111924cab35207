"""Traces in files: CSV of intervals, CSV of polled utilisation, Chrome's JSON.

device,start,end            time,device0,device1
0,0.0,1.0                   0.0,100,0
"""

import csv
import gzip
import os
import zlib
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
_Table = tuple[list[str], list[list[str]]]
"""Names of columns, and rows of words."""


def read_trace(trace: Any, unit: str | None = None) -> Trace:
    """The Trace in a Timeline, a pandas DataFrame with the columns of one, a file, or the files of
    all ranks: a list of paths, or their folder.

    ``unit``: of the times, "s", "ms", "us" or "ns". A CSV file is in seconds by default, Chrome's
    JSON in microseconds. Raises ConfigError for what cannot be read, naming the line.
    """
    if unit is not None and unit not in UNITS:
        raise ConfigError(f"a unit of time is {', '.join(UNITS)}; got {unit!r}")
    if isinstance(trace, Timeline):
        return of_timeline(trace)
    texts, source = _texts(trace)
    if texts and texts[0][1].lstrip()[0] in "[{":
        return of_chrome(texts, source, UNITS[unit or "us"])
    if texts:
        return _of_table(_csv(*texts[0]), source, unit)
    if hasattr(trace, "columns") and hasattr(trace, "itertuples"):
        rows = [[str(v) for v in row] for row in trace.itertuples(index=False)]
        return _of_table(([str(name) for name in trace.columns], rows), "the table", unit)
    raise ConfigError(
        f"a trace is a Timeline, a table with the columns device, start, end, the path of a file, "
        f"or those of all ranks; got {type(trace).__name__}"
    )


def read_step(trace: Any) -> MeasuredStep:
    """How long a step takes of whatever `read_trace` reads: of torch.profiler's files the median of
    those between two of its marks; of everything else, from the first start to the last end, which
    is to be one step. Raises ConfigError for polled utilisation, which does not show where a step
    ends.
    """
    texts, source = _texts(trace)
    if texts and texts[0][1].lstrip()[0] in "[{":
        return step_of_chrome(texts, source, UNITS["us"])
    read = read_trace(trace)
    if read.levels is not None:
        raise ConfigError(
            f"{read.source} is polled utilisation, which does not show where a step ends; give "
            f"the seconds of a step, or torch.profiler's trace"
        )
    source = read.source or "a timeline"
    return MeasuredStep(read.makespan, None, f"{source}, taken for one step")


# --- files ----------------------------------------------------------------------------------


def _texts(trace: Any) -> tuple[list[tuple[str, str]], str]:
    """((file name, text) of each file, what they are called) of a path, of a list of paths or of a
    folder; none of anything else."""
    given = trace if isinstance(trace, list | tuple) else [trace]
    if not given or not all(isinstance(each, str | PathLike) for each in given):
        return [], ""
    paths, source = [Path(each) for each in given], f"{len(given)} files"
    if len(paths) == 1:
        source = paths[0].name
        if os.path.isdir(paths[0]):  # a name that is too long is none
            paths = sorted(p for p in paths[0].iterdir() if p.name.endswith((".json", ".json.gz")))
    if not paths:
        raise ConfigError(
            f"folder {source!r} has no .json or .json.gz; give a folder with a trace of each rank, "
            f"as torch.profiler writes them, or a file"
        )
    texts: list[tuple[str, str]] = []
    for path in paths:
        texts.append((path.name, _text(path, MAX_BYTES - sum(len(text) for _, text in texts))))
        if len(paths) > 1 and texts[-1][1].lstrip()[0] not in "[{":
            raise ConfigError(f"{path.name} is no Chrome trace JSON; of several files each is one")
    return texts, source


def _text(path: Path, most: int) -> str:
    """What is in a file, unpacked if it is gzip. Raises ConfigError above ``most`` bytes."""
    if not os.path.isfile(path):
        raise ConfigError(f"no trace at {str(path)!r}; give a CSV or a Chrome trace JSON file")
    size, data = os.path.getsize(path), b""
    try:
        if size <= most:
            with open(path, "rb") as file:
                packed = file.read(2) == b"\x1f\x8b"
            with gzip.open(path) if packed else open(path, "rb") as file:
                data = file.read(most + 1)
        text = data.decode("utf-8-sig")
    except (EOFError, OSError, UnicodeDecodeError, zlib.error) as error:
        raise ConfigError(
            f"{path.name} cannot be read: {error}; give CSV, or a Chrome trace as JSON or .json.gz"
        ) from None
    if max(size, len(data)) > most:
        raise ConfigError(
            f"{path.name} has {format_bytes(max(size, len(data)))}, and a trace is read up to "
            f"{format_bytes(MAX_BYTES)}; cut it to one training step, or keep only the kernels"
        )
    if not text.strip():
        raise ConfigError(f"{path.name} is empty; a trace needs one action or more")
    return text


def _csv(name: str, text: str) -> _Table:
    lines = [line for line in text.splitlines() if line.strip()]
    separator = max(",;\t", key=lines[0].count)
    try:
        head, *rows = csv.reader(lines, delimiter=separator, skipinitialspace=True)
    except csv.Error as error:
        raise ConfigError(f"{name} cannot be read as CSV: {error}") from None
    return head, rows


# --- tables ---------------------------------------------------------------------------------


def _of_table(table: _Table, source: str, unit: str | None) -> Trace:
    head, rows = table
    for line, row in enumerate(rows, 2):
        if len(row) != len(head):
            raise ConfigError(
                f"line {line} of {source} has {len(row)} columns and the head {len(head)}"
            )
    names = [name.strip().lower() for name in head]
    columns = {name: [row[i].strip() for row in rows] for i, name in enumerate(names)}
    columns.pop("", None)  # an index
    scale, about = UNITS[unit or "s"], source + ("" if unit else " (times taken as seconds)")
    if {"device", "start", "end"} <= columns.keys():
        return _of_intervals(columns, about, scale)
    if "time" not in columns or len(columns) == 1:
        raise ConfigError(
            f"{source} has the columns {', '.join(head)}; a trace has device, start, end, or "
            f"time and a column of utilisation for each device"
        )
    numbers = {name: _numbers(columns, name, source) for name in columns}
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
    start, end = ((_numbers(columns, name, source) * scale).tolist() for name in ("start", "end"))
    kinds = ["" if kind == "nan" else kind for kind in columns.get("kind", [""] * len(start))]
    labels = [_labels(columns, name, source) for name in ("stage", "microbatch")]
    rows = zip(columns["device"], start, end, kinds, *labels, strict=True)
    work = [row for row in rows if row[3] != TRANSFER]
    return Trace.of(work, columns["device"], source=source)


def _labels(columns: dict[str, list[str]], name: str, source: str) -> list[int]:
    """Whole numbers, -1 where there is none; pandas writes them as 3.0 then, and others as nan."""
    words = [word or "nan" for word in columns.get(name, ["nan"] * len(columns["device"]))]
    found = np.nan_to_num(_numbers({name: words}, name, source), nan=-1.0)
    if not ((found == np.rint(found)) & (abs(found) < 1e9)).all():
        raise ConfigError(f"{name} in {source} is a whole number below 10^9, or empty")
    return list(map(int, found))


def _numbers(columns: dict[str, list[str]], name: str, source: str) -> np.ndarray:
    for line, word in enumerate(columns[name], 2):
        try:
            float(word)
        except ValueError:
            raise ConfigError(
                f"line {line} of {source}: {name} is a number, got {short(word)}"
            ) from None
    return np.array(columns[name], float)
