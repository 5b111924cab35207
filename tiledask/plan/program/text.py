"""A program as text that people read, and back.

program gpipe
rank 0: 0F.0 (0F.1 0B.0)               in parentheses: two parts at once
of rank 0: x1 8 B, kept0 1 B           what its buffers have
  0F                                   the parts below, each with its instructions
    x1 kept0 = do forward
"""

import re

import numpy as np

from tiledask.errors import ProgramError
from tiledask.plan.data import short
from tiledask.plan.program.instructions import (
    COMPUTE_STREAM,
    Do,
    Instruction,
    Instructions,
    ProgramLine,
    ProgramPart,
    ProgramRole,
    Recv,
    Send,
)

__all__ = ["from_text", "line_text", "to_text"]


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
    """The whole program. Ranks of one role have their parts together."""
    text = [f"program {program.name}".rstrip()]
    text += [f"rank {rank}: {line_text(program, rank)}".rstrip() for rank in range(program.ranks)]
    for number, role in enumerate(program.roles):
        ranks = [str(rank) for rank, of in enumerate(program.of_rank) if of == number]
        sizes = ", ".join(f"{name} {size} B" for name, size in role.nbytes.items())
        text.append(f"of rank {' '.join(ranks)}: {sizes}".rstrip())
        for part in role.parts:
            text += [f"  {part.name}", *(f"    {each}" for each in part.instructions)]
    return "\n".join(text)


_WORD = re.compile(r"(\(?)([^\s().]+)\.(\d{1,9})(\)?)")
_PART = re.compile(r"(\d{1,8})([FBIW])('*)")
_SEND = re.compile(r"send (\S+) to (\d{1,8})")
_RECV = re.compile(r"(\S+) = recv from (\d{1,8})")
_DO = re.compile(r"(?:(\S.*) = )?do (\S+)((?: \S+)*)")


def from_text(text: str) -> Instructions:
    """The instructions that ``text`` says. Raises ProgramError for a line that it cannot read.

    >>> import tiledask as td
    >>> text = to_text(td.program(td.schedule("zb-h1", 3, 4), block_bytes=16))
    >>> to_text(from_text(text)) == text
    True
    """
    name, orders, roles, of_rank = "", dict[int, str](), list[ProgramRole](), dict[int, int]()
    parts: list[ProgramPart] = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.strip()
        if found := re.fullmatch(r"program ?(.*)", words):
            name = found[1]
        elif found := re.fullmatch(r"rank (\d{1,8}):(.*)", words):
            orders[int(found[1])] = found[2].strip()
        elif found := re.fullmatch(r"of rank ([\d ]+):(.*)", words):
            of_rank |= {int(rank): len(roles) for rank in found[1].split()}
            parts = []
            sizes = [part.split() for part in found[2].split(",") if part.strip()]
            try:
                roles.append(ProgramRole((), {name: int(size) for name, size, _ in sizes}))
            except ValueError:
                raise _unreadable(number, words, "sizes, as in x1 8 B, kept0 1 B") from None
        elif (found := _PART.fullmatch(words)) and roles:
            parts.append(ProgramPart(found[2], int(found[1]), (), len(found[3])))
            roles[-1] = ProgramRole(tuple(parts), roles[-1].nbytes)
        elif words and parts:
            last = parts[-1]
            each = (*last.instructions, _instruction(number, words))
            parts[-1] = ProgramPart(last.kind, last.stage, each, last.replica)
            roles[-1] = ProgramRole(tuple(parts), roles[-1].nbytes)
        elif words:
            raise _unreadable(number, words, "a line of a rank, or 'of rank ...' before its parts")
    if sorted(orders) != list(range(len(orders))) or not set(orders) <= set(of_rank):
        raise ProgramError(
            f"ranks are numbered from 0 and each has parts ('of rank ...'); got lines of ranks "
            f"{sorted(orders)} and parts of {sorted(of_rank)}"
        )
    lines = tuple(_line(orders[r], roles[of_rank[r]], r) for r in range(len(orders)))
    return Instructions(tuple(roles), lines, tuple(of_rank[r] for r in range(len(orders))), name)


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
    words, _, stream = words.partition(" @")
    stream = stream or COMPUTE_STREAM
    if found := _SEND.fullmatch(words):
        return Send(found[1], int(found[2]), stream)
    if found := _RECV.fullmatch(words):
        return Recv(found[1], int(found[2]), stream)
    if found := _DO.fullmatch(words):
        return Do(found[2], tuple(found[3].split()), tuple((found[1] or "").split()), stream)
    raise _unreadable(number, words, "'y = do kernel x', 'send x to 1' or 'x = recv from 0'")


def _unreadable(number: int, words: str, wanted: str) -> ProgramError:
    return ProgramError(f"line {number} cannot be read: {short(words)}; write {wanted}")
