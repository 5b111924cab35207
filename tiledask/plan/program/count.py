"""The reader that counts: bytes and messages between ranks, from the lines alone."""

import numpy as np

from tiledask.plan.products.traffic import Traffic
from tiledask.plan.program.instructions import Instructions, Send

__all__ = ["count"]


def count(program: Instructions) -> Traffic:
    """The Traffic of ``program``: what its sends carry.

    Each part is looked at once, however often it runs.

    >>> import tiledask as td
    >>> count(td.program(td.schedule("gpipe", 2, 3), block_bytes=8)).bytes.tolist()
    [[0, 24], [24, 0]]
    """
    moved = np.zeros((2, program.ranks, program.ranks))
    for rank, line in enumerate(program.lines):
        role = program.role(rank)
        often = np.bincount(line.part, minlength=len(role.parts)).tolist()
        for part, times in zip(role.parts, often, strict=True):
            for each in part.instructions:
                if isinstance(each, Send):
                    moved[:, rank, each.peer] += times * role.nbytes[each.buffer], times
    return Traffic(*moved.astype(np.int64))
