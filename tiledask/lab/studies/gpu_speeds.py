"""What GPUs reached, from the records of `make gpu` in data/measured/gpu."""

import json
from dataclasses import dataclass
from pathlib import Path

from tiledask.plan.data import data_file

__all__ = ["RecordedSpeed", "records"]


@dataclass(frozen=True)
class RecordedSpeed:
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
        if facts["device"].get("kind") == "GPU":
            found += [
                RecordedSpeed(
                    *(path.name, facts["device"]["name"], row["work"], row["way"]),
                    row["TFLOP/s"] * 1e12,
                )
                for row in facts["rows"]
                if "TFLOP/s" in row and row.get("part") == "speed"
            ]
    return found
