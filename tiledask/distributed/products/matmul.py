"""The high level of the two-level product: plan it, check that it fits, run it, count it.

plan/products/product.py   who multiplies what, and what must move       arithmetic
plan/program/making        that as a program: what each rank fetches, and when
here              lend the blocks, one task per rank, count     the client
multiply.py       goes through a rank's line of the program     a worker
transport/        parts of blocks from worker to worker         memory, messages
"""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pickle import dumps
from typing import Any, NamedTuple, TypeVar

from distributed import Future

from tiledask.distributed.arrays.array import Both, ShardedArray, operators
from tiledask.distributed.arrays.mesh import Mesh
from tiledask.distributed.arrays.recompute import Anchors
from tiledask.distributed.cluster.cluster import slot_of
from tiledask.distributed.cluster.counters import counting
from tiledask.distributed.cluster.progress import Progress, announced, ended, watching
from tiledask.distributed.cluster.room import as_room, asks_room, room_of
from tiledask.distributed.deadlines import bounded, seconds_of
from tiledask.distributed.products.explain import CACHE, Choice, Explanation, ProductQuestion
from tiledask.distributed.products.multiply import RankLine, run_line
from tiledask.distributed.products.needed import ProductNeeds
from tiledask.distributed.products.operands import check_kernel, check_types
from tiledask.distributed.products.page import about, counts, memory_before
from tiledask.distributed.products.rates import rates_of
from tiledask.distributed.products.refusal import refusal
from tiledask.distributed.transport.loans import Facts, Span
from tiledask.distributed.transport.remote_read import Lender, lending, said_of, transport_of
from tiledask.distributed.transport.tickets import LentBlock, Ticket
from tiledask.errors import PlacementError
from tiledask.plan.products.placement import Tiling
from tiledask.plan.products.product import algorithms, moves_nothing
from tiledask.plan.products.traffic import Traffic
from tiledask.plan.program.instructions import Fetch
from tiledask.plan.program.making.of_product import multiply_program, sum_program
from tiledask.plan.program.program import Program
from tiledask.tile import TileCount, accumulator, as_dtype
from tiledask.tile.table import meant

__all__ = ["Spent", "algorithms", "explain", "matmul"]

T = TypeVar("T")


