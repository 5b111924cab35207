"""Traces as people have them: a Timeline, a table, a CSV file, or Chrome's JSON of each rank.

device,start,end,kind,stage,microbatch        in seconds; the last three where they are known
0,0.0,1.0,F,0,0
"""

import csv
import gzip
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from tiledask.errors import ConfigError, short
from tiledask.plan.diagnosis.chrome import Row, of_chrome
from tiledask.plan.pipelines.schedule import KINDS
from tiledask.plan.pipelines.timeline import TRANSFER, Timeline

__all__ = ["Trace", "is_labelled", "read_trace"]

MOST_DEVICES = 4096
MAX_BYTES = 256_000_000
"""Bytes above which files are refused: as JSON they would take ten times as much memory."""
Trace = tuple[Timeline, tuple[str, ...], float]
"""(spans of devices in the order in which they begin, with -1 for what is not known, and as origin
what was read and had to be assumed; what the trace calls the devices; seconds by which an edge may
be wrong)."""


def read_trace(trace: Any) -> Trace:
    """The Trace in a Timeline, a pandas DataFrame with the columns of one, a file, or the files of
    all ranks: a list of paths, or their folder. Raises ConfigError for what cannot be read, naming
    the line."""
    if isinstance(trace, Timeline):  # with its labels, without its transfers
        t, works = trace, trace.kind != TRANSFER
        columns = t.device.astype(str), t.start, t.end, t.kind, t.stage, t.microbatch
        rows = zip(*(column[works].tolist() for column in columns), strict=True)
        names = [str(device) for device in range(t.devices)]
        return trace_of(rows, names, source=f"the {t.origin} timeline")
    table: Iterable[Any]
    if hasattr(trace, "columns") and hasattr(trace, "to_dict"):
        table, source = trace.to_dict("records"), "the table"
    else:
        given = trace if isinstance(trace, list | tuple) else [trace]
        if not given or not all(isinstance(each, str | PathLike) for each in given):
            raise ConfigError(
                f"a trace is a Timeline, a table with the columns device, start, end, the path of "
                f"a file, or those of all ranks; got {type(trace).__name__}"
            )
        paths = [Path(each) for each in given]
        folder, source = paths[0], f"{len(paths)} files" if len(paths) > 1 else paths[0].name
        if len(paths) == 1 and os.path.isdir(folder):  # a name that is too long is none
            paths = sorted(p for p in folder.iterdir() if p.name.endswith((".json", ".json.gz")))
            if not paths:
                rule = "no .json or .json.gz of a rank in"
                raise ConfigError(f"{rule} {source}, as torch.profiler's")
        texts = [(path.name, _text(path)) for path in paths]
        if len(texts) > 1 or texts[0][1].lstrip()[0] in "[{":
            of_step, source, share = of_chrome(texts, source)
            run, called, _ = trace_of(of_step, source=source)
            stage = np.where(run.stage < 0, run.device, run.stage)  # of GPipe's labels
            return replace(run, stage=stage), called, share * run.makespan
        table = csv.DictReader(texts[0][1].splitlines(), skipinitialspace=True)
    source += " (times taken as seconds)"
    try:
        read = [*_rows(table, source)]
    except csv.Error as error:
        raise ConfigError(f"{source} cannot be read as CSV: {error}") from None
    work = [row for row in read if row[3] != TRANSFER]
    return trace_of(work, [row[0] for row in read], source=source)


def _text(path: Path) -> str:
    """What is in a file, unpacked if it is gzip. Raises ConfigError above MAX_BYTES."""
    if not os.path.isfile(path):
        raise ConfigError(f"no trace at {str(path)!r}; give a CSV or a Chrome trace JSON file")
    size, text = os.path.getsize(path), ""
    try:
        if size <= MAX_BYTES:
            with open(path, "rb") as file:
                packed = file.read(2) == b"\x1f\x8b"
            with gzip.open(path) if packed else open(path, "rb") as file:
                data = file.read(MAX_BYTES + 1)
            size, text = max(size, len(data)), data.decode("utf-8-sig")
    except (EOFError, OSError, UnicodeDecodeError, zlib.error) as error:
        raise ConfigError(f"{path.name} cannot be read as CSV or JSON: {error}") from None
    if size > MAX_BYTES or not text.strip():
        raise ConfigError(
            f"{path.name} has {size:,} bytes, and a trace has an action or more and up to "
            f"{MAX_BYTES:,} bytes; cut it to one training step, or keep only the kernels"
        )
    return text


def _rows(table: Iterable[Mapping[str, Any]], source: str) -> Iterator[Row]:
    """The rows of a table; other columns are not read."""
    for line, row in enumerate(table, 2):
        try:
            start, end, device = float(row["start"]), float(row["end"]), str(row["device"])
            kind = str(row.get("kind") or "")
            labels = [row.get(name) for name in ("stage", "microbatch")]
            stage, microbatch = (-1 if label in (None, "") else int(label) for label in labels)
            good = kind in ("", TRANSFER, *KINDS) and min(stage, microbatch) >= -1
            good = good and 0 <= start <= end < float("inf") and None not in row
        except (KeyError, TypeError, ValueError):
            good = False
        if not good:
            raise ConfigError(
                f"line {getattr(table, 'line_num', line)} of {source} is {short(dict(row))}; the "
                f"columns are device, start, end (none before its start) and, where they are "
                f"known, kind ({', '.join(KINDS)} or {TRANSFER}), stage and microbatch, from 0"
            )
        yield device, start, end, kind, stage, microbatch


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
