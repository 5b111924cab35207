"""Training: bytes of a step, ranks on hosts, saves; a loss scale and uneven copies, which train."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from itertools import combinations
from math import prod
from typing import Any

import numpy as np

from tiledask.distributed.training import GPT, train
from tiledask.distributed.training.asked import training_program
from tiledask.errors import ConfigError, DivergedError, RuleError
from tiledask.lab.exercises.exercise import (
    a_function,
    exercise,
    none_wrong,
    on_ranks,
    whole_numbers,
)
from tiledask.lab.judging import Target
from tiledask.lab.judging.result import NEAR
from tiledask.lab.plots.primitives import Figure
from tiledask.lab.plots.ranks import rank_groups
from tiledask.lab.precision.small import Small, SmallRun
from tiledask.lab.precision.small import train as train_small
from tiledask.plan.collectives.algorithms import default
from tiledask.plan.collectives.cost import cost, even
from tiledask.plan.products.placement import split
from tiledask.plan.timing.checkpointing import Checkpointing
from tiledask.tile import layers as tile
from tiledask.tile.datasets import load_images, load_text
from tiledask.tile.optimizers import SGD, LossScale

__all__ = ["ranks_on_hosts", "save_intervals", "scale_rule", "step_traffic", "uneven_copies"]

Shape = tuple[int, int, int]
"""Ranks of (dp, tp, pp)."""
BATCH, MICROBATCHES = 8, 2


def _small_gpt() -> GPT:
    return GPT(load_text("tales").vocabulary, hidden=32, layers=3, heads=4, sequence=16)


# -- bytes of a step -------------------------------------------------------------------------------

KINDS = ("tensor", "pipeline", "data")
"""Of parallelism, each with bytes of its own."""


def _counts(answer: Any) -> dict[str, float] | None:
    wanted = (*KINDS, "barriers")
    if not isinstance(answer, Mapping) or set(answer) != set(wanted):
        return None
    good = all(isinstance(n, int | float) and n >= 0 for n in answer.values())
    return {name: answer[name] for name in wanted} if good else None


@lru_cache(maxsize=8)
def _moved(shape: Shape) -> dict[str, int]:
    """What a step really moves: it is run on threads."""
    how: dict[str, Any] = {"batch": BATCH, "microbatches": MICROBATCHES, "progress": False}
    done = train(_small_gpt(), load_text("tales"), shape, steps=1, timeout=240, **how)
    layers = done.layers()
    sent: Any = layers.groupby("parallel").bytes.sum() if len(layers) else {}
    found = {kind: int(sent.get(kind, 0)) for kind in KINDS}
    return found | {"barriers": int(done.to_frame().barriers.iloc[0])}


@exercise(
    "step-traffic",
    read=_counts,
    draw=lambda _, shape: rank_groups(shape),
)
def step_traffic(answer: dict[str, float], shape: Shape = (2, 2, 2)) -> list[Target]:
    """Say how many bytes all ranks of a (dp, tp, pp) mesh send in a step, by kind of parallelism,
    and how many barriers the busiest has. Float32, 1F1B, no ZeRO."""
    targets = []
    for what, right in _moved(shape).items():
        name = f"{what} parallel, bytes" if what in KINDS else what
        given, side = answer[what], "low" if answer[what] < right else "high"
        if abs(given - right) <= NEAR * right:
            off = f"{name}: {given:,} is too {side}, but near"
        else:
            far = "far " if given > 2 * right or 2 * given < right else ""
            off = f"{name}: {given:,} is {far}too {side}"
        targets.append(none_wrong(name, [off] * (given != right)))
    return targets


# -- ranks on hosts --------------------------------------------------------------------------------


@lru_cache(maxsize=8)
def _between_ranks(shape: Shape) -> np.ndarray:
    """The bytes of a step, from rank to rank."""
    how: dict[str, Any] = {"batch": BATCH, "microbatches": MICROBATCHES}
    return training_program(_small_gpt(), shape, **how).traffic.bytes


def _across(moved: np.ndarray, hosts: Sequence[str]) -> np.ndarray:
    """Of the bytes between ranks, those between hosts."""
    each = np.array([*hosts])
    return np.where(each[:, None] != each, moved, 0)


def _ways(free: str, ranks: int) -> Iterator[list[str]]:
    """Every way to put so many ranks into the slots that are free, host by host."""
    if not free:
        yield from [[""] * ranks] if not ranks else []
        return
    host, others = free[0], free.lstrip(free[0])
    for count in range(max(0, ranks - len(others)), min(free.count(host), ranks) + 1):
        for rest in _ways(others, ranks - count):
            for mine in combinations(range(ranks), count):
                left = iter(rest)
                yield [host if rank in mine else next(left) for rank in range(ranks)]


def _hosts(answer: Any) -> str | None:
    letters = isinstance(answer, Sequence) and all(isinstance(host, str) for host in answer)
    return "".join(answer) if letters and not isinstance(answer, bytes) else None


def _groups(answer: str | None, shape: Shape, hosts: str) -> Figure:
    at = answer or "".join(sorted(hosts))[: prod(shape)]
    title = "Not attempted: ranks in order" if answer is None else "Who talks to whom"
    return rank_groups(shape, ("dp", "tp", "pp"), at, title=title)


@exercise("ranks-on-hosts", read=_hosts, draw=_groups)
def ranks_on_hosts(answer: str, shape: Shape = (2, 2, 2), hosts: str = "AAABBBBB") -> list[Target]:
    """Say the host of each rank of a (dp, tp, pp) mesh, so that a step moves the fewest bytes
    between hosts. A letter is a slot that is free on this host."""
    free, ranks = "".join(sorted(hosts)), prod(shape)
    if len(answer) != ranks or {*answer} - {*free}:
        raise ConfigError(f"{ranks} ranks are put on hosts {', '.join(sorted({*free}))}")
    for host, count in sorted(Counter(answer).items()):
        if count > free.count(host):
            raise RuleError(f"{host} has {free.count(host)} slots, and {count} ranks are put there")
    moved = _between_ranks(shape)
    best = min(int(_across(moved, way).sum()) for way in _ways(free, ranks))
    mine, at = _across(moved, answer), np.indices(shape).reshape(len(shape), -1)
    # ranks that differ along several axes count for the first
    first = (at[:, :, None] != at[:, None]).argmax(axis=0)
    of_axis = {name: int(mine[first == axis].sum()) for axis, name in enumerate(("dp", "tp", "pp"))}
    most = max(of_axis, key=lambda axis: of_axis[axis])
    where = f"along {most} alone {of_axis[most]:,} bytes"
    return [Target("bytes of a step between hosts", best, int(mine.sum()), best, where=where)]


# -- how often to save -----------------------------------------------------------------------------

TRAININGS = {
    "A": Checkpointing(0.05, bandwidth=1.0, mtbf=7200.0 * 9 / 8, restart=5.0, step=0.5),
    "B": Checkpointing(20.0, bandwidth=1.0, mtbf=7200.0 * 9, restart=600.0, step=0.5),
    "C": Checkpointing(200.0, bandwidth=1.0, mtbf=1200.0, restart=60.0, step=10.0),
}
"""Two levels of one training, in memory and on shared storage, for which one failure in nine is;
another training on a slow disk, which fails every twenty minutes."""


def _lost(name: str, every: int) -> float:
    return replace(TRAININGS[name], every=every).stretch - 1


@lru_cache(maxsize=8)
def _least_lost(name: str) -> float:
    start = TRAININGS[name].steps or 1
    return min(_lost(name, every) for every in range(max(1, start // 4), 4 * start))


@exercise("save-intervals", read=lambda answer: whole_numbers(answer, len(TRAININGS), 1, 100_000))
def save_intervals(answer: tuple[int, ...]) -> list[Target]:
    """Give for two levels of one training, and for another training, the steps from one save to
    the next; judged by the whole sum of what saving and failures cost, `Checkpointing.stretch`."""
    return [
        Target(
            f"{name}: time lost beyond the least, %",
            1.0,
            100 * (_lost(name, every) / _least_lost(name) - 1),
            0,
            where=f"every {every:,} steps",
        )
        for name, every in zip(TRAININGS, answer, strict=True)
    ]


# -- a loss scale ----------------------------------------------------------------------------------

Rule = Callable[[float, int, bool], tuple[float, int]]
BEGUN = {"begun at 2^44": 2.0**44, "begun at 1": 1.0}
LAST = 8
"""Steps whose mean is the loss at the end."""


@dataclass(frozen=True)
class _AskedScale(LossScale):
    """A scale that asks a function what comes next."""

    rule: Rule = field(default=lambda scale, good, finite: (scale, good), compare=False)

    def after(self, finite: bool) -> LossScale:
        try:
            scale, good = self.rule(self.scale, self.good, finite)
            done = self.skipped + (not finite)
            return replace(self, scale=float(scale), good=int(good), skipped=done)
        except Exception as error:  # whatever an answer raises, or a scale that is none
            raise RuleError(
                f"it returns two numbers, the next scale and good; for ({self.scale:g}, "
                f"{self.good}, {finite}) it gave {type(error).__name__}: {error}"
            ) from error


def _scaled(rule: Rule, begun: float) -> SmallRun:
    """A small network, whose gradients are 2^22 times smaller than usual, in fp16."""
    scale, small = _AskedScale(begun, floor=2.0**-24, rule=rule), Small(8, inner=16, blocks=1)
    how: dict[str, Any] = {"rule": SGD(0.1), "small": small, "batch": 16, "times": 2.0**-22}
    try:
        return train_small("float16", 48, scale=scale, **how)
    except DivergedError as error:
        raise RuleError(str(error)) from error


@exercise("scale-rule", read=a_function)
def scale_rule(rule: Rule) -> list[Target]:
    """Write a function (scale, good, finite) that says the scale of the next step's loss.

    ``good`` is whatever the function returned beside the last scale, 0 at first; ``finite`` says
    whether all gradients were. A step that was not finite is left out."""
    runs = {name: _scaled(rule, begun) for name, begun in BEGUN.items()}
    each = ", ".join(f"{run.skipped} {name}" for name, run in runs.items())
    skipped = sum(run.skipped for run in runs.values())
    targets = [Target("steps left out in both runs", 14, skipped, where=each)]
    for name, run in runs.items():
        end = float(np.mean(run.losses[-LAST:]))
        end = round(end, 3) if np.isfinite(end) else float("inf")
        powers = np.log2(np.array(run.scales, float))
        went = f"its scale lies between 2^{powers.min():.0f} and 2^{powers.max():.0f}"
        last = f"loss of the last {LAST} steps, {name}"
        targets.append(Target(last, 1.55, end, where=f"{went}, at last 2^{powers[-1]:.0f}"))
    return targets


# -- uneven copies ---------------------------------------------------------------------------------

COPIES, BATCHES, STEPS, WEIGHTS = 3, (6, 7, 2), 3, (784, 10)


def _gradient(w: np.ndarray, step: int, batch: int, rows: slice = slice(None)) -> np.ndarray:
    """The gradient of the mean loss over rows of a batch of digits; zeros where there are none."""
    x, labels = load_images("digits").batch(0, step, batch, rows, dtype="float64")
    if not len(x):
        return np.zeros_like(w)
    logits, kept = tile.linear(x.reshape(len(x), -1), w)
    _, of_loss = tile.cross_entropy(logits, labels)
    gradient: np.ndarray = tile.linear_grad(tile.cross_entropy_grad(1.0, of_loss), kept, w)[1]
    return gradient


def _trained(gradient: Callable[[np.ndarray, int], np.ndarray]) -> np.ndarray:
    """The weights after the last step."""
    w = np.zeros(WEIGHTS)
    for step in range(STEPS):
        w = w - 0.5 * gradient(w, step)
    return w


@exercise("uneven-copies", read=a_function)
def uneven_copies(answer: Callable[..., Any]) -> list[Target]:
    """Write a function (group, gradient, rows, total) that gives the gradient of the whole batch.

    A small classifier of digits is trained by three ranks with it, in batches of 6, 7 and 2 rows,
    and its weights are compared with those of one device. A copy without rows has zeros."""
    wrong, sent = [], 0
    for batch in BATCHES:

        def program(rank: Any, batch: int = batch) -> np.ndarray:
            mine = slice(*split(0, batch, COPIES)[rank.index])

            def averaged(here: np.ndarray, step: int) -> np.ndarray:
                mean, rows = _gradient(here, step, batch, mine), mine.stop - mine.start
                with np.errstate(divide="ignore", invalid="ignore"):  # of no rows; it shows in w
                    whole = np.asarray(answer(rank.group(), mean, rows, batch))
                if whole.shape != WEIGHTS:
                    raise RuleError(
                        f"the gradient has {[*WEIGHTS]} numbers, got {[*whole.shape]} back"
                    )
                return whole

            return _trained(averaged)

        done = on_ranks(answer, program, COPIES, given=f" with a batch of {batch} rows")
        alone = _trained(partial(_gradient, batch=batch))
        if not max(float(np.abs(w - alone).max()) for w in done.results) <= 1e-12:
            wrong.append(batch)
        sent = max(sent, sum(record.sent for record in done.records) // STEPS)
    size = prod(WEIGHTS)
    least = sum(cost("all_reduce", default("all_reduce", COPIES), even(size, COPIES), 8).sent)
    more = f"{sent - least:,} bytes more than one all-reduce of the gradient"
    rows = ", ".join(map(str, wrong))
    name = "batches that end elsewhere" + f" ({rows} rows)" * bool(wrong)
    said = [f"a batch of {batch} rows ends elsewhere" for batch in wrong]
    return [
        none_wrong(name, said[:1], len(wrong)),
        Target("bytes that all ranks send in a step", least, sent, least, where=more),
    ]
