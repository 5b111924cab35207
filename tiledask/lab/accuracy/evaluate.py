"""Every published number beside ours, in groups with a goal.

exact.py                   parameters, states, activations     to the printed digits
runs.json, groups.json     bytes, seconds, ran or did not      a mean and a worst error
vTrain's candidates        the estimate's first choice         how much slower than the best
"""

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

from tiledask.lab.accuracy.exact import ROWS, ours
from tiledask.lab.accuracy.runs import RunRow, model_of, run_rows
from tiledask.plan.data import shipped_json
from tiledask.plan.fitting.overhead import default_overhead
from tiledask.plan.inputs.hardware import load_device
from tiledask.plan.inputs.layout import Layout
from tiledask.plan.inputs.recipes import load_recipe
from tiledask.plan.timing.calibration import calibration_of, frameworks, holds, uncounted
from tiledask.plan.timing.step import estimate_step

__all__ = ["GROUPS", "LEFT_OUT", "PublishedRow", "PublishedSource", "calibrated", "exact",
           "measured", "memory_errors", "rankings"]  # fmt: skip

GROUPS: dict[str, dict[str, Any]] = shipped_json("published", "groups.json")
"""Of runs.json by key: the name, the goal, what a reader must know; of bytes also what devices
show beside the ledger's, and whether all rows set constants, or every second one."""
UNEXPLAINED: dict[str, str] = shipped_json("published", "unexplained.json")
"""Why a row contradicts others of its own source, by id: no model can be right on both."""
LEFT_OUT: dict[str, list[float]] = shipped_json("calibration", "left_out.json")
"""(rows, mean, worst) of each group where a model's rows were left out of the fit that estimates
them; as `fit_constants.py` found it."""
GIB = 2**30
WORKSPACE = 32 * 2**20
"""Bytes that PyTorch and Transformer Engine each give cuBLAS on Hopper and Blackwell."""
BESIDE: dict[str, Callable[[int, str], int]] = {
    "": lambda devices, framework: 0,
    "default": lambda devices, framework: default_overhead(devices).total,
    "framework": lambda devices, framework: default_overhead(1, framework=framework).total,
    # what PyTorch's allocator reserves: neither context nor NCCL
    "allocator": lambda devices, framework: holds(framework).allocator_bytes,
    "workspaces": lambda devices, framework: 2 * WORKSPACE,
}
"""Bytes that devices show beside the ledger's."""


@dataclass(frozen=True)
class PublishedRow:
    """One published number and what tiledask says instead."""

    case: str
    quantity: str
    published: float
    ours: float
    unit: str = ""
    allowed: float | None = None
    """Largest difference that still counts as equal: half a unit of the last printed digit, 0 for
    an integer. None for what was measured: there the error counts."""
    note: str = ""
    calibration: bool = False
    """The constants of the model were fitted to it, among others."""

    @property
    def error(self) -> float:
        """Relative: ours / published - 1."""
        if self.published == 0:
            return 0.0 if self.ours == 0 else float("inf")
        return self.ours / self.published - 1

    @property
    def exact(self) -> bool | None:
        """Whether it is reproduced to the digits that are printed; None for a measurement."""
        return None if self.allowed is None else abs(self.ours - self.published) <= self.allowed


@dataclass(frozen=True)
class PublishedSource:
    """Rows of one source, and what is to be reached on them."""

    name: str
    rows: tuple[PublishedRow, ...]
    mean: float | None = None
    """Largest mean error, relative; None: every row to its printed digits; infinite: no goal."""
    worst: float | None = None
    remark: str = ""
    """What a reader of the errors must know."""

    def part(self, calibration: bool) -> tuple[PublishedRow, ...]:
        """The rows that were fitted, or those that check."""
        return tuple(row for row in self.rows if row.calibration == calibration)

    @cached_property
    def errors(self) -> tuple[float, float]:
        """(mean, worst) absolute error of all rows, relative."""
        sizes = [abs(row.error) for row in self.rows]
        return statistics.mean(sizes), max(sizes)

    @property
    def met(self) -> bool:
        """Whether the goal is reached."""
        if self.mean is None:
            return all(row.exact for row in self.rows)
        return self.errors[0] <= self.mean and (self.worst is None or self.errors[1] <= self.worst)


