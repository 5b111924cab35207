"""A training that somebody watches: a bar, the dashboard's page.

    rank 0   step  step  step ... report --.
    rank 1   step  step  step ... report ---+--> the page; the bar
    rank 2   step  step  step ... report --'

A report has a row for each step since the last one. There are at most ten a second from a rank,
however short its steps are.
"""

import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
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
    wanted = is_watched() if progress is None else progress
    done, reports = [config.first] * prod(config.shape), SimpleQueue[dict[str, Any]]()
    say: Report | None = reports.put if wanted else None

    def look() -> tuple[int, int | None, str]:
        """The steps that all ranks have done, for the bar."""
        while not reports.empty():
            for rank, _, number, *_ in reports.get()["spans"]:
                done[rank] = max(done[rank], number + 1)
        return min(done), config.steps, "steps"

    with ExitStack() as stack:
        if mesh is not None:
            cluster, run = mesh.cluster, f"tiledask-training-{uuid.uuid4().hex[:12]}"
            cluster.check_alive()
            on_page = stack.enter_context(announced(cluster, run, **_about(config)))
            if wanted:
                stack.enter_context(subscribed(cluster, run, reports.put))
            say = partial(report, run) if on_page or wanted else None
        if wanted:
            stack.enter_context(showing("training", look))
        yield say
        done[:] = [config.steps] * len(done)  # the last reports may be under way
        if mesh is not None:
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
