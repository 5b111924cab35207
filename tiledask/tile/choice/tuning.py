"""Tiles measured on the device at hand, beside the order that the arithmetic predicts."""

import os
import platform
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from importlib import import_module
from math import isnan
from statistics import median
from typing import Any

import numpy as np

from tiledask.errors import KernelError
from tiledask.extras import needed_for
from tiledask.plan.data import names
from tiledask.plan.inputs.hardware import Device, load_device
from tiledask.plan.tables import Table, table
from tiledask.plan.whole import whole_number
from tiledask.tile.backend import accumulator, as_dtype, namespace, probe
from tiledask.tile.choice.bound import predict
from tiledask.tile.choice.config import config_of
from tiledask.tile.levels import Tile, as_tile, traffic
from tiledask.tile.product import matmul
from tiledask.tile.progress import showing
from tiledask.tile.table import Kernel, kernels, lookup

__all__ = [
    "Trial",
    "Tuning",
    "by",
    "cpu_name",
    "described",
    "device_at_hand",
    "tune",
]

_EXTENTS = (32, 64, 128, 256, 512, 1024)
"""Of the square tiles of "tiled" that are measured."""


@dataclass(frozen=True)
class Trial:
    """One tile, predicted and measured."""

    tile: Tile
    predicted: float
    """Seconds at least on a GPU; bytes moved on a CPU; NaN for a GPU of which nothing is known."""
    measured: float
    """Seconds: the median of the repeats."""
    repeats: int


@dataclass(frozen=True, repr=False)
class Tuning:
    """What `tune` measured, the fastest tile first."""

    kernel: str
    m: int
    n: int
    k: int
    dtype: str
    device: str
    by: str
    """What the prediction is: "bytes" or "seconds"; empty if there is none."""
    trials: tuple[Trial, ...]
    refused: tuple[tuple[Tile, str], ...]
    """(tile, why it was not measured)."""

    @property
    def best(self) -> Trial:
        return self.trials[0]

    @property
    def correlation(self) -> float:
        """Spearman's, between the predicted and the measured order; NaN where either has none."""
        pairs = [(t.predicted, t.measured) for t in self.trials]
        if any(len(set(each)) < 2 for each in zip(*pairs, strict=True)):
            return float("nan")
        with needed_for("a rank correlation"):
            found: float = import_module("scipy.stats").spearmanr(pairs).statistic
        return round(found, 12)

    def to_table(self) -> Table:
        """The tiles and their places in both orders, and what that rests on."""
        known = self.by and not any(isnan(t.predicted) for t in self.trials)
        order = sorted(self.trials, key=lambda trial: trial.predicted)
        rows = [
            {
                "tile": by(trial.tile),
                "predicted": trial.predicted if known else None,
                "place predicted": order.index(trial) + 1 if known else None,
                "measured": trial.measured,
                "place": place,
                "GFLOP/s": 2 * self.m * self.n * self.k / trial.measured / 1e9,
            }
            for place, trial in enumerate(self.trials, 1)
        ]
        notes = [f"rank correlation of predicted and measured order: {self.correlation:.2f}"]
        if self.by == "bytes":
            notes += ["on a CPU only the bytes are predicted, not the time"]
        notes += [f"not {by(tile)}: {why}" for tile, why in self.refused]
        product = f"{self.kernel}, {self.m} x {self.n} x {self.k} in {self.dtype}"
        title = f"{product} on {self.device}, median of {min(t.repeats for t in self.trials)}"
        found = table(rows, title, predicted=self.by, measured="seconds")
        return replace(found, below="; ".join(notes))

    def __repr__(self) -> str:
        return self.to_table().to_text()

    def _repr_html_(self) -> str:
        return self.to_table()._repr_html_()


def tune(
    kernel: str,
    m: int,
    n: int,
    k: int,
    dtype: str = "float32",
    candidates: Sequence[int | Tile] | None = None,
    *,
    repeats: int = 5,
    seed: int = 0,
    progress: bool = True,
) -> Tuning:
    """Measure tiles of ``kernel`` in a product [m, k] x [k, n], here.

    ``candidates`` are tiles; by default all that the kernel is built for. Each of ``repeats``
    rounds draws fresh normal numbers and runs every tile once, after one run that is not timed;
    the medians count. GPUs are timed by CUDA events.

    A CPU's prediction is the bytes between its memory and its cache, and so an order, no time.
    """
    whole_number("repeats", repeats, 1, error=KernelError)
    traffic(m, n, k, 1, 4)  # refuses extents that are none
    found = lookup(kernel)
    if found.tile is None:
        having = ", ".join(name for name, each in kernels.items() if each.tile)
        raise KernelError(f"kernel {kernel!r} has no tile to choose; those that have: {having}")
    if why_not := found.why_not:
        raise KernelError(f"kernel {kernel!r} cannot run here: {why_not}")
    dtype, gpu = as_dtype(dtype).name, found.arrays == "cupy"
    device = device_at_hand() if gpu else None
    tiles = [as_tile(tile) for tile in candidates or ()]
    if candidates is None:
        tiles = [found.tile, *(found.tiles or ((extent,) * 3 for extent in _EXTENTS))]
    if not tiles:
        raise KernelError("there is no tile to measure: candidates is empty; give one or more")
    times, refused = _measured(
        _Runs(found, (m, n, k), dtype, seed), list(dict.fromkeys(tiles)), repeats, progress
    )
    trials = [
        Trial(tile, _predicted(kernel, m, n, k, dtype, tile, device, gpu), median(s), len(s))
        for tile, s in times.items()
    ]
    trials.sort(key=lambda trial: trial.measured)
    name = probe().devices[namespace("cupy").cuda.Device().id].name if gpu else cpu_name()
    what = ("seconds" if device else "") if gpu else "bytes"
    return Tuning(kernel, m, n, k, dtype, name, what, tuple(trials), tuple(refused.items()))


