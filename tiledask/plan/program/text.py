"""A program as text that people read, and back.

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
from dataclasses import dataclass, field
from math import prod
from typing import Any, Self

from tiledask.errors import ProgramError, short
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

__all__ = ["ProgramText"]


_STEP = re.compile(r"(\(?)([^\s().]+)\.(\d{1,9})\)?")
_BLOCK = re.compile(r"(?:(\d{1,8})([FBIW])|([a-z]+))('*)(?::(\d{1,9}))?")
_RANKS = r"\d{1,8}(?: \d{1,8})*"
_OP = re.compile(
    r"(?:(?P<writes>\S.*?) = )?(?P<do>do )?(?P<name>[^\s{@=]+)(?P<reads>(?: [^\s{@=]\S*)*?)"
    r"(?: (?P<way>to|from) (?P<peer>\d{1,8})(?: along (?P<axis>\d))?)?"
    r"(?: (?P<args>\{.*\}))?(?: @(?P<stream>[^\s}]+))?"
)


@dataclass
class _Reading:
    """A role, while its lines are read."""

    sizes: dict[str, int]
    state: dict[str, dict[str, int]] = field(default_factory=dict)
    rest: dict[str, Any] = field(default_factory=lambda: {"items": {}, "alias": {}})
    blocks: list[tuple[Any, ...]] = field(default_factory=list)

    def made(self) -> ProgramRole:
        state = {name: size for sizes in self.state.values() for name, size in sizes.items()}
        kinds = (frozenset(self.state.get(word, ())) for word in ("scratch", "given"))
        blocks = [Block(kind, stage, tuple(ops), *more) for kind, stage, ops, *more in self.blocks]
        return ProgramRole.of(blocks, self.sizes, state, *kinds, **self.rest)


class ProgramText(ProgramData):
    """A program that people read, and write."""

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
        name, mesh, roles = "", tuple[int, ...](), list[_Reading]()
        orders, role_of = dict[int, str](), dict[int, int]()
        for number, line in enumerate(text.splitlines(), 1):
            words = line.strip()
            if found := re.fullmatch(r"program ?(.*)", words):
                name = found[1]
            elif found := re.fullmatch(r"mesh((?: \d{1,8})+)", words):
                mesh = tuple(map(int, found[1].split()))
            elif found := re.fullmatch(rf"rank ({_RANKS}):(.*)", words):
                orders |= dict.fromkeys(map(int, found[1].split()), found[2].strip())
            elif found := re.fullmatch(rf"of rank ({_RANKS}):(.*)", words):
                role_of |= dict.fromkeys(map(int, found[1].split()), len(roles))
                roles.append(_Reading(_read_sizes(number, words, found[2])))
            elif words and not (roles and _read_of_role(roles[-1], number, words)):
                raise _unreadable(
                    number, words, "'rank 0: ...', or 'of rank 0: ...' before its blocks"
                )
        ranks = range(len(orders))
        if not orders or sorted(orders) != [*ranks] or not set(orders) <= set(role_of):
            raise ProgramError(
                f"ranks are numbered from 0 and each has parts ('of rank ...'); got lines of ranks "
                f"{sorted(orders)} and parts of {sorted(role_of)}"
            )
        if mesh and prod(mesh) != len(orders):
            raise ProgramError(
                f"a mesh {mesh} has {prod(mesh)} ranks, and {len(orders)} have lines"
            )
        made = tuple(role.made() for role in roles)
        read: dict[tuple[int, str], Order] = {}
        for rank in ranks:
            key = role_of[rank], orders[rank]
            if key not in read:
                read[key] = _order(orders[rank], made[role_of[rank]], rank)
        all_orders = tuple(read[role_of[rank], orders[rank]] for rank in ranks)
        return cls(made, all_orders, tuple(role_of[rank] for rank in ranks), name, mesh)

    def __str__(self) -> str:
        return self.to_text()

    def __repr__(self) -> str:
        name = f"{self.name}: " if self.name else ""
        return f"{type(self).__name__}({name}{self.ranks} ranks, {len(self):,} instructions)"


def _sizes(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {size} B" for name, size in sizes.items())


def _read_of_role(role: _Reading, number: int, words: str) -> bool:
    """Whether a line was one of a role's: of its buffers, or of a block."""
    if found := re.fullmatch(r"(stays|scratch|given) (.*)", words):
        role.state[found[1]] = _read_sizes(number, words, found[2])
    elif found := re.fullmatch(r"in (\S+): (.*)", words):
        items = (item.split() for item in found[2].split(","))
        role.rest["items"][found[1]] = tuple(
            (name, tuple(map(int, shape[0].split("x"))) if shape else ()) for name, *shape in items
        )
    elif found := re.fullmatch(r"within (\S+): (.+)", words):
        role.rest["alias"] |= dict.fromkeys(found[2].split(", "), found[1])
    elif found := _BLOCK.fullmatch(words):
        stage, kind = (int(found[1]), found[2]) if found[1] else (-1, found[3])
        rows = int(found[5]) if found[5] else None
        role.blocks.append((kind, stage, [], len(found[4]), rows))
    elif role.blocks:
        role.blocks[-1][2].append(_op(number, words))
    else:
        return False
    return True


def _read_sizes(number: int, words: str, text: str) -> dict[str, int]:
    sizes = [part.split() for part in text.split(",") if part.strip()]
    try:
        return {name: int(size) for name, size, _ in sizes}
    except ValueError:
        raise _unreadable(number, words, "sizes, as in x1 8 B, kept0 1 B") from None


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


def _op(number: int, words: str) -> Op:
    if found := _OP.fullmatch(words):
        name, stream = found["name"], found["stream"] or COMPUTE_STREAM
        writes, reads = ((found[of] or "").split() for of in ("writes", "reads"))
        shape = len(reads), len(writes), found["way"]
        try:
            args = ast.literal_eval(found["args"] or "{}")
            if name in COLLECTIVES and not found["do"] and shape == (1, 1, None):
                return collective(name, reads[0], writes[0], stream=stream, **args)
            if not found["do"] and (name, *shape) in (("send", 1, 0, "to"), ("recv", 0, 1, "from")):
                axis = int(found["axis"] or 0)
                return message(name, (*reads, *writes)[0], int(found["peer"]), stream, axis)
            if name == "stop" and reads[:2] == ["if", "not"] and len(reads) == 3:
                return Op(name, (reads[2],), (), (), stream)
            op = Op(name, tuple(reads), tuple(writes), tuple(args.items()), stream)
            if found["do"] and op.is_kernel and not found["way"]:
                return op
        except (ValueError, SyntaxError, TypeError, AttributeError):
            pass
    raise _unreadable(
        number, words, "'y = do kernel x', 'send x to 1', 'x = recv from 0' or 'y = all_reduce x {"
        "'axes': (0,), 'counts': (4, 4), 'itemsize': 8}'"
    )  # fmt: skip


def _unreadable(number: int, words: str, wanted: str) -> ProgramError:
    return ProgramError(f"line {number} cannot be read: {short(words)}; write {wanted}")