@bounded
def matmul(
    a: ShardedArray,
    b: ShardedArray,
    *,
    algorithm: str | None = None,
    panel: int | None = None,
    grid: tuple[int, ...] | None = None,
    replication: int | None = None,
    kernel: str = "blas",
    tile: int | tuple[int, int, int] | None = None,
    memory_limit: int | str | None = None,
    timeout: float | None = None,
    progress: Progress = None,
    **elsewhere: Any,
) -> ShardedArray:
    """C = A @ B as a ShardedArray; A [..., k] may have leading dimensions, B is [k, n] or [k].

    Two dask.arrays give a lazy dask.array (`tiledask.distributed.products.lazy.multiply`), two
    files a file (``out=``, ``cluster=``, see
    `tiledask.distributed.out_of_core.streamed.multiply_stored`); of the options below they take
    ``kernel``, ``tile``, ``memory_limit``, and files ``timeout`` and ``progress``.

    algorithm
        One of ``td.algorithms``. Default: what moves nothing if the operands lie so, otherwise
        the fastest that `td.explain` predicts on the mesh of A and B.
    panel, grid, replication
        Choices within an algorithm: columns of A per panel; (p, q) or (p, q, c) for algorithms
        that arrange the ranks; layers of "2.5d". C then lies on a mesh of that shape.
    kernel, tile
        How each rank multiplies its blocks: see ``td.tile.matmul``.
    memory_limit
        Bytes a rank may hold, A's and B's blocks included. Never more than the workers have: what
        their processes hold beside A and B is measured first, and where Dask would move blocks to
        disk, pause or kill a worker (``distributed.worker.memory``) no plan may come. A plan that
        needs more raises DoesNotFitError before anything runs, with what would fit.
    progress
        Show how far the ranks are. Default: where somebody watches, after two seconds. A function
        is called with (panels multiplied, panels in all), from another thread.

    Half types are summed in float32 and rounded once; only partial sums that are left as they are
    (Partial()) are rounded before. ``C.traffic`` and ``C.memory`` hold what was predicted and
    what the workers counted, ``C.tiles`` the bytes that their tile kernels loaded (None for BLAS,
    which cannot be looked into), ``C.spent`` where each rank's time went; if a worker that is done
    does not say so, these are None and (), with a warning. If a worker dies, what it had is made
    again, with the same bits. Raises PlacementError for shapes, dtypes or placements that do not
    multiply, DeadlineError after ``timeout`` seconds (default 300): A and B stay as they are.
    """
    options = {"panel": panel, "grid": grid, "replication": replication}
    if (others := _of_other_arrays(a, b)) is not None:
        multiply_others, takes = others
        given = {
            "algorithm": algorithm,
            **options,
            "timeout": timeout,
            "progress": progress,
            "memory_limit": memory_limit,
            "tile": tile,
        }
        given = {name: value for name, value in given.items() if value is not None} | elsewhere
        if unknown := sorted(set(given) - set(takes)):
            raise PlacementError(
                f"a product of {type(a).__name__}s has no {', '.join(unknown)}; it takes "
                f"{', '.join(takes)}. Sharded arrays have algorithms: td.from_dask, td.distribute"
            )
        made: ShardedArray = multiply_others(a, b, kernel=kernel, **given)
        return made
    if elsewhere:
        raise TypeError(
            f"a product of sharded arrays has no {', '.join(elsewhere)}: out and cluster are for "
            f"files, td.open_array(path)"
        )
    _check(a, b, kernel)
    deadline = time.monotonic() + seconds_of(timeout)
    if algorithm is None and moves_nothing(a.tiling, b.tiling):
        algorithm = "local"
    if algorithm is None and a.dtype.name not in a.mesh.cluster.rates:
        rates_of(a.mesh.cluster, a.dtype)  # one algorithm's time is worth no measuring
    question = _question(a, b, algorithm, options, kernel, tile)
    return _Run(a, b, question, memory_limit, deadline, progress).result()


def explain(
    a: ShardedArray,
    b: ShardedArray,
    *,
    algorithm: str | None = None,
    panel: int | None = None,
    grid: tuple[int, ...] | None = None,
    replication: int | None = None,
    kernel: str = "blas",
    tile: int | tuple[int, int, int] | None = None,
    memory_limit: int | str | None = None,
) -> Explanation:
    """Every algorithm for A @ B, what it would take, and which is chosen and why; nothing runs.

    The arguments are those of `matmul`. Per algorithm: bytes to the rank that receives most and
    in all, messages, peak bytes of the fullest rank, seconds from this cluster's measured rates,
    and the bytes that no algorithm can undercut with this much memory. And how they will move:
    from memory to memory, from GPU to GPU, or as messages, and why.
    """
    _check(a, b, kernel)
    options = {"panel": panel, "grid": grid, "replication": replication}
    mesh, cluster = a.mesh, a.mesh.cluster
    room = room_of(cluster, [a.blocks, b.blocks], memory_limit)
    rates_of(cluster, a.dtype)
    question = _question(a, b, algorithm, options, kernel, tile)
    found = question.weigh(room.bytes)
    return replace(found, moved=said_of(cluster)).on(mesh, question.itemsizes)


def _question(
    a: ShardedArray,
    b: ShardedArray,
    algorithm: str | None,
    options: Mapping[str, Any],
    kernel: str,
    tile: Any,
) -> ProductQuestion:
    """What is asked for, as it is weighed: with the rates that are known by now."""
    if algorithm is not None and algorithm not in algorithms:
        raise PlacementError(
            f"no algorithm {algorithm!r}; td.algorithms has {', '.join(algorithms)}"
        )
    cluster = a.mesh.cluster
    needs = ProductNeeds(a.dtype, meant(kernel, cluster.backend), tile, transport_of(cluster))
    given = tuple((name, value) for name, value in options.items() if value is not None)
    rates = cluster.rates.get(a.dtype.name)
    return ProductQuestion(a.tiling, b.tiling, needs, rates, algorithm, given)


