"""A training that somebody watches: a bar, the dashboard's page.

    rank 0   step  step  step ... report --.
    rank 1   step  step  step ... report ---+--> the page; the bar
    rank 2   step  step  step ... report --'

A report has a row for each step since the last one. There are at most ten a second from a rank,
however short its steps are.
"""

import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import takewhile
from math import prod
from queue import SimpleQueue
from typing import Any

from tiledask.distributed.arrays.mesh import Mesh
from tiledask.distributed.cluster.progress import announced, ended, report, subscribed
from tiledask.distributed.ranks.rank import Rank
from tiledask.distributed.training.config import TrainingConfig
from tiledask.errors import ConfigError
from tiledask.tile.progress import is_watched, showing

__all__ = ["Report", "step_reporter", "watched"]

EVERY = 0.1
"""Seconds between two reports of a rank, at least."""
Report = Callable[[dict[str, Any]], None]


def step_reporter(rank: Rank, say: Report) -> Callable[[int, float, bool], None]:
    """What is called with the number of each of this rank's steps once it is over, with this rank's
    part of its loss, and whether it is to be known at once: no later rank does it again."""
    begin = last = rank.transport.now()
    rows: list[tuple[Any, ...]] = []

    def step_done(number: int, loss: float, at_once: bool) -> None:
        nonlocal last
        mine = [*takewhile(lambda record: record.step == number, reversed(rank.records))]
        moved = sum(each.sent for each in mine), sum(each.messages for each in mine)
        barriers, now = sum(each.barrier is not None for each in mine), rank.transport.now()
        # the ranks of a tensor-parallel group all have the loss of the same rows
        part = 0.0 if rank.coordinates[1] else loss
        rows.append((rank.index, "step", number, part, *moved, barriers, now))
        if at_once or now - last >= EVERY:
            say({"spans": rows.copy(), "counted": [(rank.index, {"begin": begin})]})
            rows.clear()
            last = now

    return step_done


@contextmanager
def watched(
    progress: bool | None, config: TrainingConfig, mesh: Mesh | None
) -> Iterator[Report | None]:
    """What the ranks of a training report to while the block runs; None if nobody looks on.

    ``progress`` as of `tiledask.train`.
    """
    if not isinstance(progress, bool | None):
        raise ConfigError(f"progress is None, True or False, got {progress!r}")
    wanted, bar = is_watched() if progress is None else progress, _Bar(config)
    say: Report | None = bar.reports.put if wanted else None
    with ExitStack() as stack:
        if mesh is not None:
            cluster, run = mesh.cluster, f"tiledask-training-{uuid.uuid4().hex[:12]}"
            cluster.check_alive()
            on_page = stack.enter_context(announced(cluster, run, **_about(config)))
            if wanted:
                stack.enter_context(subscribed(cluster, run, bar.reports.put))
            say = partial(report, run) if on_page or wanted else None
        if wanted:
            stack.enter_context(showing("training", bar.look, "steps"))
        yield say
        bar.over = True
        if mesh is not None:
            ended(cluster, run)


@dataclass
class _Bar:
    """How far a training is, by what its ranks have reported."""

    config: TrainingConfig
    reports: SimpleQueue[dict[str, Any]] = field(default_factory=SimpleQueue)
    over: bool = False
    """Whether all is done: the last reports may be under way."""

    def __post_init__(self) -> None:
        self._parts: dict[int, dict[int, float]] = defaultdict(dict)
        """Number of a step -> rank -> its part of the loss, of steps that not all have done."""
        self._seen: tuple[int, int | None, str] = 0, None, "first step"

    def look(self) -> tuple[int, int | None, str]:
        """(steps done, of how many, what else there is to say)."""
        steps = self.config.steps
        while not self.reports.empty():
            for rank, _, number, part, *_ in self.reports.get()["spans"]:
                self._parts[number][rank] = part
                if len(self._parts[number]) == prod(self.config.shape):
                    loss = sum(self._parts.pop(number).values())
                    self._seen = number + 1, steps, f"loss {loss:.4f}"
        return (steps, steps, self._seen[2]) if self.over else self._seen


def _about(config: TrainingConfig) -> dict[str, Any]:
    """What the page shows before the first step."""
    model, schedule, (dp, tp, pp) = config.model, config.schedule, config.shape
    return {
        "kind": "training",
        "lanes": [f"worker {rank}" for rank in range(dp * tp * pp)],
        "facts": {
            "layout": f"dp {dp}, tp {tp}, pp {pp}",
            "ZeRO": str(config.zero),
            "schedule": f"{schedule.name}, {schedule.microbatches} micro-batches",
            "parameters": f"{model.size:,}, {config.dtype}",
        },
        "predicted": {
            "steps": config.steps,
            "tokens": config.batch * model.sequence,
            "floor": getattr(config.data, "floor", None),
        },
    }
