"""The program of a pipeline schedule: the devices are the ranks, an action is a part for a frame.

    F(s)   x_s     = recv from the rank of stage s-1        where it is another one
           x_s+1 kept_s = do forward x_s
           send x_s+1 to the rank of stage s+1
    B(s)   dx_s+1  = recv ...      dx_s = do backward kept_s dx_s+1      send dx_s ...
    I(s)   dx_s dy_s = do backward_input kept_s dx_s+1               where backwards are split
    W(s)   do backward_weight for_w_s dy_s

x_s is what comes into stage s, dx_s the gradient of it, kept_s what the forward leaves for the
backward; for_w_s the part of that which the gradient of the weights needs.
"""

from collections.abc import Sequence

import numpy as np

from tiledask.errors import ScheduleError, short
from tiledask.plan.pipelines.links import CONVENTIONS
from tiledask.plan.pipelines.needs import validate
from tiledask.plan.pipelines.schedule import KINDS, Schedule
from tiledask.plan.program.instructions import (
    COMPUTE_STREAM,
    Do,
    Instruction,
    ProgramLine,
    ProgramPart,
    ProgramRole,
    Recv,
    Send,
)
from tiledask.plan.program.program import Program

__all__ = ["KERNELS", "program"]

KERNELS = {"F": "forward", "B": "backward", "I": "backward_input", "W": "backward_weight"}
"""By kind of action: the name of its kernel."""


def program(
    schedule: Schedule,
    *,
    block_bytes: int | Sequence[int] = 0,
    activation: int = 1,
    weight_part: int | None = None,
    transfers: str = "overlapped",
) -> Program:
    """The Program of ``schedule``: every send and receive of it, and what each rank holds.

    block_bytes    bytes of the activations at a boundary between stages, and of their gradient;
                   one number, or one per boundary
    activation     bytes that a forward keeps for its backward; 1 counts activations
    weight_part    bytes of them that are kept from I to W; default: all
    transfers      "overlapped": sends and receives have streams of their own, one per link;
                   "blocking": they are on the stream of the work

    Raises ScheduleError for an order that cannot run, and for sizes that are negative or too many.

    >>> import tiledask as td
    >>> print(td.program(td.schedule("1f1b", 2, 3)).line_text(0))
    0F.0 0F.1 0B.0 0F.2 0B.1 0B.2
    """
    if not isinstance(schedule, Schedule):
        raise ScheduleError(f"a program is made of td.schedule(...), got {short(schedule)}")
    if transfers not in CONVENTIONS:
        raise ScheduleError(f"transfers are {' or '.join(CONVENTIONS)}, got {short(transfers)}")
    validate(schedule)
    maker = _Maker(schedule, block_bytes, activation, weight_part, transfers == "overlapped")
    roles, lines = zip(*map(maker.rank, range(schedule.devices)), strict=True)
    return Program(roles, lines, tuple(range(schedule.devices)), schedule.name)


class _Maker:
    def __init__(
        self,
        schedule: Schedule,
        block_bytes: int | Sequence[int],
        activation: int,
        weight_part: int | None,
        streams: bool,
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

    def rank(self, device: int) -> tuple[ProgramRole, ProgramLine]:
        """What a device's role is, and its line."""
        schedule = self.schedule
        rows = slice(*schedule.turns[device : device + 2])
        kind, stage, frame = (c[rows] for c in (schedule.kind, schedule.stage, schedule.microbatch))
        replica = frame % schedule.replicas
        codes = (stage * schedule.replicas + replica) * len(KINDS) + kind
        found, part = np.unique(codes, return_inverse=True)
        parts, seen = [], set[tuple[str, int]]()
        for code in found.tolist():
            code, k = divmod(code, len(KINDS))
            s, r = divmod(code, schedule.replicas)
            again = (KINDS[k], s) in seen  # the stage of two replicas on one device
            seen.add((KINDS[k], s))
            parts.append(ProgramPart(KINDS[k], s, self.instructions(KINDS[k], s, r), int(again)))
        line = ProgramLine(part.astype(np.int32), frame.copy(), schedule.paired[rows].copy())
        written = (name for part in parts for each in part.instructions for name in each.writes)
        return ProgramRole(tuple(parts), {name: self.nbytes[name] for name in written}), line

    def instructions(self, kind: str, s: int, replica: int) -> tuple[Instruction, ...]:
        """Those of a part."""
        place, forward = self.schedule.places[replica], kind == "F"
        kept, dy = [f"{name}{s}" for name in self.kept if name != "dy"], f"dy{s}"
        if kind == "W":
            return (Do(KERNELS[kind], (kept[-1], dy)),)
        comes, goes = (s - 1, s + 1) if forward else (s + 1, s - 1)
        x, y = (f"x{s}", f"x{goes}") if forward else (f"dx{comes}", f"dx{s}")
        reads = [x] if 0 <= comes <= self.last else []
        writes = [y] if 0 <= goes <= self.last else []
        made: list[Instruction] = []
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

    def of_stage(self, s: int) -> dict[str, int]:
        """What a forward keeps, and its size."""
        return {f"{name}{s}": size for name, size in self.kept.items()}

    def stream(self, way: str, peer: int) -> str:
        return f"{way}_{peer}" if self.streams else COMPUTE_STREAM
