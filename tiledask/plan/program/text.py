"""A program as text that people read, and back.

program gpipe
rank 0: 0F.0 (0F.1 0B.0)               in parentheses: two parts at once
of rank 0: x1 8 B, kept0 1 B           what its buffers have
  0F                                   the parts below, each with its instructions
    x1 kept0 = do forward
"""

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod

import numpy as np

from tiledask.errors import ProgramError, short
from tiledask.plan.program.instructions import (
    COLLECTIVES,
    COMPUTE_STREAM,
    Do,
    Fetch,
    Instruction,
    Instructions,
    Items,
    Keep,
    ProgramLine,
    ProgramPart,
    ProgramRole,
    Recv,
    Send,
    Stop,
)

__all__ = ["from_text", "line_text", "role_text", "to_text"]


def line_text(program: Instructions, rank: int) -> str:
    """What a rank goes through: parts, each with its frame.

    >>> import tiledask as td
    >>> line_text(td.program(td.schedule("dualpipe", 2, 4)), 0)
    '0F.0 1F.1 0F.2 1B.1 (1F.3 0B.0) 1B.3 0I.2 0W.2'
    """
    line, names = program.lines[rank], [part.name for part in program.role(rank).parts]
    words, opened = [], False
    for (part, frame), paired in zip(line, line.paired.tolist(), strict=True):
        word = f"{names[part]}.{frame}"
        words.append(f"({word}" if paired else f"{word})" if opened else word)
        opened = paired
    return " ".join(words)


def to_text(program: Instructions) -> str:
    """The whole program. Ranks of one line, and of one role, are said together."""
    text = [f"program {program.name}".rstrip()]
    if program.mesh:
        text.append(f"mesh {' '.join(map(str, program.mesh))}")
    lines: dict[tuple[int, int], list[int]] = {}
    for rank, line in enumerate(program.lines):
        lines.setdefault((program.of_rank[rank], id(line)), []).append(rank)
    for ranks in lines.values():
        words = " ".join(map(str, ranks))
        text.append(f"rank {words}: {line_text(program, ranks[0])}".rstrip())
    text += [_role_text(program, number) for number in range(len(program.roles))]
    return "\n".join(text)


def role_text(program: Instructions, rank: int) -> str:
    """The buffers of a rank and its parts, each with its instructions.

    >>> import tiledask as td
    >>> print(role_text(td.program(td.schedule("gpipe", 2, 1), block_bytes=8), 1))
    of rank 1: x1 8 B, kept1 1 B, dx1 8 B
      1F
        x1 = recv from 0 @from_0
        kept1 = do forward x1
      1B
        dx1 = do backward kept1
        send dx1 to 0 @to_0
    """
    return _role_text(program, program.of_rank[rank])


def _role_text(program: Instructions, number: int) -> str:
    """A role, with all ranks that have it."""
    role = program.roles[number]
    ranks = [rank for rank, of in enumerate(program.of_rank) if of == number]
    text = [f"of rank {' '.join(map(str, ranks))}: {_sizes(role.nbytes)}".rstrip()]
    for word, names in _kept(role).items():
        sizes = {name: role.stays[name] for name in role.stays if name in names}
        text += [f"  {word} {_sizes(sizes)}"] * bool(sizes)
    for name, items in role.items.items():
        shapes = (f"{item} {'x'.join(map(str, shape))}".rstrip() for item, shape in items)
        text.append(f"  in {name}: {', '.join(shapes)}")
    for base in dict.fromkeys(role.within.values()):
        here = (name for name, of in role.within.items() if of == base)
        text.append(f"  within {base}: {', '.join(here)}")
    for part in role.parts:
        text += [f"  {part.name}", *(f"    {each!r}" for each in part.instructions)]
    return "\n".join(text)


def _kept(role: ProgramRole) -> dict[str, frozenset[str]]:
    """Word -> names of what stays."""
    changed = frozenset(role.stays) - role.scratch - role.given
    return {"stays": changed, "scratch": role.scratch, "given": role.given}


