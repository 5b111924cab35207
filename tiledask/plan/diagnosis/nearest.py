"""Plans for traces that no plan explains edge by edge: those with noise.

turns      one device busy at a time, whatever the noise: layer-wise, one micro-batch
nearest    the plan whose simulation has devices busy when the trace has them busy, for most of
           the time:   trace    ####.###..####      simulated  ####.####.###.      12 of 14 alike
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from tiledask.plan.diagnosis.infer import TraceFit
from tiledask.plan.diagnosis.timed import Form, TimedSchedule, forms
from tiledask.plan.diagnosis.trace import Trace
from tiledask.plan.pipelines.schedules import schedule

__all__ = ["fit_nearest", "fit_turns"]

MOMENTS = 600
"""At which trace and simulation are compared."""
MOST_MISSED = 0.7
"""Of what as much work at other moments would miss: a plan that misses more is none."""
MOST_MICROBATCHES = 64
MOST_ACTIONS = 3_000
MOST_DEVICES = 64
LEAST_WAY, MOST_WAY = 0.4, 6.0
"""From device to device and back, in forward and backward together: less or more is no guess."""
TRIED = ("naive", "gpipe", "1f1b", "eager-1f1b", "zb-h1", "interleaved", "looped-bfs")


def fit_turns(trace: Trace) -> TraceFit:
    """The TraceFit of devices that take turns: each does its work in one go down, and one up. A
    backward is taken to be twice a forward; what no device works is the way of results."""
    p, busy = trace.devices, trace.busy_per_device
    form = Form("naive", p, 1, 1)
    quiet = max(0.0, trace.makespan - float(busy.sum()))
    hop = quiet / (2 * (p - 1)) if quiet > 1e-3 * trace.makespan else 0.0
    forward, backward = (tuple((busy * part / 3).tolist()) for part in (1, 2))
    order = schedule(*form[:2], microbatches=1)
    plan = TimedSchedule(order, forward, backward, latency=(hop,) * (p - 1), form=form)
    guess = f"two or more devices work at once in {100 * trace.overlap:.0f} % of the working time"
    return TraceFit(plan, guess=guess)


class _Guess(NamedTuple):
    form: Form
    share: float
    """Of a forward, in forward and backward together."""
    hop: float
    """Seconds."""
    overhead: float
    """Seconds."""

    def plan(self, trace: Trace) -> TimedSchedule | None:
        """Every chunk of a device has the same times, and work per device is the trace's."""
        form, share, hop, overhead = self
        order = form.made()
        if order is None:
            return None
        device = np.zeros(order.stages, int)
        device[order.stage] = order.device
        length = (trace.busy_per_device / form.microbatches / form.chunks)[device]
        forward, backward = (tuple((length * part).tolist()) for part in (share, 1 - share))
        latency = (hop,) * (order.stages - 1)
        return TimedSchedule(order, forward, backward, (), (), latency, overhead, form)


def fit_nearest(trace: Trace) -> TraceFit | None:
    """The TraceFit that is busy when ``trace`` is, for most of the time; None if none comes near.

    Schedule, micro-batches, latency, overhead and the share of forwards are tried; of guesses that
    are about as near, the plainest schedule is taken.
    """
    if not 1 < trace.devices <= MOST_DEVICES:
        return None
    seen = _busy_at(trace.makespan, trace.start, trace.end, trace.turns)
    tried = [(_miss(trace, seen, guess), guess) for guess in _guesses(trace)]
    least = min((miss for miss, _ in tried), default=np.inf)
    plain = [each for each in tried if each[0] <= 1.1 * least + 0.005]
    if not np.isfinite(least):
        return None
    miss, guess = min(plain, key=lambda f: (f[1].form.chunks, TRIED.index(f[1].form.name), f[0]))
    idle = trace.idle / (trace.devices * trace.makespan)
    plan = guess.plan(trace)
    if plan is None or miss > MOST_MISSED * 2 * idle * (1 - idle):
        return None
    alike = float((_simulated(plan, trace) == seen).mean())
    words = f"devices work or wait as it says {100 * alike:.0f} % of the time"
    return TraceFit(plan, guess=f"the nearest of the table: {words}")


def _guesses(trace: Trace) -> Iterator[_Guess]:
    """Times to begin with: from device to device it takes down + up = F + B + 2 hops."""
    first, last = trace.start[trace.turns[:-1]], trace.end[trace.turns[1:] - 1]
    down, up = float(first.max()), trace.makespan - float(last.min())
    way = (down + up) / (trace.devices - 1)
    shares = {1 / 3, float(np.clip(down / (down + up or 1), 0.1, 0.7))}
    # the first device's pauses before the last one starts: it waits for nothing
    mine = slice(*trace.turns[:2])
    start, end = trace.start[mine], trace.end[mine]
    gaps = (start[1:] - end[:-1])[end[:-1] < down]
    gap = float(np.median(gaps)) if len(gaps) else 0.0
    work, blocks = float(trace.busy_per_device.mean()), int(np.diff(trace.turns).max())
    counts = (m for m in range(1, MOST_MICROBATCHES + 1) if m <= 16 or m % 4 == 0)
    for form in (f for m in counts for f in forms(trace.devices, m, most=2) if f.name in TRIED):
        actions = form.chunks * form.microbatches
        length = work / form.microbatches / form.chunks
        turned = form.name == "naive" or form.chunks > 1 or form.microbatches > 1
        if not (turned and LEAST_WAY * length <= way <= MOST_WAY * length):
            continue
        if blocks > 3 * actions or 2 * trace.devices * actions > MOST_ACTIONS:
            continue
        for overhead in {0.0, min(gap, 2 * length)}:
            hop = max(0.0, (way - length) / 2 - overhead)
            for share in shares:
                for part in (0.0, 0.5, 1.0) if hop > 0.05 * length else (0.0,):
                    yield _Guess(form, share, part * hop, overhead)


def _miss(trace: Trace, seen: np.ndarray, guess: _Guess) -> float:
    """How far off it is: work at other moments, another makespan."""
    plan = guess.plan(trace)
    if plan is None:
        return np.inf
    off = abs(plan.makespan - trace.makespan) / trace.makespan
    if off > 0.3:
        return 1.0 + off
    return float((_simulated(plan, trace) != seen).mean()) + 0.5 * off


def _simulated(plan: TimedSchedule, trace: Trace) -> np.ndarray:
    """When the devices of a plan are busy: bool [devices, moments]."""
    start = plan.timeline.start + plan.overhead
    zero = start.min()
    return _busy_at(trace.makespan, start - zero, plan.timeline.end - zero, plan.schedule.turns)


def _busy_at(makespan: float, start: np.ndarray, end: np.ndarray, turns: np.ndarray) -> np.ndarray:
    moments, rows = (np.arange(MOMENTS) + 0.5) / MOMENTS * makespan, []
    for a, b in pairwise(turns.tolist()):
        at = np.searchsorted(start[a:b], moments, "right") - 1
        rows.append((at >= 0) & (moments < end[a:b][at]))
    return np.stack(rows)
