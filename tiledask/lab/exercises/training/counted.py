"""Work out what a training moves: by kind, between hosts; and how often it should be saved."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, lru_cache
from itertools import combinations
from math import prod
from typing import Any

import numpy as np

from tiledask.distributed.training import GPT, train
from tiledask.distributed.training.asked import training_program
from tiledask.errors import ConfigError, RuleError, short
from tiledask.lab.judging import Exercise, Target
from tiledask.lab.judging.result import NEAR
from tiledask.lab.plots import primitives as draw
from tiledask.lab.plots.primitives import Figure
from tiledask.lab.plots.training.rank_grid import rank_grid
from tiledask.lab.plots.training.rank_groups import rank_groups
from tiledask.plan.timing.checkpointing import Checkpointing
from tiledask.plan.whole import is_whole
from tiledask.tile.datasets import load_text

__all__ = ["PARTS", "ranks_on_hosts", "save_intervals", "step_traffic"]

PARTS = ("tensor", "pipeline", "data")
"""Kinds of parallelism, each with bytes of its own."""
Shape = tuple[int, int, int]


def step_traffic(
    shape: Shape = (2, 2, 2),
    *,
    microbatches: int = 2,
    batch: int = 8,
    hidden: int = 32,
    layers: int = 3,
    heads: int = 4,
    sequence: int = 16,
) -> Exercise:
    """Say how many bytes all ranks of a (dp, tp, pp) mesh send in a step, by kind of parallelism,
    and how many barriers the busiest has. Float32, 1F1B, no ZeRO.

    The answer is a dict {"tensor": ..., "pipeline": ..., "data": ..., "barriers": ...}. The step is
    run on threads and counted.

    >>> nothing = dict.fromkeys((*PARTS, "barriers"), 0)
    >>> bool(step_traffic((1, 1, 1)).check(nothing)), bool(step_traffic((2, 1, 1)).check(nothing))
    (True, False)
    """
    vocabulary = load_text("tales").vocabulary
    model = GPT(vocabulary, hidden, layers, heads, sequence)
    words = {part: f"{part} parallel, bytes" for part in PARTS} | {"barriers": "barriers"}

    def measure(answer: Any) -> list[Target]:
        counted = _counted(model, shape, microbatches, batch)
        return [
            Target(name, 0, int(answer[what] != counted[what]), 0, remarks=(_off(name, *pair),))
            for what, name in words.items()
            for pair in [(answer[what], counted[what])]
        ]

    def figure(answer: Any) -> Figure:
        yours = "not attempted"
        if answer is not None:
            yours = ", ".join(f"{name} {n:,}" for name, n in answer.items())
        return rank_grid(model, shape, batch=batch, title=f"Who has what; your step: {yours}")

    return Exercise(
        name="traffic of a step",
        form="a dict of four numbers of 0 or more, for example {'tensor': 0, 'pipeline': 0, "
        "'data': 0, 'barriers': 0}",
        hints=(
            "An all-reduce between 2 ranks sends the array once from each. What is all-reduced "
            "forward and backward in each layer, and what at the embedding and the head?",
            "Pipeline: one array of b x s x h there and one back at each cut, from each tensor "
            "rank. Data: the gradients of what a rank holds; what every tensor rank holds counts "
            "in each of them.",
            "In each layer 4 all-reduces of b s h, one at the embedding, one for the head's input, "
            "and three of b s for the loss; positions, norms and the biases behind a sum are on "
            "every tensor rank. A barrier is a collective: count those of each stage, in each "
            "micro-batch, and one for each unit that is summed. The stage with most counts.",
        ),
        measured=measure,
        drawn=figure,
        read=_numbers,
    )


def _off(name: str, given: float, right: float) -> str:
    """In which direction a number is off, and whether by little or by much; not by how much."""
    side = "low" if given < right else "high"
    if abs(given - right) <= NEAR * right:
        return f"{name}: {given:,} is too {side}, but near"
    far = "far " if given > 2 * right or 2 * given < right else ""
    return f"{name}: {given:,} is {far}too {side}"


def _numbers(answer: Any) -> dict[str, int] | None:
    wanted = (*PARTS, "barriers")
    if not isinstance(answer, Mapping) or set(answer) != set(wanted):
        return None
    for name, n in answer.items():
        if not isinstance(n, (int, float)) or not n >= 0:
            raise ConfigError(f"{name!r} is a number of 0 or more, got {short(n)}")
    return {name: answer[name] for name in wanted}


@lru_cache(maxsize=8)
def _counted(model: GPT, shape: Shape, microbatches: int, batch: int) -> dict[str, int]:
    """What a step really moved."""
    done = train(
        model,
        load_text("tales"),
        shape,
        steps=1,
        batch=batch,
        microbatches=microbatches,
        progress=False,
        timeout=240,
    )
    layers = done.layers()
    sent = layers.groupby("parallel").bytes.sum() if len(layers) else {}
    found = {part: int(sent.get(part, 0)) for part in PARTS}
    return found | {"barriers": int(done.to_frame().barriers.iloc[0])}


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


TRAININGS = {
    "A": Checkpointing(0.05, bandwidth=1.0, mtbf=7200.0 * 9 / 8, restart=5.0, step=0.5),
    "B": Checkpointing(20.0, bandwidth=1.0, mtbf=7200.0 * 9, restart=600.0, step=0.5),
    "C": Checkpointing(200.0, bandwidth=1.0, mtbf=1200.0, restart=60.0, step=10.0),
}
"""Two levels of one training, in memory and on shared storage, for which one failure in nine is;
another training on a slow disk, which fails every twenty minutes."""
MOST = 1.0
"""Percent beyond the least time lost."""
LONGEST = 100_000


def save_intervals() -> Exercise:
    """Give for two levels of one training, and for another training, the steps from one save to
    the next; judged by the whole sum of what saving and failures cost, `Checkpointing.stretch`.

    >>> save_intervals().check((1, 1, 1)).legal  # and good?
    True
    """

    def lost(name: str, every: int) -> float:
        return replace(TRAININGS[name], every=every).stretch - 1

    @cache
    def least(name: str) -> float:
        start = TRAININGS[name].steps or 1
        return min(lost(name, every) for every in range(max(1, start // 4), 4 * start))

    def measure(answer: Sequence[int]) -> list[Target]:
        return [
            Target(
                f"{name}: time lost beyond the least, %",
                MOST,
                100 * (lost(name, every) / least(name) - 1),
                0,
                where=f"every {every:,} steps",
            )
            for name, every in zip(TRAININGS, answer, strict=False)
        ]

    return Exercise(
        name="how often two trainings save",
        form=f"{len(TRAININGS)} whole numbers from 1 to {LONGEST:,}, one a row, for example "
        f"(9, 9, 9)",
        hints=(
            "Which of the numbers does the square root need? Of eight failures in nine, and of one "
            "in nine: how far are they apart?",
            "The root holds where the interval is far below the time between failures. Where is "
            "it not?",
            "For C look at the whole sum: td.formulas.Checkpointing(..., step=, every=).stretch "
            "for several numbers of steps.",
        ),
        measured=measure,
        read=_read,
    )


def _read(answer: Any) -> list[int] | None:
    values = list(answer) if isinstance(answer, tuple | list) else []
    whole = all(is_whole(x) and 1 <= x <= LONGEST for x in values)
    return values if whole and len(values) == len(TRAININGS) else None
