"""The product of two stored matrices, panel by panel, in less memory than any of them takes.

    A, B  --each worker reads the panels it needs-->  a tile at a time  --each writes its own-->  C

Nothing moves between workers. Finished tiles are recorded beside the result, so that a product
that was killed goes on from there, in another process and with other workers.
"""

import os
import uuid
import warnings
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from typing import Any

from distributed import Client

from tiledask.distributed.arrays.array import Both
from tiledask.distributed.cluster.cluster import Cluster
from tiledask.distributed.cluster.counters import Counted, counting
from tiledask.distributed.cluster.progress import Progress, watching
from tiledask.distributed.cluster.room import room_of
from tiledask.distributed.connecting.connect import cluster_of
from tiledask.distributed.connecting.shared import check_shared
from tiledask.distributed.deadlines import DEADLINE, seconds_of
from tiledask.distributed.out_of_core.disk import free
from tiledask.distributed.out_of_core.folder import is_url
from tiledask.distributed.out_of_core.stored import (
    StoredArray,
    describe,
    materialize,
    open_array,
    present,
    records_of,
    remove,
    unfinished,
)
from tiledask.distributed.out_of_core.stream_tiles import (
    StreamJob,
    StreamProduct,
    stream_tiles,
    warm,
)
from tiledask.distributed.out_of_core.unfinished import StreamRecords, differences
from tiledask.distributed.products.operands import check_kernel, check_types
from tiledask.errors import ConfigError, DoesNotFitError, PlacementError
from tiledask.plan.products.regions import Region
from tiledask.plan.products.stream_search import least_memory, plan_stream
from tiledask.plan.products.streaming import Cuts, Problem, StorageLayout, StreamPlan, plan_cuts
from tiledask.plan.products.traffic import Traffic
from tiledask.plan.units import format_bytes, parse_bytes
from tiledask.tile import accumulator, workspace
from tiledask.tile.cuda.hopper_tile import HopperTile, as_tile

__all__ = ["OPTIONS", "StoredProduct", "multiply_stored", "plan_stored"]

OPTIONS = (
    *("out", "cluster", "kernel", "tile", "memory_limit", "timeout", "progress"),
    *("resume", "overwrite", "storage_options"),
)
"""What `multiply_stored` takes."""

_READERS = 4
"""Threads that compare what an unfinished result holds with what was recorded of it."""
_LETTING_GO = 20.0
"""Seconds that a product that failed waits for its workers, which stop at their next panel."""
WORTH = 128
"""Rows and columns of a tile that multiplies faster than it is read."""


@dataclass(frozen=True, eq=False, repr=False)
class StoredProduct(StoredArray):
    """The result of a product of stored matrices: a StoredArray, and what its making took."""

    plan: StreamPlan | None = None
    """The plan of what this run had left to do."""
    traffic: Both | None = None
    """Traffic between workers, predicted (none) and measured."""
    memory: Both | None = None
    """Ledger, a place per slot, predicted and measured."""
    bytes_read: Both | None = None
    """Bytes read from files by all workers, predicted and counted."""
    seconds: float = 0.0
    """How long this run took, measured by the client."""
    resumed_tiles: int = 0
    """Tiles that an earlier run had finished."""

    @property
    def array(self) -> StoredArray:
        """The matrix alone."""
        return StoredArray(**_fields(self))


