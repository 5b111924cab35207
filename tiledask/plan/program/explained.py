"""Where a program's seconds, bytes and memory go, instruction by instruction, and what overlaps.

    linear                        compute   24 x   ...    a row for each kernel, and for each place
    layer 0/mlp/w_2/forward       tp         4 x   ...    where ranks talk to each other

The seconds of a training's step are those of a cluster's devices (prices.py), those of a blocked
product the rates that were measured where it is to run (products/cost.py). Three readings of the
clock say what overlap is worth: the program as it is, with everything on one stream, and with no
time between ranks at all.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tiledask.errors import ProgramError
from tiledask.plan import html
from tiledask.plan.frames import frame
from tiledask.plan.inputs.load import as_cluster
from tiledask.plan.inputs.recipes import Recipe, load_recipe
from tiledask.plan.pipelines.timeline import Timeline
from tiledask.plan.products.cost import MachineRates, multiply_seconds, read_seconds
from tiledask.plan.products.product_plan import ProductPlan
from tiledask.plan.products.regions import extents_of, region_size
from tiledask.plan.program.instructions import Collective, Do, Fetch, Instruction, Send
from tiledask.plan.program.making.of_product import multiply_program, sum_program
from tiledask.plan.program.prices import prices_of
from tiledask.plan.program.program import Program
from tiledask.plan.units import format_bytes, format_seconds

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["ProgramExplanation", "ProgramRow", "explain_product", "explain_program"]


class ProgramRow(NamedTuple):
    """What one kind of instruction takes in a step, on the rank that takes longest."""

    what: str
    """A kernel; or the label of a collective, or what a message carries."""
    stream: str
    times: int
    seconds: float
    """All of them together."""
    sent: int
    """Bytes; of a fetch, those that come."""
    measured: float | None = None
    """Seconds on this machine, if it was run."""


@dataclass(frozen=True, repr=False)
class ProgramExplanation:
    """What `explain` found out about a program."""

    program: Program
    rank: int
    """The rank of the rows: the one that is busy longest."""
    rows: tuple[ProgramRow, ...]
    """The most seconds first."""
    cluster: str
    makespan: float
    """Seconds of the program as it is written."""
    one_stream: float
    """Seconds if collectives were on the stream of the work: nothing but messages overlapped."""
    alone: float
    """Seconds if nothing between ranks took any time."""
    timeline: Timeline = field(repr=False)
    """When everything happens, of one rank of each kind; `tiledask.plots.gantt` draws it."""
    _fullest: tuple[tuple[str, int], ...] = field(repr=False, default=())
    placed: str = ""
    """Which axes cross hosts on the workers that it is for, and what that costs a step; empty if
    nobody said which, or on one host."""

    @property
    def hidden(self) -> float:
        """Seconds between ranks that hide behind work, because they are on streams of their own."""
        return self.one_stream - self.makespan

    @property
    def exposed(self) -> float:
        """Seconds that the ranks wait for each other's bytes."""
        return self.makespan - self.alone

    @cached_property
    def memory(self) -> dict[str, int]:
        """Bytes at the fullest moment of the fullest rank, by tensor class."""
        return dict(self._fullest)

    def to_frame(self) -> "pd.DataFrame":
        """A row per kind of instruction; ``measured`` only if something was."""
        found = frame(self.rows, list(ProgramRow._fields)).set_index("what")
        return found.dropna(axis="columns", how="all")

    def __repr__(self) -> str:
        step = " a step" if len(self.program.shape) == 3 else ""
        return (
            f"ProgramExplanation({self.program.name} on {self.program.ranks} ranks: "
            f"{format_seconds(self.makespan)}{step} on {self.cluster}, "
            f"{format_seconds(self.exposed)} of it between ranks, "
            f"{format_seconds(self.hidden)} more hidden){self.placed and f' {self.placed}'}"
        )

    def _repr_html_(self) -> str:
        head = ("what", "stream", "times", "seconds", "sent", "measured here")
        rows = [
            (
                row.what,
                row.stream,
                f"{row.times:,}",
                format_seconds(row.seconds),
                format_bytes(row.sent) if row.sent else "",
                "" if row.measured is None else format_seconds(row.measured),
            )
            for row in self.rows
        ]
        held = ", ".join(f"{name} {format_bytes(size)}" for name, size in self.memory.items())
        title = f"{self!r}; fullest moment: {held}"
        return html.table(head, rows, title)


def explain_program(
    program: Program,
    cluster: Any = "8xH100",
    recipe: str | Recipe = "mixed-adam-16",
    measured: Mapping[tuple[int, str], float] | None = None,
) -> ProgramExplanation:
    """Where a step of ``program`` would spend its time on ``cluster``, and its bytes and memory.

    ``recipe``: the widths of its numbers. ``measured``: seconds by rank and label, of a run.
    """
    if len(program.shape) != 3:
        raise ProgramError(
            f"explained is the program of a training, on a mesh (dp, tp, pp); this one's is "
            f"{program.shape}: program.timeline(seconds) times it"
        )
    spec = as_cluster(cluster)
    prices = prices_of(spec, load_recipe(recipe), flash=True)
    few = program.representatives()
    collective = prices.collective(program.shape, exposed=False)
    within = spec.within_node
    between = {"collective": collective, "latency": within.latency, "bandwidth": within.reached}
    free = {"collective": lambda each: 0.0}
    seconds = prices.kernels(few), between, free
    return _explained(program, few, seconds, ("tp", "dp", "all"), str(spec), measured)