def _predicted(
    kernel: str, m: int, n: int, k: int, dtype: str, tile: Tile, device: Device | None, gpu: bool
) -> float:
    try:
        config = config_of(kernel, dtype, tile)
        if not gpu:
            return float(traffic(m, n, k, config.block, config.itemsize).total)
        return predict(m, n, k, config, device).seconds if device else float("nan")
    except KernelError:  # it ran, and so the estimate that forbids it is wrong
        return float("nan")


def by(tile: Tile) -> str:
    """(64, 64, 8) as "64x64x8"."""
    return "x".join(map(str, tile))


class _Runs:
    """One product after another on fresh numbers, and how long each takes."""

    def __init__(self, kernel: Kernel, extents: tuple[int, int, int], dtype: str, seed: int):
        m, n, k = extents
        self.kernel, self.shapes, self.dtype = kernel.name, ((m, k), (k, n)), as_dtype(dtype)
        self.xp = namespace(kernel.arrays)
        self.rng = self.xp.random.default_rng(seed)
        self.out = self.xp.empty((m, n), self.dtype)
        self.precision = "tf32" if kernel.tf32 and dtype not in kernel.dtypes else None

    def draw(self) -> None:
        wide = accumulator(self.dtype)  # generators know no halves
        self.a, self.b = (
            self.rng.standard_normal(shape, dtype=wide).astype(self.dtype) for shape in self.shapes
        )

    def once(self, tile: Tile) -> None:
        matmul(self.a, self.b, self.kernel, tile, self.out, precision=self.precision)

    def seconds(self, tile: Tile) -> float:
        if self.xp is np:
            begun = time.perf_counter()
            self.once(tile)
            return time.perf_counter() - begun
        begin, end = self.xp.cuda.Event(), self.xp.cuda.Event()
        begin.record()
        self.once(tile)
        end.record()
        end.synchronize()
        milliseconds: float = self.xp.cuda.get_elapsed_time(begin, end)
        return milliseconds / 1e3


def _measured(
    runs: _Runs, tiles: list[Tile], repeats: int, progress: bool
) -> tuple[dict[Tile, list[float]], dict[Tile, str]]:
    """(seconds of each tile in each round, why of those that the kernel refuses)."""
    times: dict[Tile, list[float]] = {tile: [] for tile in tiles}
    refused: dict[Tile, str] = {}
    done: list[str] = []

    def look() -> tuple[int, int | None, str]:
        return len(done), len(tiles) * repeats, f"measured {done[-1]}" if done else ""

    with showing("measuring tiles", look, "runs", after=0.0) if progress else nullcontext():
        for number in range(repeats):
            runs.draw()
            for tile in tiles:
                try:
                    if not number:
                        runs.once(tile)
                    if tile not in refused:
                        times[tile].append(runs.seconds(tile))
                except KernelError as error:
                    refused[tile] = str(error)
                done.append(by(tile))
    found = {tile: seconds for tile, seconds in times.items() if seconds}
    if not found:
        reasons = "; ".join(f"{by(tile)}: {why}" for tile, why in refused.items())
        raise KernelError(f"no tile can be measured: {reasons}")
    return found, refused


# -- the device at hand ----------------------------------------------------------------------------

_REPORTED = {
    "multiprocessors": "multiProcessorCount",
    "l2_bytes": "l2CacheSize",
    "registers": "regsPerMultiprocessor",
    "threads": "maxThreadsPerMultiProcessor",
    "blocks": "maxBlocksPerMultiProcessor",
    "shared_bytes": "sharedMemPerMultiprocessor",
    "block_shared_bytes": "sharedMemPerBlockOptin",
}
"""Fields of a Device and their names in CUDA's cudaDeviceProp."""


def device_at_hand() -> Device | None:
    """The GPU in use: the shipped description of its model, with what its driver says instead.

    None if the model is not among them. Raises KernelError where no GPU is usable.
    """
    cp = namespace("cupy")
    facts = cp.cuda.runtime.getDeviceProperties(cp.cuda.Device().id)
    device = probe().devices[cp.cuda.Device().id]
    return described(device.name, device.memory, facts)


def described(name: str, memory: int, facts: Mapping[str, Any]) -> Device | None:
    """The shipped device that a driver calls ``name``, ``facts`` of cudaDeviceProp replacing its
    own: a card of fewer multiprocessors goes by the same name.

    >>> found = described("NVIDIA A100-SXM4-80GB", 80 * 10**9, {"multiProcessorCount": 100})
    >>> found.name, found.multiprocessors
    ('A100-80GB', 100)
    >>> described("NVIDIA GeForce GTX 1080", 8 * 10**9, {}) is None
    True
    """
    words = set(re.findall(r"[A-Z0-9]+", name.upper()))
    shipped = [load_device(each) for each in names("hardware")]
    same = [device for device in shipped if device.name.upper().split("-")[0] in words]
    if not same:
        return None
    nearest = min(same, key=lambda device: abs(device.memory_bytes - memory))
    told: dict[str, Any] = {
        field: int(facts[key]) for field, key in _REPORTED.items() if facts.get(key)
    }
    return replace(nearest, **told)


def cpu_name() -> str:
    """The processor's name and how many of its cores this process may use.

    >>> cpu_name().endswith(" core(s)")
    True
    """
    model = ""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            found = (line for line in lines if line.lower().startswith("model name"))
            model = next(found, "").partition(":")[2].strip()
    except OSError:  # not Linux
        pass
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    return f"{model or platform.processor() or platform.machine()}, {cores} core(s)"
