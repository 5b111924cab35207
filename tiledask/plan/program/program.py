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
"""

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any, Self

from tiledask.errors import ProgramError, short
from tiledask.plan.ledger import Ledger
from tiledask.plan.pipelines.schedule import KINDS, Action, Schedule
from tiledask.plan.pipelines.simulate import simulate
from tiledask.plan.pipelines.timeline import Timeline
from tiledask.plan.products.traffic import Traffic
from tiledask.plan.program.count import count, memory
from tiledask.plan.program.ops import (
    COLLECTIVES,
    COMPUTE_STREAM,
    Block,
    Op,
    Order,
    ProgramData,
    ProgramRole,
    Step,
    collective,
    message,
)
from tiledask.plan.program.walk import walk

__all__ = ["Program"]

_RANKS = r"\d{1,8}(?: \d{1,8})*"
_HEAD = re.compile(rf"rank (?P<order>{_RANKS}):(?P<steps>.*)|mesh (?P<mesh>{_RANKS})|program ?(.*)")
_ROLE = re.compile(rf"of rank ({_RANKS}):(.*)")
_STATE = re.compile(r"(stays|scratch|given) (.*)")
_FLAT = re.compile(r"(in|within) (\S+): (.+)")
_BLOCK = re.compile(r"(?:(\d{1,8})([FBIW])|([a-z]+))('*)(?::(\d{1,9}))?")
_STEP = re.compile(r"(\(?)([^\s().]+)\.(\d{1,9})\)?")
_OP = re.compile(
    r"(?:(?P<writes>\S.*?) = )?(?P<do>do )?(?P<name>[^\s{@=]+)(?P<reads>(?: [^\s{@=]\S*)*?)"
    r"(?: (?P<way>to|from) (?P<peer>\d{1,8})(?: along (?P<axis>\d))?)?"
    r"(?: (?P<args>\{.*\}))?(?: @(?P<stream>[^\s}]+))?"
)
_USUAL_LINES = (
    "'rank 0: 0F.0', 'of rank 0: x1 8 B' before its blocks, and in them 'y = do kernel x', "
    "'send x to 1', 'x = recv from 0' or 'y = all_reduce x {'axes': ..., 'counts': ...}'"
)


@dataclass(frozen=True, repr=False)
class Program(ProgramData):
    """The ops of every rank.

    >>> import tiledask as td
    >>> program = td.program(td.schedule("gpipe", 2, 1), block_bytes=8)
    >>> print(program)
    program gpipe
    rank 0: 0F.0 0B.0
    rank 1: 1F.0 1B.0
    of rank 0: x1 8 B, kept0 1 B, dx1 8 B
      0F
        x1 kept0 = do forward
        send x1 to 1 @to_1
      0B
        dx1 = recv from 1 @from_1
        do backward kept0 dx1
    of rank 1: x1 8 B, kept1 1 B, dx1 8 B
      1F
        x1 = recv from 0 @from_0
        kept1 = do forward x1
      1B
        dx1 = do backward kept1
        send dx1 to 0 @to_0
    >>> program.check().traffic.sent, program.memory.per_place
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
        """The bytes and messages between ranks: counted, order by order."""
        return count(self)

    @cached_property
    def memory(self) -> Ledger:
        """What each rank holds at its fullest moment, as its order goes on."""
        return memory(self)

    def timeline(self, seconds: Mapping[str, Any], latency: Any = 0.0) -> Timeline:
        """When the actions of a schedule's program happen.

        ``seconds``: by kind, F, B, I or W, as `td.simulate` takes them; so is ``latency``. Raises
        ProgramError for a program that is wrong or has other blocks than actions, and for a kind
        without seconds.
        """
        self.check()
        orders, pairs = list[list[Action]](), list[Action]()
        for rank, steps in enumerate(self.orders):
            blocks = self.role(rank).blocks
            orders.append([Action(blocks[n].kind, blocks[n].stage, i) for n, i, _ in steps])
            pairs += [a for a, step in zip(orders[-1], steps, strict=True) if step.paired]
        there = {action.kind for order in orders for action in order}
        if not there or not there <= {*KINDS} & {*seconds}:
            raise ProgramError(
                f"a timeline is of a schedule's program, and takes seconds of its kinds of actions "
                f"({', '.join(KINDS)}); got blocks of {', '.join(sorted(there)) or 'no kind'} and "
                f"seconds of {', '.join(seconds) or 'none'}"
            )
        rank_of = {
            (a.stage, a.microbatch): rank for rank, order in enumerate(orders) for a in order
        }
        stages, microbatches = (1 + max(numbers) for numbers in zip(*rank_of, strict=True))
        pipelines = next(
            n
            for n in range(1, microbatches + 1)
            if all(rank == rank_of.get((s, i % n), rank) for (s, i), rank in rank_of.items())
        )
        places = [[rank_of.get((s, i), 0) for s in range(stages)] for i in range(pipelines)]
        forward, backward, *halves = map(seconds.get, "FBIW")
        schedule = Schedule.of(orders, places, self.name, pairs)
        return simulate(schedule, 0.0 if forward is None else forward, backward, latency, *halves)

    # -- text ---------------------------------------------------------------------------------

    def to_text(self) -> str:
        """The whole program. Ranks of one order share a line, and those of one role its blocks."""
        text = [f"program {self.name}".rstrip()]
        if self.mesh:
            text.append(f"mesh {' '.join(map(str, self.mesh))}")
        alike: dict[tuple[int, int], list[int]] = {}
        for rank, order in enumerate(self.orders):
            alike.setdefault((self.role_of[rank], id(order)), []).append(rank)
        for ranks in alike.values():
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
        ranks = [rank for rank, of in enumerate(self.role_of) if of == number]
        text = [f"of rank {' '.join(map(str, ranks))}: {_sizes(role.sizes)}".rstrip()]
        changed = role.state.keys() - role.accumulators - role.constants
        kinds = {"stays": changed, "scratch": role.accumulators, "given": role.constants}
        for word, names in kinds.items():
            if sizes := {name: size for name, size in role.state.items() if name in names}:
                text.append(f"  {word} {_sizes(sizes)}")
        for name, items in role.items.items():
            shapes = (f"{item} {'x'.join(map(str, shape))}".rstrip() for item, shape in items)
            text.append(f"  in {name}: {', '.join(shapes)}")
        for base in dict.fromkeys(role.alias.values()):
            here = (name for name, of in role.alias.items() if of == base)
            text.append(f"  within {base}: {', '.join(here)}")
        for block in role.blocks.values():
            text += [f"  {block.name}", *(f"    {op!r}" for op in block.ops)]
        return "\n".join(text)

    @classmethod
    def from_text(cls, text: str) -> Self:
        """The program that ``text`` says. Raises ProgramError for a line that it cannot read.

        >>> import tiledask as td
        >>> text = td.program(td.schedule("zb-h1", 3, 4), block_bytes=16).to_text()
        >>> td.Program.from_text(text).to_text() == text
        True
        """
        name, mesh, roles = "", tuple[int, ...](), list[dict[str, Any]]()
        steps, role_of = dict[int, str](), dict[int, int]()
        for number, line in enumerate(map(str.strip, text.splitlines()), 1):
            try:
                if found := _HEAD.fullmatch(line):
                    name = name if found[4] is None else found[4]
                    mesh = _numbers(found["mesh"]) or mesh
                    steps |= dict.fromkeys(_numbers(found["order"]), (found["steps"] or "").strip())
                elif found := _ROLE.fullmatch(line):
                    role_of |= dict.fromkeys(_numbers(found[1]), len(roles))
                    roles.append({"blocks": [], "sizes": _read_sizes(found[2]), "state": {}})
                elif line:
                    _read_of_role(roles[-1], line)
            except (ValueError, SyntaxError, TypeError, AttributeError, LookupError):
                words = f"line {number} cannot be read: {short(line)}; write {_USUAL_LINES}"
                raise ProgramError(words) from None
        ranks = range(len(steps))
        missing = not steps or sorted(steps) != [*ranks] or not set(steps) <= set(role_of)
        if missing or (mesh and prod(mesh) != len(steps)):
            raise ProgramError(
                f"ranks are numbered from 0, as many as the mesh {mesh or '()'} has, and each has "
                f"parts ('of rank ...'); got lines of ranks {sorted(steps)} and parts of "
                f"{sorted(role_of)}"
            )
        made = tuple(ProgramRole.of(**role) for role in roles)
        numbers = tuple(role_of[rank] for rank in ranks)
        orders = {(numbers[r], steps[r]): _order(steps[r], made[numbers[r]], r) for r in ranks}
        return cls(made, tuple(orders[numbers[r], steps[r]] for r in ranks), numbers, name, mesh)

    def __str__(self) -> str:
        return self.to_text()

    def __repr__(self) -> str:
        name = f"{self.name}: " if self.name else ""
        return f"{type(self).__name__}({name}{self.ranks} ranks, {len(self):,} instructions)"