def explain_product(
    plan: ProductPlan, itemsize: int, sum_itemsize: int, rates: MachineRates
) -> tuple[ProgramExplanation, ...]:
    """Where the time of a blocked product would go at measured ``rates``: of the program by which
    ranks multiply, and where k is shared out of the one by which they sum up.

    The kernels and reads of `tiledask.plan.products.cost`, which adds them up by a formula; here
    the clock says what waits for what. Without the seconds of tasks.

    >>> from tiledask.plan.products.placement import Shard, Tiling
    >>> from tiledask.plan.products.product import plan_product
    >>> a, b = Tiling((4, 4), (2,), (Shard(0),)), Tiling((4, 4), (2,), (Shard(1),))
    >>> rates = MachineRates(1e9, 1e9, 1e-6, 1e9, 1e-3, 0.0, 0.0, 0.0, True)
    >>> (found,) = explain_product(plan_product("column_parallel", a, b), 4, 4, rates)
    >>> print(found.program.line_text(1)), found.timeline.makespan < found.makespan
    multiply.0
    (None, True)
    """
    tilings = {"A": plan.a, "B": plan.b, "partial": plan.work}
    sizes = {"A": itemsize, "B": itemsize, "partial": sum_itemsize}

    def kernel(each: Do) -> float:
        told = dict(each.options)
        if each.kernel == "add_up":
            return 2 * region_size(told["into"]) * sum_itemsize / rates.touch
        if each.kernel != "multiply":
            return 0.0
        pairs = len(told["a"]) * len(told["b"])
        m, k, n = told["product"]
        return multiply_seconds(m, k, n, pairs, itemsize, sum_itemsize, rates)

    def fetch(each: Fetch) -> float:
        assert each.source is not None  # blocks lie on ranks
        block = extents_of(tilings[each.array].regions[each.source])
        took = read_seconds(extents_of(each.region), block, sizes[each.array], rates)
        return took + (2 * each.nbytes / rates.touch if each.buffer == "C" else 0.0)

    programs = [multiply_program(plan, itemsize, sum_itemsize)]
    programs += [sum_program(plan, itemsize, sum_itemsize)] * plan.sums
    seconds = kernel, {"fetch": fetch}, {"fetch": lambda each: 0.0}
    return tuple(
        _explained(one, one, seconds, ("fetch",), "this cluster", one_stream=not rates.overlapped)
        for one in programs
    )


def _explained(
    program: Program,
    few: Program,
    seconds: tuple[Callable[[Do], float], dict[str, Any], dict[str, Any]],
    streams: tuple[str, ...],
    cluster: str,
    measured: Mapping[tuple[int, str], float] | None = None,
    one_stream: bool = False,
) -> ProgramExplanation:
    """The explanation of ``program``, for which ``few`` ranks stand. ``seconds``: of its kernels;
    between ranks, as the clock is told; and told that nothing between ranks takes any.
    ``streams``: what may be hidden; it is not where there is ``one_stream``."""
    kernel, between, free = seconds
    in_turn = few.on_compute(*streams).timeline(kernel, **between)
    as_written = in_turn if one_stream else few.timeline(kernel, **between)
    alone = few.timeline(kernel, **free)
    rows = [_rows(few, rank, kernel, between) for rank in range(few.ranks)]
    longest = int(np.argmax([sum(row.seconds for row in mine) for mine in rows]))
    place = int(np.ravel_multi_index(few.coordinates[longest], program.shape))
    said = [
        row._replace(measured=measured.get((place, row.what)) if measured else None)
        for row in rows[longest]
    ]
    return ProgramExplanation(
        program,
        place,
        tuple(sorted(said, key=lambda row: -row.seconds)),
        cluster,
        _whole(as_written),
        _whole(in_turn),
        _whole(alone),
        as_written,
        _held(few),
    )


def _whole(timeline: Timeline) -> float:
    """Seconds from the first span, which may be on its way to the first work, to the last."""
    return float(timeline.end.max() - min(timeline.start.min(), 0.0))


def _rows(
    program: Program,
    rank: int,
    kernel: Callable[[Do], float],
    between: Mapping[str, Any],
) -> list[ProgramRow]:
    role, line = program.role(rank), program.lines[rank]
    often = np.bincount(line.part, minlength=len(role.parts)).tolist()
    found: dict[tuple[str, str], list[float]] = {}

    def add(what: str, each: Instruction, times: int, seconds: float, sent: int = 0) -> None:
        row = found.setdefault((what, each.stream), [0, 0.0, 0])
        row[0] += times
        row[1] += times * seconds
        row[2] += times * sent

    for part, times in zip(role.parts, often, strict=True):
        for each in part.instructions:
            if isinstance(each, Do):
                add(each.kernel, each, times, kernel(each))
            elif isinstance(each, Collective):
                took = between["collective"](each)
                add(each.label, each, times, took, each.cost.sent[0])
            elif isinstance(each, Send):
                size = role.size(each.buffer)
                name = each.buffer.partition(":")[0]
                add(f"send {name}", each, times, size / between["bandwidth"], size)
            elif isinstance(each, Fetch):
                add(f"fetch {each.array}", each, times, between["fetch"](each), each.nbytes)
    return [
        ProgramRow(what, stream, int(times), seconds, int(sent))
        for (what, stream), (times, seconds, sent) in found.items()
    ]


def _held(program: Program) -> tuple[tuple[str, int], ...]:
    """Bytes by tensor class on the fullest rank: what stays by its name, frames as activations."""
    ledger = program.memory
    place = max(ledger.per_place, key=lambda rank: ledger.per_place[rank])
    stays, sums = program.role(place).stays, dict[str, int]()
    for row in ledger.rows:
        if row.place == place:
            name = row.tensor.partition("/")[0].replace("_", " ")
            name = name if row.tensor in stays else "activations"
            sums[name] = sums.get(name, 0) + row.bytes
    return tuple(sorted(sums.items(), key=lambda pair: -pair[1]))
