"""A program: the ops of every rank, what reads them, and its text.

td.program(schedule)  -->  check      what is missing, out of order, or waited for in a circle
made from shapes           traffic    bytes and messages between ranks: counted
                           memory     what each rank holds: weighed
                           timeline   when everything happens: timed
                           (run)      arrays: tiledask.run_program

program gpipe
rank 0: 0F.0 (0F.1 0B.0)               in parentheses: two blocks at once
of rank 0: x1 8 B, kept0 1 B           what its buffers have
  0F                                   the blocks below, each with its ops
    x1 kept0 = do forward

An op is    [WRITES =] [do] NAME [READS] [to PEER | from PEER [along AXIS]] [{ARGS}] [@STREAM]
A schedule's program is read back; those with state and collectives are for reading only.
"""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, chain, product
from typing import Any, Self

import numpy as np

from tiledask.errors import ProgramError, short
from tiledask.plan.ledger import ALWAYS, Ledger, Row
from tiledask.plan.pipelines.schedule import KINDS, Action, Schedule
from tiledask.plan.pipelines.simulate import simulate
from tiledask.plan.pipelines.timeline import Timeline
from tiledask.plan.products.traffic import Traffic
from tiledask.plan.program.count import moved_by
from tiledask.plan.program.ops import (
    COMPUTE_STREAM,
    Op,
    Order,
    ProgramData,
    ProgramRole,
    Step,
    action_of,
    buffer_of,
    message,
)
from tiledask.plan.program.walk import walk

__all__ = ["Program"]

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


