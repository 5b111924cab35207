"""The program of a pipeline schedule: the devices are the ranks, an action is a part for a frame.

    F(s)   x_s     = recv from the rank of stage s-1        where it is another one
           x_s+1 kept_s = do forward x_s
           send x_s+1 to the rank of stage s+1
    B(s)   dx_s+1  = recv ...      dx_s = do backward kept_s dx_s+1      send dx_s ...
    I(s)   dx_s dy_s = do backward_input kept_s dx_s+1               where backwards are split
    W(s)   do backward_weight for_w_s dy_s

x_s is what comes into stage s, dx_s the gradient of it, kept_s what the forward leaves for the
backward; for_w_s the part of that which the gradient of the weights needs.

Where a stage is on several devices, each has summed the gradients of its micro-batches, and at the
end they are summed over these devices:

    REDUCE_GRAD(s)   gradients_s = do pack      sum_s = all_reduce gradients_s      do unpack sum_s
"""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tiledask.errors import ScheduleError, short
from tiledask.plan.collectives.cost import even
from tiledask.plan.pipelines.needs import validate
from tiledask.plan.pipelines.schedule import KINDS, Schedule
from tiledask.plan.program.instructions import (
    COMPUTE_STREAM,
    AllReduce,
    Do,
    Instruction,
    ProgramLine,
    ProgramPart,
    ProgramRole,
    Recv,
    Send,
)
from tiledask.plan.program.program import Program
from tiledask.plan.whole import whole_number

__all__ = ["KERNELS", "PACKING", "program"]

KERNELS = {"F": "forward", "B": "backward", "I": "backward_input", "W": "backward_weight"}
"""By kind of action: the name of its kernel."""
PACKING = ("pack", "unpack")
"""From a stage's gradients to an array of all of them; and back, once it is summed."""


def program(
    schedule: Schedule,
    *,
    block_bytes: int | Sequence[int] = 0,
    activation: int = 1,
    weight_part: int | None = None,
    transfers: str = "overlapped",
    weight_bytes: int | Sequence[int] = 0,
    itemsize: int = 1,
) -> Program:
    """The Program of ``schedule``: every send and receive of it, and what each rank holds.

    block_bytes    bytes of the activations at a boundary between stages, and of their gradient;
                   one number, or one per boundary
    activation     bytes that a forward keeps for its backward; 1 counts activations
    weight_part    bytes of them that are kept from I to W; default: all
    transfers      "overlapped": sends and receives have streams of their own, one per link;
                   "blocking": they are on the stream of the work, into buffers (a program has no
                   sends that wait for their receiver)
    weight_bytes   of a stage's weights, and of its gradients; one number, or one per stage. With it
                   the gradients of a stage that is on several devices are summed over these at the
                   end
    itemsize       bytes of a number in them: of a sum each device adds up whole ones

    Raises ScheduleError for an order that cannot run, and for sizes that are negative, too many, or
    of no whole numbers.

    >>> import tiledask as td
    >>> print(td.program(td.schedule("1f1b", 2, 3)).line_text(0))
    0F.0 0F.1 0B.0 0F.2 0B.1 0B.2
    >>> twice = td.program(td.schedule("chimera", 2, 2), weight_bytes=(8, 0))
    >>> print(twice.line_text(1))
    0F.1 1F.0 1B.0 0B.1 0REDUCE_GRAD.0
    >>> twice.traffic.bytes.tolist()
    [[0, 8], [8, 0]]
    """
    if not isinstance(schedule, Schedule):
        raise ScheduleError(f"a program is made of td.schedule(...), got {short(schedule)}")
    if transfers not in ("overlapped", "blocking"):
        raise ScheduleError(
            f"a program's transfers are overlapped or blocking, got {short(transfers)}"
        )
    validate(schedule)
    weights = _OfStages.of(schedule.stages, weight_bytes, itemsize)
    streams = transfers == "overlapped"
    maker = _Maker(schedule, block_bytes, activation, weight_part, streams, weights)
    devices = range(schedule.devices)
    roles, lines = zip(*map(maker.rank, devices), strict=True)
    return Program(roles, lines, tuple(devices), schedule.name)


class _OfStages(NamedTuple):
    """What stages have of weights, and of their gradients as much."""

    sizes: list[int]
    """By stage, bytes."""
    itemsize: int

    @classmethod
    def of(cls, stages: int, weight_bytes: int | Sequence[int], itemsize: int) -> "_OfStages":
        """As `program` is told. Raises ScheduleError for what cannot be."""
        sizes = np.asarray(weight_bytes)
        if sizes.dtype.kind not in "iu" or sizes.shape not in ((), (stages,)) or (sizes < 0).any():
            raise ScheduleError(
                f"weight_bytes must be one whole number of 0 or more, or one per stage, {stages}; "
                f"got {short(weight_bytes)}"
            )
        itemsize = whole_number("itemsize", itemsize, 1, error=ScheduleError)
        if (sizes % itemsize).any():
            raise ScheduleError(
                f"weights are whole numbers of {itemsize} bytes, got weight_bytes "
                f"{short(weight_bytes)}; give multiples of {itemsize}, or another itemsize"
            )
        return cls(np.broadcast_to(sizes, stages).tolist(), itemsize)


