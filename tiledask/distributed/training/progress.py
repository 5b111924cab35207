"""A training that somebody watches: a bar, a function that is called, the dashboard's page.

    rank 0   step  step  step ... report --.
    rank 1   step  step  step ... report ---+--> the page; a queue, at which the others look
    rank 2   step  step  step ... report --'

A report has a row for each step since the last one. There are at most ten a second from a rank,
however short its steps are.
"""

import threading
import uuid
import warnings
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from math import prod
from queue import SimpleQueue
from time import monotonic, sleep
from typing import Any

from tiledask.distributed.arrays.mesh import Mesh
from tiledask.distributed.cluster.progress import announced, ended, report, subscribed
from tiledask.distributed.ranks.rank import Rank
from tiledask.distributed.training.config import TrainingConfig
from tiledask.errors import ConfigError
from tiledask.tile.progress import is_watched, showing

__all__ = ["Listener", "Progress", "Report", "StepReporter", "watched"]

EVERY = 0.1
"""Seconds between two reports of a rank, at least."""
LOOK = 0.05
"""Seconds between two looks of a function that is called."""
ON_THE_WAY = 2.0
"""Seconds in which reports that are under way arrive."""
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


class StepReporter:
    """Reports the steps of one rank."""

    def __init__(self, rank: Rank, say: Report) -> None:
        self.rank, self.say = rank, say
        self.begin = rank.transport.now()
        self._seen, self._done, self._last = 0, 0, self.begin - EVERY
        self._rows: list[tuple[Any, ...]] = []

    def update(self, losses: Sequence[float], at_once: bool = False) -> None:
        """Report the steps that are done, of which this rank has these parts of the ``losses``."""
        rank, records = self.rank, self.rank.records[self._seen :]
        for step, loss in zip(rank.steps[self._done :], losses[self._done :], strict=True):
            mine = [each for each in records if each.step == step.step]
            moved = sum(each.sent for each in mine), sum(each.messages for each in mine)
            barriers = sum(each.barrier is not None for each in mine)
            # the ranks of a tensor-parallel group all have the loss of the same rows
            part = 0.0 if rank.coordinates[1] else loss
            self._rows.append((rank.index, "step", step.step, part, *moved, barriers, step.end))
        self._seen, self._done = len(rank.records), len(rank.steps)
        now = rank.transport.now()
        if at_once or now - self._last >= EVERY:
            self.say({"spans": self._rows, "counted": [(rank.index, {"begin": self.begin})]})
            self._last, self._rows = now, []


@contextmanager
def watched(
    progress: bool | Listener | None, config: TrainingConfig, ranks: Mesh | Sequence[int]
) -> Iterator[Report | None]:
    """What the ranks of a training report to while the block runs; None if nobody looks on.

    ``progress`` as of `tiledask.train`.
    """
    wanted = is_watched() if progress is None else progress
    if not isinstance(wanted, bool) and not callable(wanted):
        raise ConfigError(
            f"progress is None, True, False or a function of one Progress, got {progress!r}; "
            f"print is one"
        )
    with ExitStack() as stack:
        steps = _WholeSteps(config)
        if wanted is True:
            stack.enter_context(showing("training", steps.look, "steps"))
        elif wanted:
            stack.enter_context(_called(wanted, steps))
        if not isinstance(ranks, Mesh):
            yield steps.reports.put if wanted else None
            return
        cluster, run = ranks.cluster, f"tiledask-training-{uuid.uuid4().hex[:12]}"
        cluster.check_alive()
        on_page = stack.enter_context(announced(cluster, run, **_about(config)))
        if wanted:
            stack.enter_context(subscribed(cluster, run, steps.reports.put))
        yield partial(report, run) if on_page or wanted else None
        deadline = monotonic() + ON_THE_WAY
        while callable(wanted) and steps.next < config.steps and monotonic() < deadline:
            sleep(LOOK)
    ended(cluster, run)


@contextmanager
def _called(listener: Listener, steps: "_WholeSteps") -> Iterator[None]:
    """A function is called with every whole step while the block runs, in a thread of its own,
    until it raises: that is said in a warning, and the training goes on."""
    over, wrong = threading.Event(), list[str]()

    def call() -> None:
        is_last = False
        while not is_last:
            is_last = over.wait(LOOK)
            for each in steps.whole():
                try:
                    listener(each)
                except BaseException as error:  # nobody else sees what a thread raises
                    wrong.append(f"raised {type(error).__name__} at step {each.step}: {error}")
                    return

    # what it prints or shows belongs to the notebook cell that is running
    thread = threading.Thread(target=copy_context().run, args=(call,), daemon=True)
    thread.start()
    try:
        yield
        over.set()
        thread.join(PATIENCE)
        if thread.is_alive():
            wrong.append(f"was not done {PATIENCE:g} s after the last step")
    finally:
        over.set()
    for words in wrong:
        warnings.warn(
            f"progress= {words}; it is called no more, and the training went on",
            RuntimeWarning,
            stacklevel=3,
        )


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
        "predicted": {"steps": config.steps, "tokens": config.tokens, "floor": config.floor},
    }


class _WholeSteps:
    """The steps that all ranks have done, from their reports; for one who looks now and then."""

    def __init__(self, config: TrainingConfig) -> None:
        self.config = config
        self.reports = SimpleQueue[dict[str, Any]]()
        self.next = config.first
        """The step that is done next; those before it were, by an earlier attempt if by none."""
        self._rows: dict[int, dict[int, Any]] = defaultdict(dict)
        """Step -> rank -> what it has reported of it; of one that was done again, the last."""
        self._end = float("inf")
        self._latest: deque[Progress] = deque(maxlen=10)

    def whole(self) -> Iterator[Progress]:
        """Those that were not given before, in their order."""
        config = self.config
        while not self.reports.empty():
            event = self.reports.get()
            if self.next == config.first:
                self._end = min(self._end, *(counted["begin"] for _, counted in event["counted"]))
            for rank, _, number, *row in event["spans"]:
                self._rows[number][rank] = row
            while len(self._rows[self.next]) == prod(config.shape):
                rows = self._rows.pop(self.next).values()
                losses, sent, messages, barriers, ends = zip(*rows, strict=True)
                begin, self._end, number = self._end, max(ends), self.next
                seen = number, config.steps, sum(losses), self._end - begin, config.tokens
                self.next += 1
                yield Progress(*seen, sum(sent), sum(messages), max(barriers), config.floor)

    def look(self) -> tuple[int, int | None, str]:
        """(steps done, of how many, what else there is to say)."""
        self._latest.extend(self.whole())
        if not self._latest:
            return 0, None, "first step"
        last, took = self._latest[-1], sum(each.seconds for each in self._latest)
        rate = len(self._latest) * last.tokens / took if took else 0.0
        return last.step + 1, last.steps, f"loss {last.loss:.4f}  {rate:,.0f} tokens/s"