def _of_other_arrays(a: Any, b: Any) -> tuple[Callable[..., Any], tuple[str, ...]] | None:
    """(what multiplies dask.arrays or files, the options that it takes); None for sharded arrays
    and for what nothing takes."""
    from tiledask.distributed.out_of_core.stored import StoredArray

    if isinstance(a, StoredArray) and isinstance(b, StoredArray):
        from tiledask.distributed.out_of_core import streamed

        return streamed.multiply_stored, streamed.OPTIONS
    dask_array = sys.modules.get("dask.array")
    if dask_array and any(isinstance(x, dask_array.Array) for x in (a, b)):
        from tiledask.distributed.products import lazy

        return lazy.multiply, lazy.OPTIONS
    return None


# -- running a plan ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Spent:
    """Where the time of one rank went, seconds; reads go on beside the rest."""

    multiply: float
    read: float
    wait: float
    """Seconds of waiting for panels that had not come yet."""
    sum: float
    """Seconds of adding partial sums up, their reads included."""
    rest: float
    """What is left of the product's time: scheduling, starting, waiting for other ranks."""
    spans: tuple[Span, ...] = field(repr=False, default=())
    """Each of these by itself, on one clock for all ranks of this machine."""

    @classmethod
    def of(cls, facts: Facts, seconds: float) -> "Spent":
        by_kind = {"multiply": 0.0, "read": 0.0, "wait": 0.0, "sum": 0.0}
        for span in facts.spans:
            by_kind[span.kind] += span.stop - span.start
        busy = by_kind["multiply"] + by_kind["wait"] + by_kind["sum"]
        return cls(**by_kind, rest=max(0.0, seconds - busy), spans=facts.spans)


class _Stage(NamedTuple):
    """A program of a product: what its ranks are told that follows from shapes alone."""

    lines: tuple[bytes, ...]
    """By rank, its `RankLine`."""
    rows: tuple[tuple[str, dict[int, tuple[int, ...]]], ...]
    """By array, the ranks whose blocks are fetched together, each under one that does."""
    reads: tuple[tuple[tuple[str, int], ...], ...]
    """By rank, (array, key among its rows) of what it fetches of."""

    @classmethod
    def of(
        cls, program: Program, made: Tiling, arrays: Mapping[str, Tiling], *said: Any
    ) -> "_Stage":
        lines, reads = [], []
        keys: dict[str, dict[tuple[int, ...], int]] = {name: {} for name in arrays}
        for rank, region in enumerate(made.regions):
            line = program.alone(rank)
            (part,) = line.role(0).parts
            fetches = (each for each in part.instructions if isinstance(each, Fetch))
            wanted = sorted({(f.array, f.source) for f in fetches if f.source is not None})
            owners = {(name, source): arrays[name].regions[source] for name, source in wanted}
            lines.append(dumps(RankLine(rank, line, owners, region, *said)))
            mine = []
            for name in dict.fromkeys(name for name, _ in wanted):
                # its own block makes the ranks of a row alike
                row = tuple(sorted({rank, *(source for of, source in wanted if of == name)}))
                mine.append((name, keys[name].setdefault(row, rank)))
            reads.append(tuple(mine))
        rows = ((name, {key: row for row, key in of.items()}) for name, of in keys.items())
        return cls(tuple(lines), tuple(rows), tuple(reads))


@dataclass(frozen=True)
class _Ready:
    """What follows of a product from its plan: equal products need it once."""

    what: str
    predicted: Traffic
    resident: dict[str, tuple[int, ...]]
    """By operand, bytes of each rank's block."""
    panels: list[int]
    """By rank."""
    about: dict[str, Any]
    """For the dashboard's page."""
    stages: tuple[_Stage, ...]
    """One; where k is shared out a second, that sums."""

    @classmethod
    def of(cls, choice: Choice, dtype: str, backend: str) -> "_Ready":
        plan, ledger, one = choice.plan, choice.ledger, as_dtype(dtype)
        assert plan is not None  # what cannot run is never chosen
        assert ledger is not None
        sizes = one.itemsize, accumulator(one).itemsize
        predicted = plan.traffic(*sizes)
        resident = {
            name: tuple(row.bytes for row in ledger.rows if row.tensor == name) for name in "AB"
        }
        operands = {"A": plan.a, "B": plan.b}
        program = multiply_program(plan, *sizes)
        stages = [_Stage.of(program, plan.work, operands, dtype, backend, plan.sums)]
        if plan.sums:
            program = sum_program(plan, *sizes)
            partials = {"partial": plan.work}
            stages.append(_Stage.of(program, plan.result, partials, dtype, backend, False))
        return cls(
            f"{choice.algorithm} product {plan.a.shape} @ {plan.b.shape}",
            predicted,
            resident,
            [len(panels) for panels in plan.panels],
            about(choice, predicted),
            tuple(stages),
        )