class _Maker:
    def __init__(
        self,
        schedule: Schedule,
        block_bytes: int | Sequence[int],
        activation: int,
        weight_part: int | None,
        streams: bool,
        weights: _OfStages,
    ) -> None:
        last, sizes = schedule.stages - 1, np.asarray(block_bytes)
        if sizes.dtype.kind not in "iu" or sizes.shape not in ((), (last,)):
            raise ScheduleError(
                f"block_bytes must be one whole number or one per boundary between stages, "
                f"{last} for {schedule.stages} stages; got {short(block_bytes)}"
            )
        part = activation if weight_part is None else weight_part
        for name, value in (("block_bytes", sizes.min(initial=0)), ("weight_part", part)):
            if value < 0:
                raise ScheduleError(f"{name} must be 0 or more bytes, got {value}")
        if not part <= activation:
            raise ScheduleError(
                f"weight_part is a part of activation: {part} of {activation} would be kept"
            )
        self.schedule, self.last, self.streams = schedule, last, streams
        self.kept = {"kept": activation}
        if (schedule.kind == KINDS.index("I")).any():
            self.kept = {"kept": activation - part, "for_w": part, "dy": 0}
        self.nbytes = {
            f"{kind}{s + 1}": size
            for s, size in enumerate(np.broadcast_to(sizes, last).tolist())
            for kind in ("x", "dx")
        } | {name: size for s in range(schedule.stages) for name, size in self.of_stage(s).items()}
        """By buffer: its size."""
        self.weights, self.itemsize = weights

    def rank(self, device: int) -> tuple[ProgramRole, ProgramLine]:
        """What a device's role is, and its line."""
        return self._summed(device, *self._alone(device))

    def _summed(
        self, device: int, role: ProgramRole, line: ProgramLine
    ) -> tuple[ProgramRole, ProgramLine]:
        """The same, and at the end the gradients of stages that are on several devices, summed."""
        schedule, parts, sizes = self.schedule, list(role.parts), dict(role.nbytes)
        for s, size in enumerate(self.weights):
            among = schedule.holders(s)
            if not (size and schedule.trains and device in among and len(among) > 1):
                continue
            gradients, total, told = f"gradients{s}", f"sum{s}", f"{s}/gradients"
            counts, width = even(size // self.itemsize, len(among)), self.itemsize
            summed = (
                Do(PACKING[0], (), (gradients,)),
                AllReduce(gradients, total, (0,), counts, width, told, tuple(sorted(among))),
                Do(PACKING[1], (total,)),
            )
            parts.append(ProgramPart("REDUCE_GRAD", s, summed))
            sizes |= {gradients: size, total: size}
        numbers = np.arange(len(role.parts), len(parts), dtype=np.int32)
        more = (numbers, np.zeros_like(numbers), np.zeros(len(numbers), np.bool_))
        both = zip((line.part, line.frame, line.paired), more, strict=True)
        return ProgramRole(tuple(parts), sizes), ProgramLine(*map(np.concatenate, both))

    def _alone(self, device: int) -> tuple[ProgramRole, ProgramLine]:
        """What a device does, and its line, but for sums of gradients."""
        schedule = self.schedule
        rows = slice(*schedule.turns[device : device + 2])
        kind, stage, frame = (c[rows] for c in (schedule.kind, schedule.stage, schedule.microbatch))
        codes = (stage * schedule.pipelines + frame % schedule.pipelines) * len(KINDS) + kind
        found, code = np.unique(codes, return_inverse=True)
        numbers, known = [], dict[tuple[str, int, tuple[Instruction, ...]], int]()
        for each in found.tolist():
            each, k = divmod(each, len(KINDS))
            s, pipeline = divmod(each, schedule.pipelines)
            does = KINDS[k], s, self.instructions(KINDS[k], s, pipeline)
            numbers.append(known.setdefault(does, len(known)))
        again, parts = Counter[tuple[str, int]](), list[ProgramPart]()
        for word, s, instructions in known:  # of several pipelines those that differ
            parts.append(ProgramPart(word, s, instructions, again[word, s]))
            again[word, s] += 1
        part = np.array(numbers, np.int32)[code]
        line = ProgramLine(part, frame.copy(), schedule.paired[rows].copy())
        written = (name for part in parts for each in part.instructions for name in each.writes)
        sizes = {name: self.nbytes[name] for name in written if name in self.nbytes}
        return ProgramRole(tuple(parts), sizes), line

    def instructions(self, kind: str, s: int, pipeline: int) -> tuple[Instruction, ...]:
        """Those of a part."""
        place, forward = self.schedule.places[pipeline], kind == "F"
        kept, dy = [f"{name}{s}" for name in self.kept if name != "dy"], f"dy{s}"
        if kind == "W":
            return (Do(KERNELS[kind], (kept[-1], dy)),)
        made = list[Instruction]()
        comes, goes = (s - 1, s + 1) if forward else (s + 1, s - 1)
        x, y = (f"x{s}", f"x{goes}") if forward else (f"dx{comes}", f"dx{s}")
        reads = [x] if 0 <= comes <= self.last else []
        writes = [y] if 0 <= goes <= self.last else []
        if reads and place[comes] != place[s]:
            made.append(Recv(x, place[comes], self.stream("from", place[comes])))
        sends = [Send(y, place[goes], self.stream("to", place[goes]))] if writes else []
        if forward and self.schedule.trains:
            writes += kept
        elif kind == "I":
            reads, writes = [kept[0], *reads], [*writes, dy]
        elif kind == "B":
            reads = [*kept, *reads]
        made.append(Do(KERNELS[kind], tuple(reads), tuple(writes)))
        return (*made, *(send for send in sends if send.peer != place[s]))

    # -- names and sizes ---------------------------------------------------------------------------

    def of_stage(self, s: int) -> dict[str, int]:
        """What a forward keeps, and its size."""
        return {f"{name}{s}": size for name, size in self.kept.items()}

    def stream(self, way: str, peer: int) -> str:
        return f"{way}_{peer}" if self.streams else COMPUTE_STREAM
