"""Put the ranks of a training on hosts so that as little as can be goes between these.

"AABBABBB"  |  the host of each rank: bytes of a step between hosts, by its program
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import combinations
from math import prod
from typing import Any

import numpy as np

from tiledask.distributed.training import GPT
from tiledask.distributed.training.asked import training_program
from tiledask.errors import RuleError
from tiledask.lab.judging import Exercise, Target
from tiledask.lab.plots import primitives as draw
from tiledask.lab.plots.training.rank_groups import rank_groups
from tiledask.tile.datasets import load_text

__all__ = ["ranks_on_hosts"]

AXES = ("dp", "tp", "pp")


def ranks_on_hosts(
    shape: tuple[int, int, int] = (2, 2, 2),
    hosts: str = "AAABBBBB",
    *,
    microbatches: int = 2,
    batch: int = 8,
) -> Exercise:
    """Say the host of each rank of a (dp, tp, pp) mesh, so that a step moves the fewest bytes
    between hosts.

    ``hosts``: a letter for each slot that is free. The answer is a letter for each rank, or
    anything else with a host for each. The bytes are those of a small GPT's program, in float32;
    the least there is, of every way to put the ranks on hosts.

    >>> exercise = ranks_on_hosts((1, 2, 2), "AABB")
    >>> bool(exercise.check("ABAB")), bool(exercise.check("AABB"))
    (True, False)
    """
    free, ranks = "".join(sorted(hosts)), prod(shape)
    moved = _moved(shape, batch, microbatches)
    best = min(int(moved[_apart(each)].sum()) for each in _ways(free, ranks))
    slots = ", ".join(f"{count} on {host}" for host, count in sorted(Counter(free).items()))

    def measure(answer: str) -> list[Target]:
        of_axis = _between(moved, answer, shape)
        most = max(of_axis, key=lambda axis: of_axis[axis])
        where = f"along {most} alone {of_axis[most]:,} bytes"
        got = sum(of_axis.values())
        return [Target("bytes of a step between hosts", best, got, best, where=where)]

    def figure(answer: str | None) -> draw.Figure:
        hosts = free[:ranks] if answer is None else answer
        got = sum(_between(moved, hosts, shape).values())
        said = "Not attempted: ranks in order" if answer is None else "Who talks to whom"
        return rank_groups(shape, AXES, hosts, title=f"{said}, {got:,} bytes between hosts")

    return Exercise(
        name="ranks on hosts",
        question=(
            f"A GPT trains on {shape[0]} copies x {shape[1]} tensor ranks x {shape[2]} stages, "
            f"{batch} rows in {microbatches} micro-batches. Of the slots that are free, {slots}. "
            f"Say the host of each rank, so that at most {best:,} bytes of a step go between hosts."
        ),
        form=f"a text of {ranks} hosts, that of rank 0 first, for example {free[:ranks]!r}",
        hints=(
            "Which axis moves most, which least? Along tp go activations of every layer, along dp "
            "every gradient once, along pp activations at one cut, there and back.",
            "Put together what moves most, then what comes next. Along the last axis, ranks are "
            "neighbours: 0 and 1; along the first they are far apart.",
            "Where a host has room for less than a whole group, some group has to be torn: let "
            "it be one whose ranks move least between them.",
        ),
        measured=measure,
        drawn=figure,
        read=lambda answer: _hosts_of(answer, free, ranks),
    )


def _hosts_of(answer: Any, free: str, ranks: int) -> str | None:
    """The host of each rank; None for another number of them, or other hosts."""
    told = isinstance(answer, Sequence) and all(isinstance(host, str) for host in answer)
    given = "".join(answer) if told else ""
    if len(given) != ranks or {*given} - {*free}:
        return None
    for host, count in sorted(Counter(given).items()):
        if count > free.count(host):
            raise RuleError(f"{host} has {free.count(host)} slots, and {count} ranks are put there")
    return given


@lru_cache(maxsize=8)
def _moved(shape: tuple[int, int, int], batch: int, microbatches: int) -> np.ndarray:
    """The bytes of a step, from rank to rank."""
    vocabulary = load_text("tales").vocabulary
    model = GPT(vocabulary, hidden=32, layers=3, heads=4, sequence=16)
    program = training_program(model, shape, batch=batch, microbatches=microbatches)
    return program.traffic.bytes


def _apart(hosts: Sequence[str]) -> np.ndarray:
    """Of every two ranks, whether they are on different hosts."""
    each = np.array([*hosts])
    return each[:, None] != each


def _between(moved: np.ndarray, hosts: str, shape: tuple[int, ...]) -> dict[str, int]:
    """Bytes between hosts by axis: of ranks that differ along several, by the first."""
    at = np.stack(np.unravel_index(np.arange(len(moved)), shape))
    differ = at[:, :, None] != at[:, None]
    across = np.where(_apart(hosts), moved, 0)
    first = differ.argmax(axis=0)
    return {name: int(across[first == axis].sum()) for axis, name in enumerate(AXES)}


def _ways(free: str, ranks: int) -> Iterator[str]:
    """Every way to put so many ranks into the slots that are free."""

    def filled(held: dict[int, str], left: Sequence[str]) -> Iterator[dict[int, str]]:
        if not left:
            yield from [held] if len(held) == ranks else []
            return
        rest = [rank for rank in range(ranks) if rank not in held]
        room = sum(free.count(host) for host in left[1:])
        for count in range(max(0, len(rest) - room), min(free.count(left[0]), len(rest)) + 1):
            for mine in combinations(rest, count):
                yield from filled(held | dict.fromkeys(mine, left[0]), left[1:])

    for held in filled({}, sorted({*free})):
        yield "".join(held[rank] for rank in range(ranks))