_ready_once = lru_cache(CACHE)(_Ready.of)


class _Run:
    """One product under way."""

    def __init__(
        self,
        a: ShardedArray,
        b: ShardedArray,
        question: ProductQuestion,
        memory_limit: int | str | None,
        deadline: float,
        progress: Progress,
    ) -> None:
        self.a, self.b, self.question, self.memory_limit = a, b, question, memory_limit
        self.deadline, self.progress = deadline, progress
        self.cluster = a.mesh.cluster
        self.on_page = False

    @cached_property
    def choice(self) -> Choice:
        """What is run, known once the workers have said what they may hold."""
        a, b, found = self.a, self.b, self.question.remembered(self.room.bytes)
        if found.chosen:
            return found[found.chosen]

        def files() -> tuple[int, int]:
            from tiledask.distributed.out_of_core.streamed import limits_of

            (m, k), n, needs = a.shape, b.shape[1], self.question.needs
            return limits_of((m, k), (k, n), a.dtype, needs.kernel, needs.tile)

        in_files = a.ndim == b.ndim == 2 and a.dtype.kind == "f"
        raise refusal(found, self.room, self.question, files if in_files else None)

    @cached_property
    def ready(self) -> _Ready:
        return _ready_once(self.choice, self.a.dtype.name, self.cluster.backend)

    def _left(self) -> float:
        return max(0.1, self.deadline - time.monotonic())

    def result(self) -> ShardedArray:
        cluster, a, b = self.cluster, self.a, self.b
        arrays, slots = [a.blocks, b.blocks], a.mesh.at
        operands = [*a.blocks, *b.blocks]
        cluster.again(operands)
        cluster.wait(operands, f"the operands of {a.shape} @ {b.shape}", self._left())
        with (
            lending(cluster) as lender,
            counting(
                cluster,
                self._left(),
                first=[lender.lends(arrays), asks_room(cluster, arrays)],
                last=[lender.ends],
            ) as counted,
        ):
            lent, rules = zip(*counted.first, strict=True)
            tickets = [lent[slot] for slot in slots]
            self.room = as_room(rules, self.memory_limit, cluster.started_here, slots)
            ready, held = self.ready, [counted.held[slot] for slot in slots]
            with (
                announced(
                    cluster,
                    lender.name,
                    **ready.about,
                    counted=memory_before(ready.resident, held),
                ) as self.on_page,
                watching(self.progress, lender.name, ready.panels, ready.what, cluster),
            ):
                blocks = self._result(lender, tickets)
            lender.close()
        plan, facts = self.choice.plan, [found for (found,) in counted.last]
        assert plan is not None
        mesh = self.a.mesh
        if plan.result.mesh != mesh.shape:
            mesh = Mesh(cluster, plan.result.mesh, slots=slots)
        reads = [(src, dst, n) for dst, found in enumerate(facts) for src, n in found.reads]
        predicted = ready.predicted.on(cluster.hosts, slots)
        traffic = Both(predicted, counted.moved(cluster.slots, reads))
        memory = Both(self.choice.ledger, counted.ledger(ready.resident, slots))
        if self.on_page:
            found = counts(slots, traffic.measured, memory.measured, counted.seconds)
            ended(cluster, lender.name, found)
        return ShardedArray(
            mesh,
            plan.result,
            a.dtype,
            tuple(blocks),
            plan.algorithm,
            traffic=traffic,
            memory=memory,
            seconds=counted.seconds,
            spent=tuple(Spent.of(facts[slot], counted.seconds) for slot in slots if facts),
            tiles=TileCount.of(tiles for found in facts for tiles in found.tiles),
        )

    def _result(self, lender: Lender, tickets: Sequence[Sequence[Any]]) -> list[Future[Any]]:
        """The blocks of C, for ``tickets`` of A's and B's: each rank goes through its line, and
        through a second where k is shared out."""
        a, b, (stage, *more) = self.a, self.b, self.ready.stages
        of_a, of_b = zip(*tickets, strict=True)
        lent = {"A": _Lent(a.blocks, a.anchors, of_a), "B": _Lent(b.blocks, b.anchors, of_b)}
        name = f"multiply_{self.choice.algorithm}"
        blocks = self._run(lender, stage, lent, [None] * len(a.blocks), name)
        for stage in more:
            found = lender.lend([blocks], self._left())
            of_c = [found[slot][0] for slot in a.mesh.at]
            partial = _Lent(blocks, Anchors(self.cluster, blocks), of_c)
            blocks = self._run(lender, stage, {"partial": partial}, blocks, "reduce_scatter")
        return blocks

    def _run(
        self,
        lender: Lender,
        stage: _Stage,
        arrays: "dict[str, _Lent]",
        own: Sequence[Future[Any] | None],
        name: str,
    ) -> list[Future[Any]]:
        """The block that each rank makes by its line, which fetches of ``arrays``; ``own`` are
        the ranks' partial sums."""
        args, rows, anchors = {}, dict[tuple[str, int], bytes](), {}
        cluster, needs = self.cluster, self.question.needs
        for array, found in stage.rows:
            one = arrays[array]
            for (key, row), held in zip(found.items(), one.anchors.of(found), strict=True):
                rows[array, key] = dumps([((array, r), one.block(r)) for r in row])
                anchors[array, key] = held
        for rank, (line, reads) in enumerate(zip(stage.lines, stage.reads, strict=True)):
            said = [rows[each] for each in reads]
            told = lender.name, lender.transport, said, needs.kernel, needs.tile, self.on_page
            # what keeps Dask able to make again the blocks that the rank reads
            after = [future for each in reads for future in anchors[each]]
            mine = self.a.blocks[rank], self.b.blocks[rank], own[rank]
            args[self.a.mesh.at[rank]] = line, dumps(told), *mine, *after
        blocks = cluster.submit_all(run_line, args, name=name)
        prefix = "the sums of the " if "partial" in arrays else ""
        # they go if this fails, the operands never do
        cluster.wait(blocks, prefix + self.ready.what, self._left(), cancel=True)
        return blocks