@dataclass(frozen=True, repr=False)
class Program(ProgramData):
    """The ops of every rank.

    >>> import tiledask as td
    >>> print(td.program(td.schedule("gpipe", 2, 1, forward_only=True), block_bytes=8))
    program gpipe, forward only
    rank 0: 0F.0
    rank 1: 1F.0
    of rank 0: x1 8 B
      0F
        x1 = do forward
        send x1 to 1 @to_1
    of rank 1: x1 8 B
      1F
        x1 = recv from 0 @from_0
        do forward x1
    >>> program = td.program(td.schedule("gpipe", 2, 1), block_bytes=8).check()
    >>> program.traffic.sent, program.memory.per_place
    ((8, 8), {0: 9, 1: 9})
    >>> program.timeline({"F": 1.0, "B": 2.0}, latency=0.5).makespan
    7.0
    """

    def check(self) -> Self:
        """The program itself, if it can run and nothing in it is left over.

        Raises ProgramError for the first fault: a buffer that is read before it is written on its
        rank, written twice for a micro-batch, or never read; a message that nobody takes or sends,
        or that is of another size at its other end; a collective that a member leaves out, or
        makes otherwise; ranks that wait for each other in a circle.

        >>> import tiledask as td
        >>> text = td.program(td.schedule("1f1b", 2, 2)).to_text()
        >>> td.Program.from_text(text.replace("send x1 to 1 @to_1", "")).check()
        Traceback (most recent call last):
            ...
        tiledask.errors.ProgramError: deadlock: turn 2 of rank 0, 0B.0: 'dx1 = recv from 1 @from_1' waits for rank 1; turn 0 of rank 1, 1F.0: 'x1 = recv from 0 @from_0' waits for rank 0, which never sends it to rank 1
        """  # noqa: E501
        walk(self)
        return self

    @cached_property
    def traffic(self) -> Traffic:
        """The bytes and messages between ranks: what is sent, and collectives' messages."""
        moved = np.zeros((2, self.ranks, self.ranks), np.int64)
        for ranks in self.alike:
            role, often = self.role(ranks[0]), Counter[Op]()
            for name, times in Counter(step.block for step in self.orders[ranks[0]]).items():
                for op in role.blocks[name]:
                    if op.name == "send":
                        often[op] += times
                    elif op.kind == "collective":
                        args = tuple(arg for arg in op.args if arg[0] != "label")
                        often[Op(op.name, args=args)] += times
            for rank, (op, times) in product(ranks, often.items()):
                if op.name == "send":
                    moved[:, rank, self.peer(rank, op)] += times * role.sizes[op.buffer], times
                else:
                    members, each = self.members(rank, op), moved_by(op)
                    me = members.index(rank)
                    moved[:, rank, members] += times * np.stack([each.bytes[me], each.messages[me]])
        return Traffic(*moved)

    @cached_property
    def memory(self) -> Ledger:
        """What each rank holds at its fullest moment: a row per buffer, for all micro-batches.

            x1 kept0 = do forward    + x1 + kept0    a buffer is there from the op that writes it
            send x1 to 1             - x1            to the end of the last that reads it

        Ops are taken in their order, whatever their stream, so that a send lets its buffer go at
        its turn. State is there at every moment, and what lies within it is no more.
        """
        rows: dict[int, list[tuple[str, str, int, str]]] = {}
        for ranks in self.alike:
            role, order = self.role(ranks[0]), self.orders[ranks[0]]
            ops = [(step, op) for step in order for op in role.blocks[step.block]]
            born: dict[tuple[str, int], int] = {}
            dies: dict[tuple[str, int], int] = {}
            change = [0] * (len(ops) + 1)
            for at, (step, op) in enumerate(ops):
                for name in op.writes:
                    born[buffer_of(name), step.microbatch] = at
                for name in (*op.reads, *op.writes):
                    dies[buffer_of(name), step.microbatch] = at
                if op.args:
                    change[at] += op["work"]
                    change[at + 1] -= op["work"]
            own = role.sizes.keys() - role.alias.keys()
            born = {key: at for key, at in born.items() if key[0] in own}
            for key, at in born.items():
                change[at] += role.sizes[key[0]]
                change[dies[key] + 1] -= role.sizes[key[0]]
            moment, when = int(np.argmax(list(accumulate(change)))), ALWAYS
            found = [(name, ALWAYS, size, "stays") for name, size in role.state.items()]
            if ops:
                step, op = ops[moment]
                when = f"{step.block}.{step.microbatch}"
                alive = Counter(key[0] for key, at in born.items() if at <= moment <= dies[key])
                for name, size in role.sizes.items():
                    if number := alive[name]:
                        found.append((name, when, number * size, f"{number} x {size:g}"))
                found += [("work space", when, op["work"], op.name)] if op["work"] else []
            rows |= dict.fromkeys(ranks, found or [("nothing", when, 0, "")])
        return Ledger.of(Row(rank, *row) for rank in sorted(rows) for row in rows[rank])

    def timeline(self, seconds: Mapping[str, Any], latency: Any = 0.0) -> Timeline:
        """When the actions of a schedule's program happen.

        ``seconds``: by kind, F, B, I or W, as `td.simulate` takes them; so is ``latency``. Raises
        ProgramError for a program that is wrong or has other blocks than actions, and for a kind
        without seconds.
        """
        self.check()
        orders = [
            [Action(*action_of(step.block), step.microbatch) for step in steps]
            for steps in self.orders
        ]
        there = {action.kind for order in orders for action in order}
        if not there or not there <= {*KINDS} & {*seconds}:
            raise ProgramError(
                f"a timeline is of a schedule's program, and takes seconds of its kinds of actions "
                f"({', '.join(KINDS)}); got blocks of {', '.join(sorted(there)) or 'no kind'} and "
                f"seconds of {', '.join(seconds) or 'none'}"
            )
        steps = chain.from_iterable(self.orders)
        pairs = [Action(*action_of(step.block), step.microbatch) for step in steps if step.paired]
        rank_of = {(a.stage, a.microbatch): n for n, order in enumerate(orders) for a in order}
        stages, microbatches = (range(1 + max(numbers)) for numbers in zip(*rank_of, strict=True))
        places = [[rank_of.get((s, i), 0) for s in stages] for i in microbatches]
        schedule = Schedule.of(orders, places, self.name, pairs)
        forward, backward, *halves = map(seconds.get, "FBIW")
        return simulate(schedule, 0.0 if forward is None else forward, backward, latency, *halves)

    # -- text ---------------------------------------------------------------------------------

    def to_text(self) -> str:
        """The whole program. Ranks of one order share a line, and those of one role its blocks."""
        text = [f"program {self.name}".rstrip()]
        if self.mesh:
            text.append(f"mesh {' '.join(map(str, self.mesh))}")
        for ranks in self.alike:
            words = " ".join(map(str, ranks))
            text.append(f"rank {words}: {self.line_text(ranks[0])}".rstrip())
        first = map(self.role_of.index, sorted({*self.role_of}))
        return "\n".join([*text, *map(self.role_text, first)])

    def line_text(self, rank: int) -> str:
        """The order of a rank: blocks, each with its micro-batch.

        >>> import tiledask as td
        >>> td.program(td.schedule("dualpipe", 2, 4)).line_text(0)
        '0F.0 1F.1 0F.2 1B.1 (1F.3 0B.0) 1B.3 0I.2 0W.2'
        """
        words, opened = [], False
        for name, microbatch, paired in self.orders[rank]:
            word = f"{name}.{microbatch}"
            words.append(f"({word}" if paired else f"{word})" if opened else word)
            opened = paired
        return " ".join(words)

    def role_text(self, rank: int) -> str:
        """The role of a rank, with all that have it: its buffers, and blocks with their ops."""
        role, number = self.role(rank), self.role_of[rank]
        ranks = " ".join(str(rank) for rank, of in enumerate(self.role_of) if of == number)
        changed = role.state.keys() - role.accumulators - role.constants
        kinds = {"stays": changed, "scratch": role.accumulators, "given": role.constants}
        heads: dict[str, Mapping[str, int]] = {f"of rank {ranks}:": role.sizes}
        for word, names in kinds.items():
            heads[f"  {word}"] = {n: size for n, size in role.state.items() if n in names}
        text = list[str]()
        for head, sizes in heads.items():
            each = ", ".join(f"{name} {size} B" for name, size in sizes.items())
            text += [f"{head} {each}".rstrip()] if sizes or not text else []
        for name, items in role.items.items():
            shapes = (f"{item} {'x'.join(map(str, shape))}".rstrip() for item, shape in items)
            text.append(f"  in {name}: {', '.join(shapes)}")
        for base in dict.fromkeys(role.alias.values()):
            here = (name for name, of in role.alias.items() if of == base)
            text.append(f"  within {base}: {', '.join(here)}")
        for name, block in role.blocks.items():
            text += [f"  {name}", *(f"    {op!r}" for op in block)]
        return "\n".join(text)

    @classmethod
    def from_text(cls, text: str) -> Self:
        """The program of a schedule that ``text`` says. Raises ProgramError for a line that it
        cannot read.

        >>> import tiledask as td
        >>> text = td.program(td.schedule("zb-h1", 3, 4), block_bytes=16).to_text()
        >>> td.Program.from_text(text).to_text() == text
        True
        """
        name, roles = "", list[ProgramRole]()
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
                roles[-1].blocks[line] = ()
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
                roles[-1].blocks[[*roles[-1].blocks][-1]] += (op,)
            else:
                words = f"line {number} cannot be read: {short(line)}; write {_USUAL_LINES}"
                raise ProgramError(words)
        ranks = range(len(steps))
        if not steps or sorted(steps) != [*ranks] or not set(steps) <= set(role_of):
            raise ProgramError(
                f"ranks are numbered from 0, and each has parts ('of rank ...'); got lines of "
                f"ranks {sorted(steps)} and parts of {sorted(role_of)}"
            )
        for op in (op for role in roles for op in role.ops if op.kind == "message"):
            if op["peer"] not in ranks:
                raise ProgramError(f"there are ranks 0 to {len(ranks) - 1}, and it says '{op!r}'")
        numbers = tuple(role_of[rank] for rank in ranks)
        orders: dict[tuple[int, str], Order] = {}
        for rank in ranks:
            blocks, order = roles[numbers[rank]].blocks, list[Step]()
            for word in steps[rank].split():
                match = _STEP.fullmatch(word)
                if not match or match[2] not in blocks:
                    raise ProgramError(
                        f"rank {rank} has no part {short(word)}; write a part and its frame, as in "
                        f"0F.3; its parts are {', '.join(blocks)}"
                    )
                order.append(Step(match[2], int(match[3]), bool(match[1])))
            orders.setdefault((numbers[rank], steps[rank]), tuple(order))
        given = tuple(orders[numbers[rank], steps[rank]] for rank in ranks)
        return cls(tuple(roles), given, numbers, name)

    __str__ = to_text

    def __repr__(self) -> str:
        name = f"{self.name}: " if self.name else ""
        return f"{type(self).__name__}({name}{self.ranks} ranks)"