def multiply_stored(
    a: StoredArray,
    b: StoredArray,
    out: StoredArray | str | os.PathLike[str],
    cluster: Cluster | Client | str,
    *,
    kernel: str = "blas",
    tile: int | tuple[int, int, int] | HopperTile | None = None,
    memory_limit: int | str | None = None,
    timeout: float | None = None,
    progress: Progress = None,
    resume: bool = True,
    overwrite: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> StoredProduct:
    """C = A @ B from files into a file, as a StoredProduct.

    cluster
        On one that td.connect gave, workers must find A, B and the folder of ``out`` as they are
        here, on a file system that all share: that is looked at first, else ConfigError. URLs
        are not looked at.
    out
        A path, .npy or .zarr, or a URL of a zarr array, which is created; or a StoredArray, whose
        elements are replaced. If the path exists and is no unfinished product, only ``overwrite``
        replaces it.
    kernel, tile
        How each worker multiplies its panels: see ``td.tile.matmul``.
    memory_limit
        Bytes a worker may take beyond what it holds already. Default: half of what it has, so
        that the system can keep in its page cache what is read more than once; a quarter, an
        eighth ... where it holds too much already for Dask to leave it that.
    timeout
        Seconds for the whole. Default: 300, and 20 times what the plan would take at 50 GFLOP/s
        a worker in float64, 100 in the other types.
    progress
        True draws a bar, False none, None one where somebody watches. A function is called with
        (panels multiplied, panels in all), from another thread.
    resume
        What an unfinished product recorded in ``<out>.tiledask`` is taken up where it ended, with
        its tiles, if operands and kernel are the same (otherwise ConfigError). Tiles that do not
        have their checksum any more are computed again, with a UserWarning. False starts over.
        Of a URL, ``<out>.tiledask`` are objects beside it, and nobody else may work on it.
    storage_options
        What fsspec needs for an ``out`` that is a URL, as of ``td.open_array``. Every worker needs
        the store's package (s3fs, gcsfs, ...), whose own memory is in no plan (of s3fs up to 25 MB
        in a worker's first product), and memory:// is in one process alone.

    The same plan gives the same bits, interrupted or not. Raises DoesNotFitError before anything
    runs if no tiles fit, ConfigError if ``out`` is an operand, its disk is too full, or an operand
    changes meanwhile. An error, an interrupt or a timeout stops the workers at their next panel;
    then the same call goes on.
    """
    seconds = None if timeout is None else seconds_of(timeout)
    cluster = cluster_of(cluster, "a product of files")
    check_kernel(kernel, cluster.backend)
    product = _product(a, b, out, kernel, tile, resume, storage_options)
    target = product.c
    on_disk = [each.path for each in (product.a, product.b) if not is_url(each.path)]
    written = [] if is_url(target.path) else [os.path.dirname(target.path)]
    check_shared(cluster, on_disk, written)
    records = StreamRecords(records_of(target), target.storage_options)
    given = isinstance(out, StoredArray)
    if present(target) and not (given or overwrite or records.exist):
        raise ConfigError(
            f"{target.path} exists and is no unfinished product; overwrite=True replaces it, "
            f"td.open_array opens it"
        )
    with records.claimed():
        if not (resume and present(target)):
            records.forget()
        about = _about(product)
        if records.exist:
            plan = _taken_up(product, about, records, cluster, memory_limit)
        else:
            plan = _planned(product, cluster, memory_limit, timeout=timeout)
            _begin(product, {**about, "cuts": asdict(plan.cuts)}, records, create=not given)
        finished = _finished(plan, target, records)
        left = plan.remaining(dict.fromkeys(finished, product.k))
        run = uuid.uuid4().hex
        jobs = [
            StreamJob.of(left, slot, product, records, run, cluster.backend)
            for slot in sorted({tile.slot for tile in left.tiles})
        ]
        reads, counted = _run(cluster, jobs, seconds or DEADLINE + 20 * left.seconds, progress)
        if changed := differences(about, _about(product)):
            raise ConfigError(
                f"while it was multiplied, {'; '.join(changed)}: {target.path} mixes before and "
                f"after. Run it again with resume=False"
            )
        records.forget()
    return StoredProduct(
        **_fields(target),
        plan=left,
        traffic=Both(Traffic.of(cluster.slots).on(cluster.hosts), counted.traffic),
        memory=Both(left.ledger, counted.ledger({})),
        bytes_read=Both(left.bytes_read, sum(reads)),
        seconds=counted.seconds,
        resumed_tiles=len(finished),
    )


def plan_stored(
    a: StoredArray,
    b: StoredArray,
    out: StoredArray | str | os.PathLike[str],
    cluster: Cluster | Client | str,
    *,
    kernel: str = "blas",
    tile: int | tuple[int, int, int] | None = None,
    memory_limit: int | str | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> StreamPlan:
    """The plan that `multiply_stored` would follow from the start; nothing runs."""
    cluster = cluster_of(cluster, "a product of files")
    check_kernel(kernel, cluster.backend)
    product = _product(a, b, out, kernel, tile, False, storage_options)
    return _planned(product, cluster, memory_limit)


# -- what is asked for ---------------------------------------------------------------------------


def _product(
    a: Any,
    b: Any,
    out: Any,
    kernel: str,
    tile: Any,
    resume: bool,
    options: Mapping[str, Any] | None = None,
) -> StreamProduct:
    """What is multiplied, all of it as its files are now, or an error that says what is wrong."""
    a, b = _reopened("A", a), _reopened("B", b)
    for name, operand in (("A", a), ("B", b)):
        if unfinished(operand):
            raise ConfigError(
                f"{name}, {operand.path}, is the result of a product that is not finished: make "
                f"the same call again to finish it, or, if it was written otherwise since, remove "
                f"{records_of(operand)}"
            )
    if a.shape[1] != b.shape[0]:
        raise PlacementError(
            f"A {a.shape} has {a.shape[1]} columns and B {b.shape} has {b.shape[0]} rows, they "
            f"must be equal; is one of them to be stored transposed?"
        )
    check_types(a.dtype, b.dtype, kernel, convert="store")
    workspace(1, 1, 1, a.dtype.itemsize, kernel, tile)  # raises for what does not go together
    c = _target(out, a, b, resume, options)
    for name, array in (("A", a), ("B", b), ("the result", c)):
        if array.path.startswith("memory://"):
            raise ConfigError(
                f"{name}, {array.path}, is in the memory of this process, and workers are "
                f"processes of their own; name a file, file://..., or a store that all of them "
                f"reach, s3://..."
            )
    return StreamProduct(a, b, c, kernel, tile)


def _reopened(name: str, array: Any) -> StoredArray:
    """``array`` as its file is now."""
    if not isinstance(array, StoredArray):
        raise TypeError(
            f"{name} is a {type(array).__name__}; stored matrices are multiplied with stored "
            f"matrices: numpy.save it and td.open_array the file"
        )
    now = open_array(array.path, missing=array.missing, storage_options=array.storage_options)
    if (now.shape, now.dtype) != (array.shape, array.dtype):
        raise ConfigError(
            f"{name} was opened as {array.shape} {array.dtype}, and {array.path} is now "
            f"{now.shape} {now.dtype}; td.open_array it again"
        )
    return now


def _target(
    out: Any, a: StoredArray, b: StoredArray, resume: bool, options: Mapping[str, Any] | None
) -> StoredArray:
    """The result as it is, or as it will be once it is created."""
    shape = a.shape[0], b.shape[1]
    if isinstance(out, StoredArray):
        if options:
            raise ConfigError(
                "storage_options are for an out that is a URL; a StoredArray has its own: give "
                "them to td.open_array or td.create_array"
            )
        target = _reopened("out", out)
    else:
        target = describe(out, shape, a.dtype, storage_options=options)
        if resume and unfinished(target) and present(target):
            target = open_array(target.path, storage_options=options)
    if (target.shape, target.dtype) != (shape, a.dtype):
        raise PlacementError(
            f"A {a.shape} @ B {b.shape} is {shape} {a.dtype}, {target.path} is {target.shape} "
            f"{target.dtype}; name another file, or start this one over with resume=False"
        )
    for name, operand in (("A", a), ("B", b)):
        if target.path == operand.path or (
            os.path.exists(target.path)
            and os.path.exists(operand.path)
            and os.path.samefile(target.path, operand.path)
        ):
            raise ConfigError(
                f"the result {target.path} is {name} itself, which is read until the end; name "
                f"another file"
            )
    return target


def _about(product: StreamProduct) -> dict[str, Any]:
    """What the sums depend on, besides the cuts; for JSON."""
    c = product.c
    tile = None if product.tile is None else as_tile(product.tile)
    lies = {"kind": c.kind, "order": c.order, "chunks": list(c.chunks) if c.chunks else None}
    return {
        "A": product.a.identity(),
        "B": product.b.identity(),
        "result": {"shape": list(c.shape), "dtype": c.dtype.name, **lies},
        "kernel": {
            "name": product.kernel,
            "tile": str(tile) if isinstance(tile, HopperTile) else tile and list(tile),
        },
    }


# -- the plan, new or recorded -------------------------------------------------------------------


def _planned(
    product: StreamProduct,
    cluster: Cluster,
    memory_limit: int | str | None,
    cuts: Cuts | None = None,
    timeout: float | None = None,
) -> StreamPlan:
    """The plan with the best cuts, or with these."""
    room = room_of(cluster, timeout=timeout)
    limit = cluster.memory_limit // 2 if memory_limit is None else parse_bytes(memory_limit)
    while memory_limit is None and limit > room.bytes > 0:
        limit //= 2  # and not the room itself: the same product shall be cut alike another time
    problem = _problem(
        product.a.form,
        product.b.form,
        product.c.form,
        product.a.dtype,
        product.kernel,
        product.tile,
    )
    if cuts is None:
        plan = plan_stream(problem, cluster.slots, limit)
    else:
        plan = plan_cuts(problem, cuts, cluster.slots, limit)
    if plan.ledger.peak > room.bytes:
        less = room.elsewhere()
        ways = [f"memory_limit={format_bytes(less)!r}"] * (least_memory(problem) <= less)
        ways += filter(None, [room.raised(plan.ledger.peak)])
        raise DoesNotFitError(
            f"tiles of {'x'.join(map(str, plan.cuts.tile))} with panels of {plan.panel} take "
            f"{format_bytes(plan.ledger.peak)} a slot, the workers leave {room}. What would fit: "
            f"{'; or '.join(ways) or 'nothing on this machine'}"
        )
    return plan


def _problem(
    a: StorageLayout, b: StorageLayout, c: StorageLayout, dtype: Any, kernel: str, tile: Any
) -> Problem:
    size, wide = dtype.itemsize, accumulator(dtype).itemsize

    def work(m: int, n: int, k: int) -> int:
        return workspace(m, n, k, size, kernel, tile, True, wide)

    return Problem(a, b, c, wide, work)


def limits_of(
    a: tuple[int, int], b: tuple[int, int], dtype: Any, kernel: str, tile: Any
) -> tuple[int, int]:
    """The least ``memory_limit`` of a product of matrices of these shapes in .npy files, in bytes,
    and one with tiles that are worth a call to BLAS."""
    A, B, C = (StorageLayout(shape, dtype.itemsize) for shape in (a, b, (a[0], b[1])))
    problem = _problem(A, B, C, dtype, kernel, tile)
    return least_memory(problem), least_memory(problem, WORTH)


def _begin(
    product: StreamProduct, record: dict[str, Any], records: StreamRecords, create: bool
) -> None:
    """None, once the plan is recorded and the result's file is there."""
    _refuse_if_too_full(product.c)
    if create:
        # in this order: what is recorded of a result that is not there is known to be of no use
        remove(product.c)
        records.begin(record)
        materialize(product.c, zeros=False)
    else:
        records.begin(record)


def _taken_up(
    product: StreamProduct,
    about: dict[str, Any],
    records: StreamRecords,
    cluster: Cluster,
    memory_limit: int | str | None,
) -> StreamPlan:
    """The recorded plan, for this cluster; ConfigError if it is for anything else."""
    was = records.plan()
    value = was.pop("cuts", None)
    if changed := differences(was, about):
        raise ConfigError(
            f"{product.c.path} was begun with other input: {'; '.join(changed)}. Bring that back "
            f"to go on, or start over with resume=False"
        )
    try:
        cuts = Cuts(tuple(value["rows"]), tuple(value["columns"]), value["panel"])
        if (cuts.rows[-1], cuts.columns[-1]) != product.c.shape:
            raise ConfigError(f"the result is {product.c.shape}")
    except (ConfigError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{records.folder}/plan.json is damaged, its cuts are {value} ({error}); resume=False "
            f"starts over"
        ) from None
    try:
        return _planned(product, cluster, memory_limit, cuts)
    except DoesNotFitError as error:
        raise DoesNotFitError(
            f"{product.c.path} was begun with more memory: {error}, which is resume=False"
        ) from None


def _refuse_if_too_full(target: StoredArray) -> None:
    if is_url(target.path):  # a store does not say what is free
        return
    folder = os.path.dirname(target.path)
    needs, room = target.nbytes - target.allocated(), free(folder)
    if needs > room:
        raise ConfigError(
            f"{target.path} needs {format_bytes(needs)} more on its disk, {format_bytes(room)} are "
            f"free; make room, or name a file on another disk"
        )


def _finished(plan: StreamPlan, target: StoredArray, records: StreamRecords) -> list[Region]:
    """The tiles that are finished by the records, and have their checksums in the file.

    Of others the record is struck out, and a UserWarning says so.
    """
    found = {region: records.tile(region) for region in plan.cuts.regions}
    checks = {region: check for region, check in found.items() if check is not None}

    def agrees(region: Region) -> bool:
        try:
            return target.check_of(region) == checks[region]
        except ConfigError:  # a chunk that is missing or does not decode
            return False

    with ThreadPoolExecutor(_READERS, thread_name_prefix="verify") as pool:
        right = dict(zip(checks, pool.map(agrees, checks), strict=True))
    wrong = [region for region in checks if not right[region]]
    for region in wrong:
        records.strike(region)
    if wrong:
        warnings.warn(
            f"{target.path}: {len(wrong)} of {len(checks)} tiles that were recorded, such as "
            f"{wrong[0]}, do not have their checksum; something else wrote there, or the disk is "
            f"damaged. They are computed again",
            UserWarning,
            stacklevel=3,
        )
    return [region for region in checks if right[region]]


# -- running it ----------------------------------------------------------------------------------


def _run(
    cluster: Cluster, jobs: list[StreamJob], seconds: float, progress: Progress
) -> tuple[list[int], Counted]:
    """(bytes that each job read, what was counted meanwhile)."""
    if not jobs:  # the last run was killed between its last tile and its end
        with counting(cluster) as counted:
            return [], counted
    product = jobs[0].product
    (m, k), n = product.a.shape, product.b.shape[1]
    what = f"product {m}x{k} @ {k}x{n} into {os.path.basename(product.c.path)}"
    cluster.wait(
        [cluster.submit(job.slot, warm, job, name="load") for job in jobs],
        f"loading what the {what} needs",
        min(seconds, DEADLINE),
        cancel=True,
    )
    panels = [0] * cluster.slots
    for job in jobs:
        panels[job.slot] = job.panels
    run = jobs[0].run
    with counting(cluster) as counted, watching(progress, run, panels, what, cluster):
        futures = [cluster.submit(job.slot, stream_tiles, job, name="stream") for job in jobs]
        try:
            return cluster.gather(futures, what, seconds, cancel=True), counted
        except BaseException:
            _let_go(cluster, [job.slot for job in jobs])
            raise


def _let_go(cluster: Cluster, slots: Iterable[int]) -> None:
    """None, once what was cancelled in these slots has stopped: it wrote to the result."""
    with suppress(Exception):  # of a cluster that is gone nothing writes
        cluster.gather([cluster.submit(slot, int) for slot in slots], "the end", _LETTING_GO)


def _fields(array: StoredArray) -> dict[str, Any]:
    return {f.name: getattr(array, f.name) for f in fields(StoredArray)}
