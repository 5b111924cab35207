"""Faults of numbers: blocks that are not what they should be, bits that flip, files, memory."""

import shutil
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

import tiledask as td
from tiledask.distributed.cluster.cluster import Cluster, slot_on
from tiledask.errors import DoesNotFitError
from tiledask.lab.faults.damage import KINDS_OF_DAMAGE, damage
from tiledask.lab.faults.trying import Tried, tried
from tiledask.lab.faults.workloads import GRID, Workbench
from tiledask.tile.backend import array_namespace, to_numpy

__all__ = ["BAD_BLOCKS", "FORMS", "bad_block", "damaged_file", "flipped_in_memory", "too_little"]

LATE = 150.0


# -- blocks ----------------------------------------------------------------------------------------


def _nan(x: np.ndarray) -> Any:
    x[3, 4] = np.nan
    return x


def _infinite(x: np.ndarray) -> Any:
    x[0, -1] = -np.inf
    return x


def _unaligned(x: np.ndarray) -> Any:
    raw = np.empty(x.nbytes + 1, np.uint8)[1:]
    raw[:] = x.reshape(-1).view(np.uint8)
    return raw.view(x.dtype).reshape(x.shape)


def _flipped(x: np.ndarray) -> Any:
    x.reshape(-1).view(np.uint8)[7] ^= 64
    return x


BAD_BLOCKS: dict[str, Callable[[np.ndarray], Any]] = {
    "nan": _nan,
    "infinite": _infinite,
    "a bit flipped": _flipped,
    "of another shape": lambda x: x[:-1].copy(),
    "of another dtype": lambda x: x.astype("f8"),
    "of whole numbers": lambda x: x.astype("i4"),
    "of the other byte order": lambda x: x.astype(">f4"),
    "transposed": lambda x: x.T.copy(),
    "flat": lambda x: x.ravel(),
    "of objects": lambda x: x.astype(object),
    "a list": lambda x: x.tolist(),
    "nothing": lambda x: None,
    "unaligned": _unaligned,
    "in the other order": np.asfortranarray,
}
"""What stands where a block of a product should be; the last two are the same numbers."""


def _replace_block(slot: int, key: str, kind: str, dask_worker: Any) -> None:
    """None; on the worker of ``slot`` the block is another."""
    if slot_on(dask_worker) != slot:
        return
    block = dask_worker.data[key]
    bad = BAD_BLOCKS[kind](to_numpy(block).copy())
    with suppress(TypeError, ValueError):  # what a device cannot hold is there as the host's
        bad = array_namespace(block).asarray(bad) if isinstance(bad, np.ndarray) else bad
    dask_worker.data[key] = bad


def _operands(bench: Workbench, n: int = 60) -> list[Any]:
    slots = bench.cluster.slots
    mesh, rng = td.Mesh(bench.cluster, (1, slots)), np.random.default_rng(4)
    shapes = (n, (n - 10) * slots), ((n - 10) * slots, 40 * slots)
    return [td.distribute(rng.standard_normal(s).astype("f4"), mesh, GRID) for s in shapes]


def _product(a: Any, b: Any, **options: Any) -> bytes:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a block was made again
        return td.to_numpy(td.matmul(a, b, timeout=LATE, **options)).tobytes()


def bad_block(bench: Workbench, kind: str) -> Tried:
    """A block of the product is something else: it is refused by name, or the numbers are right."""
    a, b = _operands(bench)
    right = _product(a, b)
    slot = int(bench.rng.integers(bench.cluster.slots))
    which = (a, b)[int(bench.rng.integers(2))]
    bench.cluster.run(_replace_block, slot, str(which.blocks[slot].key), kind)
    if kind == "in the other order":  # which BLAS may add up in another one
        right = _product(a, b)
    found = tried(lambda: _product(a, b, verify="finite"), right, LATE)
    if found.end == "said" and f"slot {slot}" not in found.words:
        return found._replace(end="raw", words=f"slot {slot} is not named: {found.words}")
    return found


def flipped_in_memory(bench: Workbench, name: str) -> Tried:
    """A bit of A, of B, or of a verified C that is an operand next, flips in its owner's memory."""
    a, b = _operands(bench)
    if name == "C":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            a, b = td.matmul(a, b, verify=True), None
        b = td.distribute(np.ones((40 * bench.cluster.slots, 30), "f4"), a.mesh, GRID)
    right = _product(a, b)
    slot = int(bench.rng.integers(bench.cluster.slots))
    block = (b if name == "B" else a).blocks[slot]
    at, bit = int(bench.rng.integers(2**30)), 1 << int(bench.rng.integers(8))
    bench.cluster.run(_flip, slot, str(block.key), at, bit)
    return tried(lambda: _product(a, b, verify=True), right, LATE)


def _flip(slot: int, key: str, at: int, bit: int, dask_worker: Any) -> None:
    if slot_on(dask_worker) == slot:
        block = dask_worker.data[key]
        if isinstance(block, np.ndarray):
            block.setflags(write=True)
        raw = block.reshape(-1).view(np.uint8)
        raw[at % len(raw)] ^= bit


# -- files -----------------------------------------------------------------------------------------


