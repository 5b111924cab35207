"""What is disturbed: each workload, ready on a cluster, returns bytes that are always equal."""

from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

import dask.array as da
import numpy as np

import tiledask as td
from tiledask.distributed.cluster.cluster import Cluster

__all__ = ["TIMEOUT", "WORKLOADS", "Ready", "Workbench"]

TIMEOUT = 200.0
"""Seconds after which a call that did not end is taken to hang."""
SLOW = {"kernel": "tiled", "tile": 24}
"""Products long enough to be met by a fault."""
GRID = (td.Shard(0), td.Shard(1))
EDGE = 900

Run = Callable[..., bytes]


class Ready(NamedTuple):
    """A workload on a cluster."""

    run: Run
    right: bytes
    """What it returns undisturbed."""
    seconds: float
    """That it takes then: the median of three."""


class Workbench:
    """A cluster, a folder for files, and the workloads that were made ready there."""

    def __init__(self, cluster: Cluster, folder: Path, seed: int = 0) -> None:
        self.cluster, self.folder = cluster, folder
        self.rng = np.random.default_rng(seed)
        self._ready: dict[str, Ready] = {}

    def ready(self, name: str) -> Ready:
        """The workload of that name; it has run undisturbed four times."""
        if name not in self._ready:
            run = WORKLOADS[name](self)
            found, seconds = [run()], []
            for _ in range(3):
                begun = perf_counter()
                found.append(run())
                seconds.append(perf_counter() - begun)
            if len({*found}) != 1:
                raise AssertionError(f"{name} differs from itself")
            self._ready[name] = Ready(run, found[0], median(seconds))
        return self._ready[name]

    def matrices(self, edge: int = EDGE) -> list[np.ndarray]:
        """Two that are the same in every process."""
        rng = np.random.default_rng(1)
        return [rng.standard_normal((edge, edge)).astype(np.float32) for _ in range(2)]


def _blocks(bench: Workbench) -> Run:
    mesh = td.Mesh(bench.cluster, (1, bench.cluster.slots))
    a, b = (td.distribute(x, mesh, GRID) for x in bench.matrices())

    def run(**options: Any) -> bytes:
        options = {"algorithm": "summa", "timeout": TIMEOUT, **SLOW} | options
        try:
            return td.to_numpy(td.matmul(a, b, **options), timeout=options["timeout"]).tobytes()
        except td.errors.ClusterLostError as lost:
            if "make its array again" not in str(lost):
                raise
        return run(**options)  # the product was done when a block of it went

    return run


def _files(bench: Workbench) -> Run:
    paths = [bench.folder / f"{name}.npy" for name in "abc"]
    for path, x in zip(paths, bench.matrices(600), strict=False):
        np.save(path, x)
    *operands, out = paths

    def run(**options: Any) -> bytes:
        limit = 9_000_000
        fixed = {"memory_limit": limit, "timeout": TIMEOUT, "overwrite": True, "out": out}
        opened = (td.open_array(path) for path in operands)
        made = td.matmul(*opened, cluster=bench.cluster, **fixed | SLOW | options)
        return np.load(made.path).tobytes()

    return run


def _lazy(bench: Workbench) -> Run:
    def run(timeout: float = TIMEOUT) -> bytes:
        x, y = (da.from_array(x, chunks=300) for x in bench.matrices())
        made = bench.cluster.client.compute(td.matmul(x, y, **SLOW))
        try:
            return made.result(timeout=timeout).tobytes()
        finally:  # Dask keeps one that failed, by its own error's frames
            made.release()

    return run


def _schedule(engine: str) -> Callable[[Workbench], Run]:
    def make(bench: Workbench) -> Run:
        slots = bench.cluster.slots
        stages = [td.stages.FeedForward((i,), 8, 16) for i in range(slots)]
        batch = np.random.default_rng(2).standard_normal((24, 8))
        schedule = td.schedule("1f1b", slots, 2 * slots)
        paced = {"forward": 0.03, "backward": 0.06, "engine": engine, "timeout": TIMEOUT}

        def run(**options: Any) -> bytes:
            options = {"target": batch, **paced} | options
            done = td.run_schedule(schedule, stages, batch, bench.cluster, **options)
            numbers = [np.float64(done.loss), done.outputs]
            numbers += [g for of_stage in done.gradients for g in _arrays(of_stage)]
            return b"".join(np.ascontiguousarray(x).tobytes() for x in numbers)

        return run

    return make


def _arrays(gradients: Any) -> list[np.ndarray]:
    if isinstance(gradients, np.ndarray):
        return [gradients]
    parts = gradients.values() if isinstance(gradients, dict) else gradients
    return [array for part in parts for array in _arrays(part)]


def _training(bench: Workbench) -> Run:
    text = td.load_text("tales")
    model = td.GPT(text.vocabulary, hidden=16, layers=2, heads=2, sequence=8)
    mesh = td.Mesh(bench.cluster, (bench.cluster.slots, 1, 1))

    def run(**options: Any) -> bytes:
        options = {"steps": 60, "batch": 6, "seed": 3, "timeout": TIMEOUT} | options
        done = td.train(model, text, mesh, progress=False, **options)
        return b"".join([done.weights[name].tobytes() for name in sorted(done.weights)])

    return run


def _claim(bench: Workbench) -> Run:
    layout = td.Layout(dp=bench.cluster.slots)

    def run(**options: Any) -> bytes:
        options = {"scale": 1, "timeout": TIMEOUT} | options
        done = td.run_claim(2_000_000, layout, "80GB", bench.cluster, **options)
        rows = [(row.place, row.tensor, row.moment, row.bytes) for row in done.measured.rows]
        return repr((rows, done.executed_verdict)).encode()

    return run


WORKLOADS: dict[str, Callable[[Workbench], Run]] = {
    "blocks": _blocks,
    "files": _files,
    "lazy": _lazy,
    "tasks": _schedule("tasks"),
    "loop": _schedule("loop"),
    "training": _training,
    "claim": _claim,
}
