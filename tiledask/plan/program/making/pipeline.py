"""The program of a pipeline schedule: devices are ranks, an action is a block for a micro-batch.

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

from tiledask.errors import ScheduleError, short
from tiledask.plan.pipelines.costs import numbers
from tiledask.plan.pipelines.schedule import KINDS, Schedule
from tiledask.plan.pipelines.validate import validate
from tiledask.plan.program.ops import Blocks, Op, Order, ProgramRole, Step, add_block, message
from tiledask.plan.program.program import Program
from tiledask.plan.whole import whole_number

__all__ = ["KERNELS", "program"]

KERNELS = {"F": "forward", "B": "backward", "I": "backward_input", "W": "backward_weight"}
"""By kind of action: the name of its kernel."""


def program(
    schedule: Schedule, *, block_bytes: int | Sequence[int] = 0, activation: int = 1
) -> Program:
    """The Program of ``schedule``: every send and receive of it, and what each rank holds.

    block_bytes    bytes of the activations at a boundary between stages, and of their gradient;
                   one number, or one per boundary
    activation     bytes that a forward keeps for its backward; 1 counts activations. Of a backward
                   in two parts the second needs them

    Raises ScheduleError for an order that cannot run, and for sizes that are negative, too many, or
    of no whole numbers.

    >>> import tiledask as td
    >>> print(td.program(td.schedule("1f1b", 2, 3)).line_text(0))
    0F.0 0F.1 0B.0 0F.2 0B.1 0B.2
    """
    if not isinstance(schedule, Schedule):
        raise ScheduleError(f"a program is made of td.schedule(...), got {short(schedule)}")
    validate(schedule)
    last = schedule.stages - 1
    between = numbers(block_bytes, "block_bytes", "bytes", last, "boundary between stages")
    if between.dtype.kind == "f":
        raise ScheduleError(f"block_bytes must be whole numbers, got {short(block_bytes)}")
    activation = whole_number("activation", activation, 0, error=ScheduleError)
    split = any(action.kind == "I" for order in schedule.orders for action in order)
    kept = {"kept": 0, "for_w": activation, "dy": 0} if split else {"kept": activation}
    sizes = {f"{name}{s}": size for s in range(last + 1) for name, size in kept.items()}
    for s, size in enumerate(between.tolist()):
        sizes |= {f"x{s + 1}": size, f"dx{s + 1}": size}
    pipelines, roles, orders = len(schedule.places), list[ProgramRole](), list[Order]()
    paired = iter(schedule.paired.tolist())
    for actions in schedule.orders:
        keys = {(a.stage, a.microbatch % pipelines, KINDS.index(a.kind)) for a in actions}
        blocks: Blocks = {}
        name_of = dict[tuple[int, int, str], str]()
        for stage, pipeline, k in sorted(keys):
            kind = KINDS[k]
            ops = _ops(schedule, kind, stage, pipeline, split)
            name_of[stage, pipeline, kind] = add_block(blocks, f"{stage}{kind}", ops)
        steps = (Step(name_of[s, i % pipelines, kind], i, next(paired)) for kind, s, i in actions)
        orders.append(tuple(steps))
        written = (name for ops in blocks.values() for op in ops for name in op.writes)
        roles.append(ProgramRole(blocks, {name: sizes[name] for name in written}))
    return Program(tuple(roles), tuple(orders), tuple(range(len(roles))), schedule.name)


def _ops(schedule: Schedule, kind: str, s: int, pipeline: int, split: bool) -> tuple[Op, ...]:
    """Those of an action of stage ``s``."""
    place, last, forward = schedule.places[pipeline], schedule.stages - 1, kind == "F"
    kept = [f"kept{s}", f"for_w{s}"] if split else [f"kept{s}"]
    if kind == "W":
        return (Op(KERNELS[kind], (kept[-1], f"dy{s}")),)
    comes, goes = (s - 1, s + 1) if forward else (s + 1, s - 1)
    x, y = (f"x{s}", f"x{goes}") if forward else (f"dx{comes}", f"dx{s}")
    reads = [x] if 0 <= comes <= last else []
    writes = [y] if 0 <= goes <= last else []
    before, after = list[Op](), list[Op]()
    if reads and place[comes] != place[s]:
        before = [message("recv", x, place[comes])]
    if writes and place[goes] != place[s]:
        after = [message("send", y, place[goes])]
    if forward and schedule.trains:
        writes += kept
    elif kind == "I":
        reads, writes = [kept[0], *reads], [*writes, f"dy{s}"]
    elif kind == "B":
        reads = [*kept, *reads]
    return (*before, Op(KERNELS[kind], tuple(reads), tuple(writes)), *after)
