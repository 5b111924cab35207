"""Traces as people have them: a Timeline, a table, a CSV file, or Chrome's JSON of each rank.

device,start,end,kind,stage,microbatch        in seconds; the last three where they are known
0,0.0,1.0,F,0,0
"""

import csv
import gzip
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from tiledask.errors import ConfigError, short
from tiledask.plan.diagnosis.chrome import of_chrome
from tiledask.plan.diagnosis.trace import Row, Trace, trace_of
from tiledask.plan.pipelines.schedule import KINDS
from tiledask.plan.pipelines.timeline import TRANSFER, Timeline

__all__ = ["read_trace"]

MAX_BYTES = 256_000_000
"""Bytes above which files are refused: as JSON they would take ten times as much memory."""


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
            return of_chrome(texts, source)
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
