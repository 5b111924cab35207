"""Ladders of kernels, rung by rung: what others published, and what was measured with ours.

a rung's tile  ->  the bound of `td.tile.predict`  |  what it reached  |  the library beside it
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tiledask.lab.table import Claim, Comparison
from tiledask.plan.data import data_file, shipped_json
from tiledask.plan.inputs.hardware import Device, load_device
from tiledask.tile import Config, predict

__all__ = ["Ladder", "RecordedSpeed", "Rung", "ladders", "recorded", "records"]


@dataclass(frozen=True)
class Rung:
    """One kernel of a ladder."""

    name: str
    adds: str
    """What it does that the rung below does not."""
    measured: float
    """FLOP/s."""
    config: Config | None
    """How it tiles; None where it has no tile in shared memory, or where that is not known."""


@dataclass(frozen=True)
class Ladder:
    """Kernels that someone measured on one device, each a step above the one before."""

    name: str
    title: str
    source: str
    verified: str
    device: Device
    size: tuple[int, int, int]
    """(m, n, k)."""
    rungs: tuple[Rung, ...]

    def bound(self, rung: Rung) -> float | None:
        """FLOP/s at most, by the bytes and the arithmetic of its tile; None without one."""
        if rung.config is None:
            return None
        return predict(*self.size, rung.config, self.device).flops_per_second

    def bound_by(self, rung: Rung) -> str:
        """What binds it: "arithmetic" or the name of a level; empty without a tile."""
        return "" if rung.config is None else predict(*self.size, rung.config, self.device).binding

    def compared(self) -> Comparison:
        """Every rung's bound beside what was measured, which must not be above it."""
        return Comparison(
            self.title,
            tuple(
                Claim(
                    rung.name,
                    _tera(self.bound(rung)),
                    None,
                    _tera(rung.measured),
                    "TFLOP/s",
                    "at most" if rung.config else None,
                    note=self.bound_by(rung) or rung.adds,
                )
                for rung in self.rungs
            ),
        )


def _tera(speed: float | None) -> float | None:
    return None if speed is None else speed / 1e12


def ladders() -> dict[str, Ladder]:
    """The published ladders by name, from data/published/tile_ladders.json.

    >>> [(rung.name, rung.measured / 1e12) for rung in ladders()["sgemm-a6000"].rungs][:2]
    [('naive', 0.309), ('coalesced', 1.9865)]
    """
    cases = shipped_json("published", "tile_ladders.json")
    return {case["id"]: _ladder(case) for case in cases}


def _ladder(case: Mapping[str, Any]) -> Ladder:
    given, device = case["inputs"], case["inputs"]["device"]
    if isinstance(device, str):
        device = load_device(device)
    else:
        device = Device(**{**device, "peak_flops": tuple(device["peak_flops"].items())})
    return Ladder(
        case["id"],
        case["title"],
        case["source"],
        case["verified"],
        device,
        tuple(given["size"]),
        tuple(map(_rung, case["expected"])),
    )


def _rung(given: Mapping[str, Any]) -> Rung:
    config = None
    if told := given.get("config"):
        peak = told.get("peak", "fp32")
        told = {key: tuple(v) if isinstance(v, list) else v for key, v in told.items()}
        config = Config(
            **{"kernel": given["name"], "itemsize": 4 if peak == "fp32" else 2, "peak": peak} | told
        )
    return Rung(given["name"], given["adds"], given["tflops"] * 1e12, config)


@dataclass(frozen=True)
class RecordedSpeed:
    """One contender in one product, as it was recorded on a GPU."""

    file: str
    gpu: str
    work: str
    way: str
    measured: float
    """FLOP/s, by the median of its rounds."""


def records(folder: Path | None = None) -> list[RecordedSpeed]:
    """What GPUs gave, from the records of `make gpu` and `make bench-tiles`, gpu/*.json and
    bench-tiles-*.json of ``folder`` (data/measured); empty if there is none. Contenders that were
    skipped or wrong have no speed.
    """
    return [
        RecordedSpeed(
            path.name, facts["device"]["name"], row["work"], row["way"], row["TFLOP/s"] * 1e12
        )
        for path, facts in _files(folder)
        for row in facts["rows"]
        if "TFLOP/s" in row and row.get("part", "speed") == "speed"
    ]


def recorded(folder: Path | None = None) -> list[str]:
    """Recorded speeds as lines to print, cubes only, behind what `make gpu` wants to know first;
    or that no GPU has run yet, and how one would."""
    goals = [
        f"{facts['device']['name']}, {goal['what']}: {goal['reached']:.2f}, "
        f"{goal['wanted']:.2f} wanted"
        for _, facts in _files(folder)
        for goal in facts.get("goals", ())
        if "goal" in goal and isinstance(goal["reached"], float)
    ]
    cubes = [r for r in records(folder) if r.work.endswith("cubed")]
    return [
        *goals,
        *(f"{r.gpu}, {r.work}, {r.way}: {r.measured / 1e12:.1f} TFLOP/s" for r in cubes),
    ] or [
        "No GPU has run these kernels yet, none is recorded in data/measured.",
        "On a machine with a GPU, `make gpu` measures all of them.",
    ]


def _files(folder: Path | None) -> Iterator[tuple[Path, dict[str, Any]]]:
    folder = folder or data_file("measured")
    for path in sorted([*folder.glob("gpu/*.json"), *folder.glob("bench-tiles-*.json")]):
        facts = json.loads(path.read_text(encoding="utf-8"))
        if facts["device"].get("kind") == "GPU":  # not the same steps on a CPU
            yield path, facts
