"""Where a step's seconds, bytes and memory go, instruction by instruction, and what overlaps.

    linear                        compute   24 x   ...    a row for each kernel, and for each place
    layer 0/mlp/w_2/forward       tp         4 x   ...    where ranks talk to each other

The seconds are those of a cluster's devices (prices.py); three readings of the clock say what
overlap is worth: the program as it is, with everything on one stream, and with no time between
ranks at all.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tiledask.errors import ProgramError
from tiledask.plan import html
from tiledask.plan.collectives.algorithms import default
from tiledask.plan.collectives.cost import cost
from tiledask.plan.inputs.load import as_cluster
from tiledask.plan.inputs.recipes import Recipe, load_recipe
from tiledask.plan.pipelines.timeline import Timeline
from tiledask.plan.program.instructions import Collective, Do, Instruction, Send
from tiledask.plan.program.prices import prices_of
from tiledask.plan.program.program import Program
from tiledask.plan.units import format_bytes, format_seconds

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["ProgramExplanation", "ProgramRow", "explain_program"]


class ProgramRow(NamedTuple):
    """What one kind of instruction takes in a step, on the rank that takes longest."""

    what: str
    """A kernel; or the label of a collective, or what a message carries."""
    stream: str
    times: int
    seconds: float
    """All of them together."""
    sent: int
    """Bytes."""
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
    """Seconds of the step as it is written."""
    one_stream: float
    """Seconds if collectives were on the stream of the work: nothing but messages overlapped."""
    alone: float
    """Seconds if nothing between ranks took any time."""
    timeline: Timeline = field(repr=False)
    """When everything happens, of one rank of each kind; `tiledask.plots.gantt` draws it."""
    _fullest: tuple[tuple[str, int], ...] = field(repr=False, default=())

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
        import pandas as pd

        frame = pd.DataFrame(self.rows, columns=list(ProgramRow._fields)).set_index("what")
        return frame.dropna(axis="columns", how="all")

    def __repr__(self) -> str:
        return (
            f"ProgramExplanation({self.program.name} on {self.program.ranks} ranks: "
            f"{format_seconds(self.makespan)} a step on {self.cluster}, "
            f"{format_seconds(self.exposed)} of it between ranks, "
            f"{format_seconds(self.hidden)} more hidden)"
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
    kernel, collective = prices.kernels(few), prices.collective(program.shape, exposed=False)
    hop = spec.within_node.latency, spec.within_node.reached

    def reading(of: Program, between: Callable[[Collective], float], *link: float) -> Timeline:
        latency, bandwidth = link or (0.0, float("inf"))
        return of.timeline(kernel, latency=latency, bandwidth=bandwidth, collective=between)

    as_written = reading(few, collective, *hop)
    in_turn = reading(few.on_compute("tp", "dp", "all"), collective, *hop)
    alone = reading(few, lambda each: 0.0)

    rows = [_rows(few, rank, kernel, collective, hop[1]) for rank in range(few.ranks)]
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
        str(spec),
        float(as_written.end.max()),
        float(in_turn.end.max()),
        float(alone.end.max()),
        as_written,
        _held(few),
    )


def _rows(
    program: Program,
    rank: int,
    kernel: Callable[[Do], float],
    collective: Callable[[Collective], float],
    bandwidth: float,
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
                n = len(each.counts)
                algorithm = default(each.kind, n)
                moved = cost(each.kind, algorithm, each.counts, each.itemsize, each.root)
                add(each.label, each, times, collective(each), moved.sent[0])
            elif isinstance(each, Send):
                size = role.size(each.buffer)
                name = each.buffer.partition(":")[0]
                add(f"send {name}", each, times, size / bandwidth, size)
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
