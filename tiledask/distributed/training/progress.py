"""A training that somebody watches: a bar, a function that is called, the dashboard's page.

    ranks --reports--> queue --> a thread of its own --> listener(Progress)

The ranks never wait for a listener. One that raises is called no more, and one that does not come
back is left behind; both are said in a warning, and the training goes on.
"""

import contextvars
import threading
import uuid
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from queue import SimpleQueue
from typing import Any, Self

from tiledask.distributed.arrays.mesh import Mesh
from tiledask.distributed.cluster.progress import announced, ended, report, subscribed
from tiledask.distributed.training.by_layer import predicted_sums, together
from tiledask.distributed.training.config import TrainingConfig
from tiledask.distributed.training.reports import Assembly, Progress, Say
from tiledask.errors import ConfigError
from tiledask.plan.program.count import calls
from tiledask.plan.program.program import Program
from tiledask.tile.progress import is_watched, showing

__all__ = ["Bar", "watched"]

PATIENCE = 5.0
"""Seconds that a listener has for what is left when the training is over."""
AFTER_A_FAILURE = 1.0
"""Seconds that it has if the training has failed."""
ON_THE_WAY = 2.0
"""Seconds in which reports that are under way arrive."""
Listener = Callable[[Progress], Any]


@contextmanager
def watched(
    progress: bool | Listener | None,
    job: TrainingConfig,
    program: Program,
    ranks: Mesh | Sequence[int],
) -> Iterator[Say | None]:
    """What the ranks of ``job`` report to while the block runs; None if nobody wants to know.

    ``progress`` as of `tiledask.train`.
    """
    wanted = is_watched() if progress is None else progress
    if isinstance(wanted, bool):
        listener: Listener | None = Bar() if wanted else None
    elif callable(wanted):
        listener = wanted
    else:
        raise ConfigError(
            "progress is None, True, False or a function of one "
            f"tiledask.distributed.training.Progress, got {type(progress).__name__}; print is one"
        )
    shown = listener.shown if isinstance(listener, Bar) else nullcontext()
    calling = _Calls(listener, job, program.ranks) if listener else nullcontext()
    if not isinstance(ranks, Mesh):
        with shown, calling as called:
            yield called.reports.put if called else None
        return
    ranks.cluster.check_alive()
    run = f"tiledask-training-{uuid.uuid4().hex[:12]}"
    say = partial(report, run)
    page = announced(ranks.cluster, run, **_about(job, program))
    with page as on_page, shown, calling as called:
        if called is None:
            yield say if on_page else None
        else:
            with subscribed(ranks.cluster, run, called.reports.put):
                yield say
                called.all.wait(ON_THE_WAY)
    ended(ranks.cluster, run)


def _about(job: TrainingConfig, program: Program) -> dict[str, Any]:
    """What the page shows before the first step: what it is, what is predicted of a step."""
    model, schedule, (dp, tp, pp) = job.model, job.schedule, program.shape
    planned = together(predicted_sums(calls(program, rank)) for rank in range(program.ranks))
    return {
        "kind": "training",
        "lanes": [f"rank {rank}" for rank in range(program.ranks)],
        "facts": {
            "layout": f"dp {dp}, tp {tp}, pp {pp}",
            "ZeRO": str(job.zero),
            "schedule": f"{schedule.name}, {schedule.microbatches} micro-batches",
            "parameters": f"{model.size:,}, {job.dtype}",
        },
        "predicted": {
            "steps": job.steps,
            "tokens": job.batch * model.sequence,
            "floor": getattr(job.data, "floor", None),
            "units": list(model.units),
            "sums": [(*place, *sums) for place, sums in planned.items()],
        },
    }


# -- the listener ------------------------------------------------------------------------------


class _Calls(threading.Thread):
    """Calls a listener with every whole step, until it raises or time is over."""

    def __init__(self, listener: Listener, job: TrainingConfig, ranks: int) -> None:
        super().__init__(name="progress of a training", daemon=True)
        floor, tokens = getattr(job.data, "floor", None), job.batch * job.model.sequence
        self.listener = listener
        self.reports = SimpleQueue[dict[str, Any] | None]()
        """None: no more come."""
        self.assembly = Assembly(ranks, job.steps, tokens, floor)
        self.step = job.first
        """The step that the listener is busy with."""
        self.error: BaseException | None = None
        self.over = False
        self.all = threading.Event()
        """All steps are there."""
        if job.first == job.steps:
            self.all.set()
        # what it prints or shows belongs to the notebook cell that is running
        self.context = contextvars.copy_context()

    def run(self) -> None:
        while (report := self.reports.get()) is not None:
            for progress in self.assembly.completed(report):
                if progress.step == progress.steps - 1:
                    self.all.set()
                if self.over or self.error:
                    continue
                self.step = progress.step
                try:
                    self.context.run(self.listener, progress)
                except BaseException as error:  # nobody else hears of what is raised in a thread
                    self.error = error

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, failed: type[BaseException] | None, *_: Any) -> None:
        """Let it do what is left, for some seconds; say so if it did not."""
        self.reports.put(None)
        self.join(AFTER_A_FAILURE if failed else PATIENCE)
        self.over, words = True, ""
        if self.error:
            words = (
                f"raised {type(self.error).__name__} at step {self.step}: {self.error}; it was "
                f"called no more, and the training went on"
            )
        elif self.is_alive():
            words = (
                f"was busy with step {self.step} of {self.assembly.steps} when {PATIENCE:g} s had "
                f"passed since the last was done: it is called no more. Let it return sooner"
            )
        if words and not failed:
            warnings.warn(f"progress= {words}", RuntimeWarning, stacklevel=3)


# -- a bar -------------------------------------------------------------------------------------


class Bar:
    """A bar with the loss and tokens a second; it appears if the training takes longer."""

    def __init__(self) -> None:
        self._latest: Progress | None = None
        self._seconds: deque[float] = deque(maxlen=10)
        self.shown = showing("training", self._look, "steps")
        """What it is shown in."""

    def __call__(self, progress: Progress) -> None:
        self._seconds.append(progress.seconds)
        self._latest = progress

    def _look(self) -> tuple[int, int | None, str]:
        last, took = self._latest, list(self._seconds)
        if last is None:
            return 0, None, "first step"
        rate = len(took) * last.tokens / sum(took) if sum(took) else 0.0
        return last.step + 1, last.steps, f"loss {last.loss:.4f}  {rate:,.0f} tokens/s"
