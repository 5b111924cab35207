"""Tiles measured on the device at hand, beside the order that the arithmetic predicts."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from tiledask.errors import KernelError
from tiledask.plan import html
from tiledask.plan.inputs.hardware import Device
from tiledask.plan.units import format_bytes, format_seconds
from tiledask.plan.whole import whole_number
from tiledask.tile.backend import as_dtype, namespace, probe
from tiledask.tile.choice.at_hand import cpu_name, device_at_hand
from tiledask.tile.choice.bound import predict
from tiledask.tile.choice.configs import candidates as candidates_of
from tiledask.tile.choice.configs import config_of
from tiledask.tile.choice.timing import Runs, by, measure
from tiledask.tile.choice.tuning_cache import key_of, remember
from tiledask.tile.cuda.hopper_tile import AnyTile, as_tile
from tiledask.tile.levels import Tile, traffic
from tiledask.tile.table import KernelInfo, kernels

__all__ = ["Trial", "Tuning", "rank_correlation", "tune", "with_tile"]


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
    carried: AnyTile | None
    file: str
    """Where the best is remembered; empty if it is not."""

    @property
    def best(self) -> Trial:
        return self.trials[0]

    @property
    def correlation(self) -> float:
        """Spearman's, between the predicted and the measured order; NaN where either has none."""
        return rank_correlation(
            [t.predicted for t in self.trials], [t.measured for t in self.trials]
        )

    @property
    def gain(self) -> float:
        """Time of the carried-over tile over that of the best, 1 or more; NaN without one."""
        found = [t for t in self.trials if t.tile == self.carried]
        return found[0].measured / self.best.measured if found else float("nan")

    def _rows(self) -> Iterator[tuple[str, ...]]:
        place = {t: i for i, t in enumerate(sorted(self.trials, key=lambda t: t.predicted), 1)}
        for i, trial in enumerate(self.trials, 1):
            words = format_bytes if self.by == "bytes" else format_seconds
            known = trial.predicted == trial.predicted
            speed = 2 * self.m * self.n * self.k / trial.measured / 1e9
            yield (
                by(trial.tile),
                words(trial.predicted) if known else "unknown",
                str(place[trial]) if known else "-",
                format_seconds(trial.measured),
                str(i),
                f"{speed:.4g}",
                "carried over" if trial.tile == self.carried else "",
            )

    @property
    def _head(self) -> tuple[str, ...]:
        what = {"bytes": "bytes predicted", "seconds": "at least"}.get(self.by, "predicted")
        return ("tile", what, "place", "measured", "place", "GFLOP/s", "")

    @property
    def notes(self) -> tuple[str, ...]:
        """What the table says and rests on, in sentences."""
        found = [f"{by(self.best.tile)} is the fastest of {len(self.trials)}"]
        if self.correlation == self.correlation:
            found += [f"rank correlation of predicted and measured order: {self.correlation:.2f}"]
        if self.by == "bytes":
            found += ["on a CPU only the bytes are predicted, not the time"]
        if self.carried and self.gain == self.gain:
            found += [
                f"the tile carried over, {by(self.carried)}, takes {self.gain:.3g} times as long"
            ]
        found += [f"not {by(tile)}: {why}" for tile, why in self.refused]
        return (*found, f"remembered in {self.file}") if self.file else tuple(found)

    @property
    def title(self) -> str:
        return (
            f"{self.kernel}, {self.m} x {self.n} x {self.k} in {self.dtype} on {self.device}, "
            f"median of {min(t.repeats for t in self.trials)} or more"
        )

    def __repr__(self) -> str:
        rows = [self._head, *self._rows()]
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        lines = [
            "  ".join(cell.rjust(w) for cell, w in zip(row, widths, strict=True)) for row in rows
        ]
        return "\n".join(line.rstrip() for line in [self.title, *lines, *self.notes])

    def _repr_html_(self) -> str:
        found = html.table(self._head, self._rows(), self.title)
        return f"{found}<p>{'<br>'.join(map(html.words, self.notes))}</p>"


