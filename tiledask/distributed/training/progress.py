"""A training that somebody watches: a bar, a function that is called, the dashboard's page.

    rank 0   step  step  step ... report --.
    rank 1   step  step  step ... report ---+--> the page; a thread, by which the others are called
    rank 2   step  step  step ... report --'

A report has a row for each step since the last one. There are at most ten a second from a rank,
however short its steps are.
"""

import threading
import uuid
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from math import inf, prod
from queue import SimpleQueue
from typing import Any

from tiledask.distributed.arrays.mesh import Mesh
from tiledask.distributed.cluster.progress import announced, ended, report, subscribed
from tiledask.distributed.ranks.rank import Rank
from tiledask.distributed.training.config import TrainingConfig
from tiledask.errors import ConfigError
from tiledask.tile.progress import is_watched, showing

__all__ = ["Listener", "Progress", "Report", "step_reporter", "watched"]

EVERY = 0.1
"""Seconds between two reports of a rank, at least."""
PATIENCE = 5.0
"""Seconds that a function has for what is left when the training is over."""
Report = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class Progress:
    """A step that all ranks have finished."""

    step: int
    """Its number, from 0."""
    steps: int
    """How many steps there will be."""
    loss: float
    """The loss of the whole batch, before the update."""
    seconds: float
    """Seconds from the end of the step before, or the first rank's begin, to the last's end."""
    tokens: int
    """The tokens of the batch."""
    sent: int
    """Bytes, by all ranks."""
    messages: int
    barriers: int
    """Barriers of the rank that has most."""
    floor: float | None = None
    """The best loss there is, if the data knows it."""


Listener = Callable[[Progress], Any]


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
    progress: bool | Listener | None, config: TrainingConfig, mesh: Mesh | None
) -> Iterator[Report | None]:
    """What the ranks of a training report to while the block runs; None if nobody looks on.

    ``progress`` as of `tiledask.train`. What a function raises is printed, as of any thread: it is
    called no more, and the training goes on.
    """
    wanted = is_watched() if progress is None else progress
    if not isinstance(wanted, bool) and not callable(wanted):
        raise ConfigError(
            f"progress is None, True, False or a function of one Progress, got {progress!r}; "
            f"print is one"
        )
    reports, latest = SimpleQueue[dict[str, Any]](), deque[Progress](maxlen=10)
    say: Report | None = reports.put if wanted else None
    with ExitStack() as stack:
        if mesh is not None:
            cluster, run = mesh.cluster, f"tiledask-training-{uuid.uuid4().hex[:12]}"
            cluster.check_alive()
            on_page = stack.enter_context(announced(cluster, run, **_about(config)))
            if wanted:
                stack.enter_context(subscribed(cluster, run, reports.put))
            say = partial(report, run) if on_page or wanted else None
        if wanted is True:
            stack.enter_context(showing("training", partial(_look, latest), "steps"))
        if wanted:
            given = _follow, config, reports, latest.append if wanted is True else wanted
            # what it prints or shows belongs to the notebook cell that is running
            thread = threading.Thread(target=copy_context().run, args=given, daemon=True)
            thread.start()
            stack.callback(reports.put, {})
        yield say
        if mesh is not None:
            ended(cluster, run)
        if wanted:
            thread.join(PATIENCE)  # reports may be under way, and it may be at work


def _follow(config: TrainingConfig, reports: SimpleQueue[dict[str, Any]], call: Listener) -> None:
    """Call it with each step that all ranks have done, by their ``reports``, up to an empty one."""
    rows: dict[int, dict[int, Any]] = defaultdict(dict)
    page, end = _about(config)["predicted"], inf
    for number in range(config.first, config.steps):
        while len(rows[number]) < prod(config.shape):
            if not (event := reports.get()):
                return
            if number == config.first:
                end = min(end, *(counted["begin"] for _, counted in event["counted"]))
            for rank, _, step, *row in event["spans"]:  # of one that was done again, the last
                rows[step][rank] = row
        losses, sent, messages, barriers, ends = zip(*rows.pop(number).values(), strict=True)
        begin, end = end, max(ends)
        moved = {"sent": sum(sent), "messages": sum(messages), "barriers": max(barriers)}
        call(Progress(number, loss=sum(losses), seconds=end - begin, **moved, **page))


def _look(latest: Sequence[Progress]) -> tuple[int, int | None, str]:
    """(steps done, of how many, what else there is to say), for the bar."""
    if not latest:
        return 0, None, "first step"
    last, took = latest[-1], sum(each.seconds for each in tuple(latest))
    rate = len(latest) * last.tokens / took if took else 0.0
    return last.step + 1, last.steps, f"loss {last.loss:.4f}  {rate:,.0f} tokens/s"


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