def _sizes(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {size} B" for name, size in sizes.items())


def _read_sizes(text: str) -> dict[str, int]:
    sizes = (part.split() for part in text.split(",") if part.strip())
    return {name: int(size) for name, size, _ in sizes}


def _numbers(text: str | None) -> tuple[int, ...]:
    return tuple(map(int, (text or "").split()))


def _read_of_role(role: dict[str, Any], line: str) -> None:
    """A line of a role's buffers, or of a block."""
    if found := _STATE.fullmatch(line):
        sizes = _read_sizes(found[2])
        role["state"] |= sizes
        if found[1] != "stays":
            role["accumulators" if found[1] == "scratch" else "constants"] = frozenset(sizes)
    elif found := _FLAT.fullmatch(line):
        names = found[3].split(", ")
        if found[1] == "within":
            role.setdefault("alias", {}).update(dict.fromkeys(names, found[2]))
            return
        items = ((name, *shape) for name, *shape in map(str.split, names))
        shapes = ((name, shape[0].split("x") if shape else ()) for name, *shape in items)
        flat = tuple((name, tuple(map(int, shape))) for name, shape in shapes)
        role.setdefault("items", {})[found[2]] = flat
    elif found := _BLOCK.fullmatch(line):
        stage, kind = (int(found[1]), found[2]) if found[1] else (-1, found[3])
        rows = int(found[5]) if found[5] else None
        role["blocks"].append(Block(kind, stage, (), len(found[4]), rows))
    else:
        block = role["blocks"].pop()
        role["blocks"].append(replace(block, ops=(*block.ops, _op(line))))


def _order(text: str, role: ProgramRole, rank: int) -> Order:
    found = []
    for word in text.split():
        match = _STEP.fullmatch(word)
        if not match or match[2] not in role.blocks:
            raise ProgramError(
                f"rank {rank} has no part {short(word)}; write a part and its frame, as in 0F.3; "
                f"its parts are {', '.join(role.blocks)}"
            )
        found.append(Step(match[2], int(match[3]), bool(match[1])))
    return tuple(found)


def _op(line: str) -> Op:
    """Raises ValueError for what is none."""
    if not (found := _OP.fullmatch(line)):
        raise ValueError(line)
    name, stream = found["name"], found["stream"] or COMPUTE_STREAM
    writes, reads = (tuple((found[of] or "").split()) for of in ("writes", "reads"))
    args, shape = ast.literal_eval(found["args"] or "{}"), (len(reads), len(writes), found["way"])
    if found["do"]:
        op = Op(name, reads, writes, tuple(args.items()), stream)
        if op.is_kernel and not found["way"]:
            return op
    elif name in COLLECTIVES and shape == (1, 1, None):
        return collective(name, reads[0], writes[0], stream=stream, **args)
    elif (name, *shape) in (("send", 1, 0, "to"), ("recv", 0, 1, "from")):
        axis = int(found["axis"] or 0)
        return message(name, (*reads, *writes)[0], int(found["peer"]), stream, axis)
    elif name == "stop" and reads[:2] == ("if", "not") and len(reads) == 3:
        return Op(name, reads[2:], (), (), stream)
    raise ValueError(line)