def tune(
    kernel: str,
    m: int,
    n: int,
    k: int,
    dtype: str = "float32",
    candidates: Sequence[int | AnyTile] | None = None,
    *,
    carried: int | AnyTile | None = None,
    repeats: int = 5,
    deadline: float = 60.0,
    seed: int = 0,
    progress: bool = True,
    save: bool = True,
) -> Tuning:
    """Measure tiles of ``kernel`` in a product [m, k] x [k, n], here, and remember the fastest.

    ``candidates`` are tiles, of wgmma_ws_persistent `hopper_tiles` too; by default those of
    `candidates` that the kernel is built for, and its own. ``carried``, a tile brought from another
    device, is measured with them, so that the best is never slower than it. Each of ``repeats``
    rounds draws fresh normal numbers and runs every tile once, after one run that is not timed; the
    medians count. GPUs are timed by CUDA events. After ``deadline`` seconds no more is begun: a
    tile without a time yet is listed as such, and if none has one, that is a DeadlineError.

    A CPU's prediction is the bytes between its memory and its cache, and so an order, no time.
    """
    whole_number("repeats", repeats, 1, error=KernelError)
    if not deadline > 0:
        raise KernelError(
            f"repeats is 1 or more and deadline above 0 s, got {repeats} and {deadline}"
        )
    traffic(m, n, k, 1, 4)  # refuses extents that are none
    info, usual = with_tile(kernel)
    if not info.available:
        raise KernelError(f"kernel {kernel!r} cannot run here: {info.why_not}")
    dtype, gpu = as_dtype(dtype).name, info.arrays == "cupy"
    device = device_at_hand() if gpu else None
    name = probe().devices[namespace("cupy").cuda.Device().id].name if gpu else cpu_name()
    brought = None if carried is None else as_tile(carried)
    tiles, refused = _tiles(info, usual, dtype, device, candidates, brought)
    run = Runs(kernel, m, n, k, dtype, seed)
    times, failed = measure(run, tiles, repeats, deadline, progress)
    predicted = {tile: _predicted(kernel, m, n, k, dtype, tile, device, gpu) for tile in times}
    trials = [Trial(t, predicted[t], median(found), len(found)) for t, found in times.items()]
    trials.sort(key=lambda trial: trial.measured)
    file = None
    if save:
        key = key_of(name, kernel, dtype, m, n, k)
        file = remember(key, trials[0].tile, trials[0].measured, (m, n, k))
    by = ("seconds" if device else "") if gpu else "bytes"
    return Tuning(
        kernel,
        m,
        n,
        k,
        dtype,
        name,
        by,
        tuple(trials),
        (*refused, *failed),
        brought,
        str(file or ""),
    )


def with_tile(kernel: str) -> tuple[KernelInfo, Tile]:
    """(what is known of a kernel that has a tile to choose, its own); others are a KernelError."""
    info = kernels.get(kernel)
    if info is None or info.tile is None:
        having = ", ".join(each.name for each in kernels.values() if each.tile)
        raise KernelError(f"kernel {kernel!r} has no tile to choose; those that have: {having}")
    return info, info.tile


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


def _tiles(
    info: KernelInfo,
    usual: Tile,
    dtype: str,
    device: Device | None,
    wanted: Sequence[int | AnyTile] | None,
    carried: AnyTile | None,
) -> tuple[list[AnyTile], list[tuple[AnyTile, str]]]:
    """(tiles to measure, (tile, why not) of the others)."""
    given = [as_tile(tile) for tile in wanted] if wanted is not None else []
    refused: list[tuple[AnyTile, str]] = []
    if wanted is None:
        given = [usual, *info.tiles]
        if info.arrays == "numpy":
            given += [config_of("tiled", dtype, extent).block for extent in _EXTENTS]
        elif device and not info.tiles:
            found = candidates_of(info.name, device, dtype)
            given += [config.block for config in found]
            refused = [(config.block, why) for config, why in found.refused]
    if carried:
        given.append(carried)
    if not given:
        raise KernelError("there is no tile to measure: candidates is empty; give one or more")
    taken = list(dict.fromkeys(given))
    return taken, [(tile, why) for tile, why in dict(refused).items() if tile not in taken]


def _predicted(
    kernel: str, m: int, n: int, k: int, dtype: str, tile: AnyTile, device: Device | None, gpu: bool
) -> float:
    if not gpu:
        config = config_of(kernel, dtype, tile)
        return float(traffic(m, n, k, config.block, config.itemsize).total)
    try:
        config = config_of(kernel, dtype, tile)
        return predict(m, n, k, config, device).seconds if device else float("nan")
    except KernelError:  # it ran, and so the estimate that forbids it is wrong
        return float("nan")