def _sizes(nbytes: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {size} B" for name, size in nbytes.items())


_WORD = re.compile(r"(\(?)([^\s().]+)\.(\d{1,9})(\)?)")
_PART = re.compile(r"(?:(\d{1,8})([FBIW]|REDUCE_GRAD)|([a-z]+))('*)(?::(\d{1,9}))?")
_RANKS = r"\d{1,8}(?: \d{1,8})*"
_SEND = re.compile(r"send (\S+) to (\d{1,8})(?: along (\d))?")
_RECV = re.compile(r"(\S+) = recv from (\d{1,8})(?: along (\d))?")
_DO = re.compile(r"(?:(\S.*) = )?do (\S+)((?: [^\s{]\S*)*)(?: (\{.*\}))?")
_COLLECTIVE = re.compile(rf"(?:(\S+) = )?({'|'.join(COLLECTIVES)})(?: ([^\s{{]\S*))? (\{{.*\}})")
_FETCH = re.compile(r"(\S+) = fetch (\S+)(?: from (\d{1,8}))? (\{.*\})")
_KEEP = re.compile(r"keep (\S+) as (\S+) (\{.*\})")
_STOP = re.compile(r"stop if not (\S+)")


def from_text(text: str) -> Instructions:
    """The instructions that ``text`` says. Raises ProgramError for a line that it cannot read.

    >>> import tiledask as td
    >>> text = to_text(td.program(td.schedule("zb-h1", 3, 4), block_bytes=16))
    >>> to_text(from_text(text)) == text
    True
    """
    name, orders, roles, of_rank = "", dict[int, str](), list[_RoleText](), dict[int, int]()
    mesh = tuple[int, ...]()
    for number, line in enumerate(text.splitlines(), 1):
        words = line.strip()
        if found := re.fullmatch(r"program ?(.*)", words):
            name = found[1]
        elif found := re.fullmatch(r"mesh((?: \d{1,8})+)", words):
            mesh = tuple(map(int, found[1].split()))
        elif found := re.fullmatch(rf"rank ({_RANKS}):(.*)", words):
            orders |= {int(rank): found[2].strip() for rank in found[1].split()}
        elif found := re.fullmatch(rf"of rank ({_RANKS}):(.*)", words):
            of_rank |= {int(rank): len(roles) for rank in found[1].split()}
            roles.append(_RoleText(_read_sizes(number, words, found[2])))
        elif (found := re.fullmatch(r"(stays|scratch|given) (.*)", words)) and roles:
            roles[-1].stays[found[1]] = _read_sizes(number, words, found[2])
        elif (found := re.fullmatch(r"in (\S+): (.*)", words)) and roles:
            items = (item.split() for item in found[2].split(","))
            roles[-1].items[found[1]] = tuple(
                (n, tuple(map(int, "".join(shape).split("x"))) if shape else ())
                for n, *shape in items
            )
        elif (found := re.fullmatch(r"within (\S+): (.+)", words)) and roles:
            roles[-1].within |= dict.fromkeys(found[2].split(", "), found[1])
        elif (found := _PART.fullmatch(words)) and roles:
            stage, kind = (int(found[1]), found[2]) if found[1] else (-1, found[3])
            rows = int(found[5]) if found[5] else None
            roles[-1].parts.append((kind, stage, len(found[4]), rows, []))
        elif words and roles and roles[-1].parts:
            roles[-1].parts[-1][-1].append(_instruction(number, words))
        elif words:
            raise _unreadable(number, words, "a line of a rank, or 'of rank ...' before its parts")
    if not orders:
        raise ProgramError("a program has a rank or more, and no line here begins with 'rank 0:'")
    if sorted(orders) != list(range(len(orders))) or not set(orders) <= set(of_rank):
        raise ProgramError(
            f"ranks are numbered from 0 and each has parts ('of rank ...'); got lines of ranks "
            f"{sorted(orders)} and parts of {sorted(of_rank)}"
        )
    if mesh and prod(mesh) != len(orders):
        raise ProgramError(f"a mesh {mesh} has {prod(mesh)} ranks, and {len(orders)} have lines")
    made = tuple(role.made() for role in roles)
    read: dict[tuple[int, str], ProgramLine] = {}
    for rank in range(len(orders)):
        key = of_rank[rank], orders[rank]
        if key not in read:
            read[key] = _line(orders[rank], made[of_rank[rank]], rank)
    lines = tuple(read[of_rank[rank], orders[rank]] for rank in range(len(orders)))
    ranks = tuple(of_rank[r] for r in range(len(orders)))
    return Instructions(made, lines, ranks, name, mesh)


@dataclass
class _RoleText:
    """A role, while its lines are read."""

    nbytes: dict[str, int]
    stays: dict[str, dict[str, int]] = field(default_factory=dict)
    items: dict[str, Items] = field(default_factory=dict)
    within: dict[str, str] = field(default_factory=dict)
    parts: list[tuple[str, int, int, int | None, list[Instruction]]] = field(default_factory=list)

    def made(self) -> ProgramRole:
        parts = (
            ProgramPart(kind, stage, tuple(instructions), replica, rows)
            for kind, stage, replica, rows, instructions in self.parts
        )
        stays = {name: size for sizes in self.stays.values() for name, size in sizes.items()}
        scratch, given = (frozenset(self.stays.get(word, ())) for word in ("scratch", "given"))
        return ProgramRole(
            tuple(parts), self.nbytes, stays, scratch, given, self.items, self.within
        )


def _read_sizes(number: int, words: str, text: str) -> dict[str, int]:
    sizes = [part.split() for part in text.split(",") if part.strip()]
    try:
        return {name: int(size) for name, size, _ in sizes}
    except ValueError:
        raise _unreadable(number, words, "sizes, as in x1 8 B, kept0 1 B") from None


def _line(text: str, role: ProgramRole, rank: int) -> ProgramLine:
    numbers = {part.name: number for number, part in enumerate(role.parts)}
    found = []
    for word in text.split():
        match = _WORD.fullmatch(word)
        if not match or match[2] not in numbers:
            raise ProgramError(
                f"rank {rank} has no part {short(word)}; write a part and its frame, as in 0F.3; "
                f"its parts are {', '.join(numbers)}"
            )
        found.append((numbers[match[2]], int(match[3]), bool(match[1])))
    part, frame, paired = zip(*found, strict=True) if found else ((), (), ())
    return ProgramLine(
        np.array(part, np.int32), np.array(frame, np.int32), np.array(paired, np.bool_)
    )


def _instruction(number: int, words: str) -> Instruction:
    found = re.fullmatch(r"(.*?)(?: @([^\s}]+))?", words)
    assert found
    words, stream = found[1], found[2] or COMPUTE_STREAM
    if found := _SEND.fullmatch(words):
        return Send(found[1], int(found[2]), stream, int(found[3] or 0))
    if found := _RECV.fullmatch(words):
        return Recv(found[1], int(found[2]), stream, int(found[3] or 0))
    if found := _STOP.fullmatch(words):
        return Stop(found[1], stream)
    try:
        if found := _COLLECTIVE.fullmatch(words):
            told = ast.literal_eval(found[4])
            return COLLECTIVES[found[2]](found[3] or "", found[1] or "", **told, stream=stream)
        if found := _FETCH.fullmatch(words):
            source = None if found[3] is None else int(found[3])
            told = ast.literal_eval(found[4])
            return Fetch(found[1], found[2], **told, source=source, stream=stream)
        if found := _KEEP.fullmatch(words):
            return Keep(found[1], found[2], **ast.literal_eval(found[3]), stream=stream)
        if found := _DO.fullmatch(words):
            told = tuple(ast.literal_eval(found[4] or "{}").items())
            reads, writes = tuple(found[3].split()), tuple((found[1] or "").split())
            return Do(found[2], reads, writes, stream, told)
    except (ValueError, SyntaxError, TypeError, AttributeError):
        pass
    raise _unreadable(
        number, words, "'y = do kernel x', 'send x to 1', 'x = recv from 0' or 'y = all_reduce x {"
        "'axes': (0,), 'counts': (4, 4), 'itemsize': 8}'"
    )  # fmt: skip


def _unreadable(number: int, words: str, wanted: str) -> ProgramError:
    return ProgramError(f"line {number} cannot be read: {short(words)}; write {wanted}")
