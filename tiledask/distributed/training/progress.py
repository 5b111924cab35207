"""A training that somebody watches: a bar, the dashboard's page.

    rank 0   step  step  step ... report --.
    rank 1   step  step  step ... report ---+--> the page; the bar
    rank 2   step  step  step ... report --'

A report has a row for each step since the last one. There are at most ten a second from a rank,
however short its steps are.
"""

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import takewhile
from typing import Any

from tiledask.distributed.arrays.mesh import Mesh
from tiledask.distributed.cluster.progress import Progress, announced, ended, report, watching
from tiledask.distributed.ranks.rank import Rank
from tiledask.distributed.training.config import TrainingConfig

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
            counted = rank.index, {"begin": begin, "done": number + 1}
            say({"spans": rows.copy(), "counted": [counted]})
            rows.clear()
            last = now

    return step_done


@contextmanager
def watched(
    progress: Progress, config: TrainingConfig, mesh: Mesh | None
) -> Iterator[Report | None]:
    """What the ranks of a training on a mesh report to while the block runs; on threads None."""
    if mesh is None:
        yield None
        return
    cluster, run = mesh.cluster, f"tiledask-training-{uuid.uuid4().hex[:12]}"
    cluster.check_alive()
    steps = [config.steps] * mesh.ranks
    with (
        announced(cluster, run, **_about(config)),
        watching(progress, run, steps, "training", cluster),
    ):
        yield partial(report, run)
    ended(cluster, run)


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
