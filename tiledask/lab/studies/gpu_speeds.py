"""What GPUs reached, from the records of `make gpu` in data/measured/gpu."""

import json
from pathlib import Path
from typing import NamedTuple

from tiledask.plan.data import data_file

__all__ = ["RecordedSpeed", "records"]


class RecordedSpeed(NamedTuple):
    """One implementation of one product, as it was recorded on a GPU."""

    file: str
    gpu: str
    work: str
    way: str
    measured: float
    """FLOP/s, by the median of its rounds."""


def records(folder: Path | None = None) -> list[RecordedSpeed]:
    """The speeds of the part "speed" in gpu/*.json of ``folder`` (data/measured), by file.

    What was skipped, failed or wrong has no speed; a record of no GPU is not read.
    """
    found = []
    for path in sorted((folder or data_file("measured")).glob("gpu/*.json")):
        facts = json.loads(path.read_text(encoding="utf-8"))
        rows = facts["rows"] if facts["device"].get("kind") == "GPU" else ()
        for row in rows:
            if "TFLOP/s" in row and row.get("part") == "speed":
                what = path.name, facts["device"]["name"], row["work"], row["way"]
                found.append(RecordedSpeed(*what, row["TFLOP/s"] * 1e12))
    return found
