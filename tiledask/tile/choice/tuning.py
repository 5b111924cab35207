"""Tiles measured on the device at hand, beside the order that the arithmetic predicts."""

import os
import platform
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from math import isnan
from statistics import median
from typing import Any

import numpy as np

from tiledask.errors import DeadlineError, KernelError
from tiledask.plan.data import names
from tiledask.plan.inputs.hardware import Device, load_device
from tiledask.plan.tables import Table, table
from tiledask.plan.whole import whole_number
from tiledask.tile.backend import accumulator, as_dtype, namespace, probe, synchronize
from tiledask.tile.choice.bound import predict
from tiledask.tile.choice.configs import config_of
from tiledask.tile.cuda.hopper_tile import AnyTile, HopperTile, as_tile
from tiledask.tile.levels import traffic
from tiledask.tile.product import matmul
from tiledask.tile.progress import showing
from tiledask.tile.table import kernels, lookup

__all__ = [
    "Trial",
    "Tuning",
    "by",
    "cpu_name",
    "described",
    "device_at_hand",
    "rank_correlation",
    "tune",
]

_EXTENTS = (32, 64, 128, 256, 512, 1024)
"""Of the square tiles of "tiled" that are measured."""


@dataclass(frozen=True)
class Trial:
    """One tile, predicted and measured."""

    tile: AnyTile
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
    refused: tuple[tuple[AnyTile, str], ...]
    """(tile, why it was not measured)."""

    @property
    def best(self) -> Trial:
        return self.trials[0]

    @property
    def correlation(self) -> float:
        """Spearman's, between the predicted and the measured order; NaN where either has none."""
        return rank_correlation(
            [t.predicted for t in self.trials], [t.measured for t in self.trials]
        )

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
    candidates: Sequence[int | AnyTile] | None = None,
    *,
    repeats: int = 5,
    deadline: float = 60.0,
    seed: int = 0,
    progress: bool = True,
) -> Tuning:
    """Measure tiles of ``kernel`` in a product [m, k] x [k, n], here.

    ``candidates`` are tiles, of wgmma_ws_persistent also HopperTiles; by default all
    that the kernel is built for. Each of ``repeats`` rounds draws fresh
    normal numbers and runs every tile once, after one run that is not timed; the medians count.
    GPUs are timed by CUDA events. After ``deadline`` seconds no more is begun: a tile without a
    time yet is listed as such, and if none has one, that is a DeadlineError.

    A CPU's prediction is the bytes between its memory and its cache, and so an order, no time.
    """
    whole_number("repeats", repeats, 1, error=KernelError)
    if not deadline > 0:
        raise KernelError(f"deadline must be above 0 s, got {deadline}")
    traffic(m, n, k, 1, 4)  # refuses extents that are none
    found = lookup(kernel)
    if found.tile is None:
        having = ", ".join(name for name in kernels if lookup(name).tile)
        raise KernelError(f"kernel {kernel!r} has no tile to choose; those that have: {having}")
    if why_not := kernels[kernel].why_not:
        raise KernelError(f"kernel {kernel!r} cannot run here: {why_not}")
    dtype, gpu = as_dtype(dtype).name, found.arrays == "cupy"
    device = device_at_hand() if gpu else None
    if candidates is not None:
        tiles = [as_tile(tile) for tile in candidates]
    else:
        tiles = [found.tile, *(found.tiles or ((extent,) * 3 for extent in _EXTENTS))]
    if not tiles:
        raise KernelError("there is no tile to measure: candidates is empty; give one or more")
    runs = _Runs(kernel, m, n, k, dtype, seed)
    times, failed = _measure(runs, list(dict.fromkeys(tiles)), repeats, deadline, progress)
    trials = [
        Trial(tile, _predicted(kernel, m, n, k, dtype, tile, device, gpu), median(s), len(s))
        for tile, s in times.items()
    ]
    trials.sort(key=lambda trial: trial.measured)
    name = probe().devices[namespace("cupy").cuda.Device().id].name if gpu else cpu_name()
    what = ("seconds" if device else "") if gpu else "bytes"
    return Tuning(kernel, m, n, k, dtype, name, what, tuple(trials), tuple(failed))


def rank_correlation(x: Sequence[float], y: Sequence[float]) -> float:
    """Spearman's: Pearson's of the ranks, equal values sharing their mean rank.

    NaN where one of them is all equal, or has a NaN.

    >>> rank_correlation([1, 2, 3], [10, 30, 20]), rank_correlation([1, 1], [1, 2])
    (0.5, nan)
    """
    a, b = (_ranks(np.asarray(values, float)) for values in (x, y))
    if len(a) < 2 or np.isnan([*x, *y]).any() or not (np.ptp(a) and np.ptp(b)):
        return float("nan")
    a, b = a - a.mean(), b - b.mean()
    return round(float((a @ b) / np.sqrt((a @ a) * (b @ b))), 12)


