"""A schedule's program, read from the text that it writes of itself."""

import re
from itertools import chain

from tiledask.errors import ProgramError, short
from tiledask.plan.program.ops import COMPUTE_STREAM, Op, Order, ProgramRole, Step, message

__all__ = ["parsed"]

_RANKS = r"\d{1,8}(?: \d{1,8})*"
_SIZE = r" ?(\S+) (\d{1,18}) B"
_LINE = re.compile(
    rf"program ?(?P<program>.*)|rank (?P<ranks>{_RANKS}):(?P<steps>.*)"
    rf"|of rank (?P<role>{_RANKS}):(?P<sizes>(?:{_SIZE},?)*)|(?P<block>\d{{1,8}}[FBIW]'*)"
    r"|(?:(?P<writes>[^=]+?) = )?do (?P<kernel>[^\s={@]+)(?P<reads>(?: [^\s={@]+)*)"
    r"|(?:send (?P<sent>\S+) to|(?P<came>\S+) = recv from) (?P<peer>\d{1,8})(?: @(?P<stream>\S+))?"
)
_STEP = re.compile(r"(\(?)([^\s().]+)\.(\d{1,9})\)?")
_USUAL_LINES = (
    "'rank 0: 0F.0', 'of rank 0: x1 8 B' before its blocks, and in them 'y = do kernel x', "
    "'send x to 1' or 'x = recv from 0'"
)


def parsed(text: str) -> tuple[tuple[ProgramRole, ...], tuple[Order, ...], tuple[int, ...], str]:
    """(roles, orders, the role of each rank, name) that ``text`` says. Raises ProgramError for a
    line that it cannot read."""
    name, block, roles = "", "", list[ProgramRole]()
    steps, role_of = dict[int, str](), dict[int, int]()
    for number, line in enumerate(map(str.strip, text.splitlines()), 1):
        if not line:
            continue
        found = _LINE.fullmatch(line)
        here = map(int, (found["ranks"] or found["role"] or "").split()) if found else ()
        if found and found["program"] is not None:
            name = found["program"]
        elif found and found["ranks"]:
            steps |= dict.fromkeys(here, found["steps"])
        elif found and found["role"]:
            role_of |= dict.fromkeys(here, len(roles))
            sizes = re.findall(_SIZE, found["sizes"])
            roles.append(ProgramRole({}, {name: int(size) for name, size in sizes}))
        elif found and found["block"] and roles:
            block, roles[-1].blocks[line] = line, ()
        elif found and not found["block"] and roles and roles[-1].blocks:
            if buffer := found["sent"] or found["came"]:
                if buffer not in roles[-1].sizes:
                    way = f"write its size, as in 'of rank 0: {buffer} 8 B'"
                    raise ProgramError(f"line {number}: {buffer} is no buffer of it; {way}")
                kind, stream = "send" if found["sent"] else "recv", found["stream"]
                op = message(kind, buffer, int(found["peer"]), 0, stream or COMPUTE_STREAM)
            else:
                writes = tuple((found["writes"] or "").split())
                op = Op(found["kernel"], tuple(found["reads"].split()), writes)
            roles[-1].blocks[block] += (op,)
        else:
            words = f"line {number} cannot be read: {short(line)}; write {_USUAL_LINES}"
            raise ProgramError(words)
    ranks = range(len(steps))
    if not steps or sorted(steps) != [*ranks] or not set(steps) <= set(role_of):
        raise ProgramError(
            f"ranks are numbered from 0, and each has blocks ('of rank ...'); got lines of "
            f"ranks {sorted(steps)} and blocks of {sorted(role_of)}"
        )
    for op in chain.from_iterable(ops for role in roles for ops in role.blocks.values()):
        if op.kind == "message" and op["peer"] not in ranks:
            raise ProgramError(f"there are ranks 0 to {len(ranks) - 1}, and it says '{op!r}'")
    numbers = tuple(role_of[rank] for rank in ranks)
    orders: dict[tuple[int, str], Order] = {}
    for rank in ranks:
        blocks, order = roles[numbers[rank]].blocks, list[Step]()
        for word in steps[rank].split():
            match = _STEP.fullmatch(word)
            if not match or match[2] not in blocks:
                raise ProgramError(
                    f"rank {rank} has no block {short(word)}; write a block and its micro-batch, "
                    f"as in 0F.3; its blocks are {', '.join(blocks)}"
                )
            order.append(Step(match[2], int(match[3]), bool(match[1])))
        orders.setdefault((numbers[rank], steps[rank]), tuple(order))
    given = tuple(orders[numbers[rank], steps[rank]] for rank in ranks)
    return tuple(roles), given, numbers, name