class _Lent(NamedTuple):
    """An array that ranks fetch of."""

    blocks: Sequence[Future[Any]]
    anchors: Anchors
    tickets: Sequence[Ticket | None]

    def block(self, rank: int) -> LentBlock:
        """The block of a rank, as others may read it."""
        block = self.blocks[rank]
        return LentBlock(str(block.key), slot_of(block), self.tickets[rank])


def _check(a: Any, b: Any, kernel: str) -> None:
    for name, x in (("A", a), ("B", b)):
        if not isinstance(x, ShardedArray):
            raise TypeError(
                f"{name} is a {type(x).__name__}; td.matmul multiplies two sharded arrays, two "
                f"dask.arrays or two files: td.distribute(x, mesh, placements) makes the first, "
                f"td.open_array(path) the last, and td.tile.matmul takes plain arrays"
            )
    if a.mesh.cluster is not b.mesh.cluster:
        raise PlacementError(
            f"A is on {a.mesh.cluster} and B on another, {b.mesh.cluster}; distribute both on one"
        )
    if a.mesh.at != b.mesh.at:
        raise PlacementError(
            f"rank r of A and of B must be in one slot, and theirs are {a.mesh.at} and "
            f"{b.mesh.at}; distribute both on one mesh, or on td.Mesh(..., slots={a.mesh.at})"
        )
    for name, dtype in (("A", a.dtype), ("B", b.dtype)):
        if dtype.kind != "f" and dtype != as_dtype("bfloat16"):
            raise PlacementError(
                f"{name} is {dtype}, products are floating point; distribute "
                f"{name}.astype('float32') or 'float64'"
            )
    check_kernel(kernel, a.mesh.cluster.backend)
    check_types(a.dtype, b.dtype, kernel)


operators["@"] = matmul