def _ranks(values: np.ndarray) -> np.ndarray:
    below = (values[None, :] < values[:, None]).sum(axis=1)
    equal = (values[None, :] == values[:, None]).sum(axis=1)
    ranks: np.ndarray = below + (equal + 1) / 2
    return ranks


def _predicted(
    kernel: str, m: int, n: int, k: int, dtype: str, tile: AnyTile, device: Device | None, gpu: bool
) -> float:
    try:
        config = config_of(kernel, dtype, tile)
        if not gpu:
            return float(traffic(m, n, k, config.block, config.itemsize).total)
        return predict(m, n, k, config, device).seconds if device else float("nan")
    except KernelError:  # it ran, and so the estimate that forbids it is wrong
        return float("nan")


def by(tile: AnyTile) -> str:
    """(64, 64, 8) as "64x64x8"; a HopperTile as it calls itself."""
    return str(tile) if isinstance(tile, HopperTile) else "x".join(map(str, tile))


# -- seconds: fresh numbers, and a deadline -------------------------------------------------------


class _Runs:
    """One product after another on fresh numbers, and how long each takes."""

    def __init__(self, kernel: str, m: int, n: int, k: int, dtype: str, seed: int) -> None:
        info = lookup(kernel)
        self.kernel, self.shapes, self.dtype = kernel, ((m, k), (k, n)), as_dtype(dtype)
        self.xp = namespace(info.arrays)
        self.rng = self.xp.random.default_rng(seed)
        self.out = self.xp.empty((m, n), self.dtype)
        self.precision = "tf32" if info.tf32 and dtype not in info.dtypes else None
        self.draw()

    def draw(self) -> None:
        wide = accumulator(self.dtype)  # generators know no halves
        self.a, self.b = (
            self.rng.standard_normal(shape, dtype=wide).astype(self.dtype) for shape in self.shapes
        )

    def once(self, tile: AnyTile) -> None:
        matmul(self.a, self.b, self.kernel, tile, self.out, precision=self.precision)
        synchronize(self.out)

    def seconds(self, tile: AnyTile) -> float:
        if self.xp is np:
            begun = time.perf_counter()
            self.once(tile)
            return time.perf_counter() - begun
        begin, end = self.xp.cuda.Event(), self.xp.cuda.Event()
        begin.record()
        matmul(self.a, self.b, self.kernel, tile, self.out, precision=self.precision)
        end.record()
        end.synchronize()
        milliseconds: float = self.xp.cuda.get_elapsed_time(begin, end)
        return milliseconds / 1e3


def _measure(
    runs: _Runs, tiles: list[AnyTile], repeats: int, deadline: float, progress: bool
) -> tuple[dict[AnyTile, list[float]], list[tuple[AnyTile, str]]]:
    """(seconds of each tile in each round, (tile, why) of those without any)."""
    times: dict[AnyTile, list[float]] = {tile: [] for tile in tiles}
    failed: dict[AnyTile, str] = {}
    end, late = time.monotonic() + deadline, f"the deadline of {deadline:g} s had passed"
    done: list[str] = []

    def look() -> tuple[int, int | None, str]:
        return len(done), len(tiles) * repeats, f"measured {done[-1]}" if done else ""

    shown = showing("measuring tiles", look, "runs", after=0.0) if progress else nullcontext()
    with shown:
        for number, tile in ((number, tile) for number in range(repeats) for tile in tiles):
            if number and tile == tiles[0]:
                runs.draw()
            if tile in failed:
                continue
            if time.monotonic() > end:
                break
            try:
                if not number:
                    runs.once(tile)
                times[tile].append(runs.seconds(tile))
            except KernelError as error:
                failed[tile] = str(error)
            done.append(by(tile))
    found = {tile: seconds for tile, seconds in times.items() if seconds}
    if not found and failed:
        reasons = "; ".join(f"{by(tile)}: {why}" for tile, why in failed.items())
        raise KernelError(f"no tile can be measured: {reasons}")
    if not found:
        raise DeadlineError(
            f"waited {deadline:g} s for a first tile to be measured, and none was; raise deadline, "
            f"or measure a smaller product"
        )
    return found, [(tile, failed.get(tile, late)) for tile in times if tile not in found]


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