def _write_zarr(folder: Path, x: np.ndarray) -> None:
    array = td.create_array(folder / "x.zarr", x.shape, "f4", (16, 16))
    array.write(tuple((0, n) for n in x.shape), x)


def _read_zarr(folder: Path, cluster: Cluster) -> bytes:
    return td.open_array(folder / "x.zarr")[:, :].tobytes()


def _write_checkpoint(folder: Path, x: np.ndarray) -> None:
    td.run_threads(lambda rank: td.save_checkpoint(rank, folder / "run", 1, {"x": x}), 1)


def _read_checkpoint(folder: Path, cluster: Cluster) -> bytes:
    return td.open_checkpoint(folder / "run").read()["x"].tobytes()


FORMS = {
    "zarr": (_write_zarr, _read_zarr, "x.zarr/**/*"),
    "checkpoint": (_write_checkpoint, _read_checkpoint, "run/**/*"),
}
"""How a matrix is stored, read back, and the files of it that are damaged."""


def damaged_file(kinds: tuple[str, ...] = KINDS_OF_DAMAGE) -> Callable[[Workbench, str], Tried]:
    """Tries a drawn damage of a file, of these kinds: it is refused, or the numbers are right."""

    def attempt(bench: Workbench, form: str) -> Tried:
        x = np.random.default_rng(5).standard_normal((40, 40)).astype("f4")
        if form == "spool":
            return _damaged_spool(bench, x, kinds)
        write, read, names = FORMS[form]
        folder = bench.folder / "damaged"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        write(folder, x)
        files = sorted(file for file in folder.glob(names) if file.is_file())
        _damage(files, kinds, bench.rng)
        found = tried(lambda: read(folder, bench.cluster), x.tobytes(), LATE)
        return _named(found, folder)

    return attempt


def _damage(files: list[Path], kinds: tuple[str, ...], rng: np.random.Generator) -> str:
    kind = kinds[int(rng.integers(len(kinds)))]
    while not damage(files[int(rng.integers(len(files)))], kind, rng):
        pass
    return kind


def _damaged_spool(bench: Workbench, x: np.ndarray, kinds: tuple[str, ...]) -> Tried:
    """The copy from which lost blocks are made again: a worker loses one."""
    cluster, before = bench.cluster, {*bench.cluster.spool.glob("*.npy")}
    mesh = td.Mesh(cluster, (cluster.slots,))
    a = td.distribute(x, mesh, (td.Shard(0),))
    cluster.wait(a.blocks, "blocks", LATE)
    (file,) = {*cluster.spool.glob("*.npy")} - before
    _damage([file], kinds, bench.rng)
    slot = int(bench.rng.integers(cluster.slots))
    cluster.run(_flip, slot, str(a.blocks[slot].key), 5, 8)  # so that it is made again
    b = td.distribute(np.eye(40, dtype="f4"), mesh, (td.Replicate(),))
    return _named(tried(lambda: _product(a, b, verify=True), x.tobytes(), LATE), file)


def _named(found: Tried, path: Path) -> Tried:
    """An error that does not say where it was found is none."""
    if found.end == "said" and str(path) not in found.words:
        return found._replace(end="raw", words=f"{path} is not named: {found.words}")
    return found


# -- memory ----------------------------------------------------------------------------------------


def too_little(bench: Workbench, what: str) -> Tried:
    """A drawn limit: the plan is refused before any task, or keeps it."""
    begun = perf_counter()
    if what == "claim":
        held = int(bench.rng.integers(4, 40)) * 100_000
        run = td.run_claim(
            100_000, td.Layout(dp=bench.cluster.slots), held, bench.cluster, scale=1, timeout=LATE
        )
        kept = run.measured.peak <= held and run.agrees
        return Tried("right" if kept else "wrong", perf_counter() - begun, str(run)[:300])
    tasks = bench.cluster.given.scheduler.tasks
    if what == "blocks":
        edge = int(bench.rng.integers(100, 500))
        mesh = td.Mesh(bench.cluster, (1, bench.cluster.slots))
        a, b = (td.distribute(x, mesh, GRID) for x in bench.matrices(edge))
        bench.cluster.wait([*a.blocks, *b.blocks], "operands", LATE)
        limit = int(4 * edge**2 * bench.rng.uniform(0.5, 4.0))
        operands, options = (a, b), {}
    else:
        bench.ready("files")
        limit = int(bench.rng.uniform(1e5, 2e7))
        operands = tuple(td.open_array(bench.folder / f"{name}.npy") for name in "ab")
        options = {"out": bench.folder / "limited.npy", "overwrite": True, "cluster": bench.cluster}
    before, begun = {*tasks}, perf_counter()
    try:
        made = td.matmul(*operands, memory_limit=limit, timeout=LATE, **options)
    except DoesNotFitError as error:
        new = {*tasks} - before
        end = "wrong" if new else "said"
        return Tried(end, perf_counter() - begun, f"{len(new)} tasks ran. {error}")
    held = made.memory.measured.peak
    end = "right" if held <= made.memory.predicted.peak <= limit else "wrong"
    words = f"{held} held, {made.memory.predicted.peak} predicted, {limit} allowed"
    return Tried(end, perf_counter() - begun, words)
