"""What a run reports while it goes on: to the dashboard's page, and to whoever follows a call.

client    announced   run, kind, lanes, facts, predicted        once
workers   report      run, spans, counted of a lane             now and then
client    ended       run, state                                once

Each is one of Dask's events: a dict with "run", the run's name, and what there is of the rest.
``spans`` are rows that begin with a lane, ``counted`` pairs of a lane and its numbers. They are on
the topic RUNS. A page is worth no run: what cannot be reported is not.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from time import monotonic
from typing import Any

from distributed import Worker, get_worker

from tiledask.distributed.cluster.cluster import Cluster
from tiledask.tile.progress import is_watched, showing

__all__ = ["RUNS", "Progress", "announced", "ended", "log_last", "report", "reporter", "subscribed"]
__all__ += ["watching"]

Progress = bool | Callable[[int, int], None] | None
"""How far a call is, for people: a bar or none, or a function of (done, in all)."""
RUNS = "tiledask-runs"
"""Dask's topic of all runs."""
_REPORT = 0.25  # seconds between two reports of a rank


@contextmanager
def announced(cluster: Cluster, run: str, **about: Any) -> Iterator[bool]:
    """Whether the page follows ``run`` while the block runs; if that fails, it shows why."""
    _notify(cluster, {"run": run, **about})
    try:
        yield cluster.page
    except BaseException as error:
        words = f"{type(error).__name__}: {error}".rstrip(": ").splitlines()[0]
        _notify(cluster, {"run": run, "state": f"failed: {words}"})
        raise


def ended(cluster: Cluster, run: str) -> None:
    """Show ``run`` as done."""
    _notify(cluster, {"run": run, "state": "done"})


def _notify(cluster: Cluster, event: dict[str, Any]) -> None:
    owner: Any = cluster.given if cluster.started_here else cluster.client
    if cluster.page:
        with suppress(Exception):  # of a cluster that is closed
            owner.loop.add_callback(owner.scheduler.log_event, topic=RUNS, msg=event)


def report(run: str, event: dict[str, Any], *, last: bool = False) -> None:
    """Report ``event`` of ``run`` from a task; ``last``: as the task ends."""
    log = log_last if last else Worker.log_event
    with suppress(Exception):
        log(get_worker(), RUNS, {"run": run, **event})


def log_last(worker: Any, topic: str, event: dict[str, Any]) -> None:
    """Log ``event`` of a task that ends now: it goes along with the news of that, which would wait
    2 ms behind a message of its own."""
    message = {"op": "log-event", "topic": topic, "msg": event}
    worker.loop.add_callback(lambda: worker.batched_stream.buffer.append(message))


def reporter(
    run: str, rank: int, of: int, spans: Callable[[], list[Any]] | None = None
) -> Callable[..., None]:
    """What one rank of a product calls after each of its ``of`` panels, and at its end: it reports
    now and then how far the rank is. ``spans``: what the page shows that it did since."""
    done, last = 0, monotonic()

    def panel_done(*, at_end: bool = False) -> None:
        nonlocal done, last
        done += not at_end
        if run and (at_end or monotonic() - last >= _REPORT):
            last, numbers = monotonic(), {"done": done, "of": of} if of else {}  # a sum has none
            new = spans() if spans else []
            report(run, {"spans": new, "counted": [(rank, numbers)]}, last=at_end)

    return panel_done


# -- whoever follows -------------------------------------------------------------------------------


@contextmanager
def subscribed(cluster: Cluster, on_event: Callable[[Any], None]) -> Iterator[None]:
    """Calls ``on_event`` with every event of runs while the block runs."""
    client: Any = cluster.client  # Dask says no types of these
    client.subscribe_topic(RUNS, lambda event: on_event(event[1]))
    try:
        yield
    finally:
        with suppress(Exception):  # of a client that is closed meanwhile
            client.unsubscribe_topic(RUNS)


@contextmanager
def watching(
    wanted: Progress, run: str, panels: Sequence[int], what: str, cluster: Cluster
) -> Iterator[bool]:
    """Shows how many of the ``panels`` of each rank are done while the block runs; whether it does.

    ``wanted``: True and False insist, None shows a bar on a terminal. A function is called with
    (panels done, panels in all).
    """
    done, in_all = [0] * len(panels), sum(panels)
    if not (is_watched() if wanted is None else wanted):
        yield False
        return
    tell = wanted if callable(wanted) else None

    def on_event(event: Any) -> None:
        for rank, numbers in event.get("counted", ()) if event.get("run") == run else ():
            if "done" in numbers:
                done[rank] = max(done[rank], numbers["done"])
                if tell:
                    tell(sum(done), in_all)

    bar = nullcontext() if tell else showing(what, lambda: (sum(done), in_all, ""))
    with bar, subscribed(cluster, on_event):
        yield True
        done[:] = panels  # ranks do not report their last panels
    if tell:
        tell(in_all, in_all)