def exact(name: str) -> PublishedSource:
    """A group of numbers that arithmetic reproduces."""
    rows = []
    for row in ROWS:
        if row["group"] == name:
            facts = row["id"], row["quantity"], row["expected"], ours(row), row.get("unit", "")
            rows.append(PublishedRow(*facts, row.get("allowed", 0), row.get("note", "")))
    return PublishedSource(name, tuple(rows))


# -- what was measured of runs ---------------------------------------------------------------------


@cache
def measured(key: str) -> PublishedSource:
    """A group of runs.json."""
    group, rows = GROUPS[key], []
    for at, row in enumerate(run_rows()[key]):
        fitted = group.get("fitted") == "all" or (group.get("fitted") == "half" and at % 2 == 0)
        fitted = fitted or (row.quantity[:4] in ("step", "laye") and row.key in calibrated())
        allowed = 0 if row.quantity == "fits" else None
        facts = row.case, row.quantity, row.measured, _ours(row, group.get("beside", ""))
        rows.append(PublishedRow(*facts, row.unit, allowed, _note(row), fitted))
    remark = group.get("remark", "").replace("$uncounted", uncounted("llama-3"))
    goal = group.get("mean", float("inf"))
    return PublishedSource(group["name"], tuple(rows), goal, group.get("worst"), remark)


def _ours(row: RunRow, beside: str) -> float:
    if row.quantity == "fits":
        return int(row.run.verdict != "no")
    if row.unit in ("s", "ms"):
        return row.run.seconds() * (1e3 if row.unit == "ms" else 1)
    memory = row.run.memory()
    shown = BESIDE[beside](row.run.layout.devices, memory.recipe.framework)
    return (memory.peak + shown) / (GIB if row.unit == "GiB" else 1e9)


def _note(row: RunRow) -> str:
    if row.quantity == "fits":
        return f"{'ran' if row.measured else 'out of memory'}; {row.run.verdict}"
    if row.unit not in ("s", "ms"):
        return ""
    known = UNEXPLAINED.get(row.case, "")
    if known or row.quantity.startswith("layer"):  # of one layer, not the whole model
        return known
    return "its memory is refused" if row.run.verdict == "no" else ""


def memory_errors() -> dict[str, list[float]]:
    """Measured over estimated bytes by framework, each that differs once: what
    data/calibration/memory_errors.json has for ``Fit.chance``."""
    found: dict[str, set[float]] = {}
    for key, rows in run_rows().items():
        if rows[0].unit in ("GB", "GiB") and "mean" in GROUPS[key]:
            for row, of in zip(measured(key).rows, rows, strict=True):
                framework = of.run.memory().recipe.framework
                found.setdefault(framework, set()).add(round(row.published / row.ours, 3))
    return {framework: sorted(ratios) for framework, ratios in sorted(found.items())}


@cache
def calibrated() -> frozenset[str]:
    """Rows that the constants of a device were fitted to."""
    device, recipe = load_device("A100-80GB"), load_recipe("mixed-adam-16")
    return frozenset(
        case
        for name in frameworks()
        for case in calibration_of(device, recipe, framework=name).calibrated
    )


def rankings() -> PublishedSource:
    """How much longer than the best measured layout the estimate's first choice takes."""
    case = shipped_json("published", "ranking.json")
    model, shapes = model_of(case["model"]), case["candidates"]
    run = case["cluster"], case["recipe"], case["sequence"]
    pick = min(shapes, key=lambda c: estimate_step(model, Layout(**c["layout"]), *run).total)
    split = Layout(**pick["layout"])
    shown = f"dp {split.dp} x tp {split.tp} x pp {split.pp}, b {split.microbatch}"
    numbers = min(each["measured"] for each in shapes), pick["measured"]
    note = f"{shown}, of {len(shapes)}"
    row = PublishedRow(case["id"], "first choice", *numbers, "ms", note=note)
    name = "vTrain: the measured time of the first choice over the best"
    return PublishedSource(name, (row,), mean=0.02, worst=0.02)
