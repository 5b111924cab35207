"""The reader that counts: bytes and messages between ranks, from the lines alone."""

from dataclasses import replace
from typing import Any

import numpy as np

from tiledask.plan.products.traffic import Traffic
from tiledask.plan.program.instructions import Collective, Fetch, Instructions, Send

__all__ = ["count"]


def count(program: Instructions) -> Traffic:
    """The Traffic of ``program``: what is sent, fetched, and collectives' messages.

    Each part of a role is looked at once, however often and on however many ranks it runs.

    >>> import tiledask as td
    >>> count(td.program(td.schedule("gpipe", 2, 3), block_bytes=8)).bytes.tolist()
    [[0, 24], [24, 0]]
    """
    moved = np.zeros((2, program.ranks, program.ranks), np.int64)
    seen: dict[tuple[int, int], tuple[Any, Any, Any]] = {}
    known: dict[Any, np.ndarray] = {}
    for rank, line in enumerate(program.lines):
        key = program.of_rank[rank], id(line)
        if key not in seen:
            seen[key] = _by_kind(program, rank, known)
        sends, fetched, groups = seen[key]
        for each, nbytes, times in sends:
            moved[:, rank, program.peer(rank, each)] += nbytes, times
        for source, nbytes, times in fetched:
            moved[:, source, rank] += nbytes, times
        for each, totals in groups:
            members = program.members(rank, each)
            moved[:, rank, members] += totals[:, members.index(rank)]
    return Traffic(*moved)


def _by_kind(
    program: Instructions, rank: int, known: dict[Any, np.ndarray]
) -> tuple[Any, Any, Any]:
    """([(send, bytes, times)], [(rank that it is fetched from, bytes, times)], [(a collective of a
    group, bytes and messages between members)])."""
    role, line = program.role(rank), program.lines[rank]
    often = np.bincount(line.part, minlength=len(role.parts)).tolist()
    sends, fetched, groups = [], [], dict[Any, tuple[Collective, np.ndarray]]()
    for part, times in zip(role.parts, often, strict=True):
        for each in part.instructions:
            if isinstance(each, Send):
                sends.append((each, times * role.size(each.buffer), times))
            elif isinstance(each, Fetch) and each.source is not None:
                fetched.append((each.source, times * each.nbytes, times))
            elif isinstance(each, Collective):
                n = each.size
                _, totals = groups.setdefault(
                    (each.axes, each.among), (each, np.zeros((2, n, n), np.int64))
                )
                what = replace(each, buffer="", result="", label="")
                if what not in known:
                    known[what] = _between(each)
                totals += times * known[what]
    return sends, fetched, list(groups.values())


def _between(each: Collective) -> np.ndarray:
    """[2, n, n]: bytes and messages from member to member of a collective."""
    found = np.zeros((2, each.size, each.size), np.int64)
    for moves in each.loads():
        for move, nbytes in moves:
            found[:, move.source, move.destination] += nbytes, 1
    return found
