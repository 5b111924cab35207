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
from tiledask.plan.diagnosis.timed import Form, TimedSchedule, built, forms
from tiledask.plan.diagnosis.trace import Trace

__all__ = ["fit_nearest", "fit_turns"]

MOMENTS = 600
"""At which trace and simulation are compared."""
MOST_MISSED = 0.7
"""Of what as much work at other moments would miss: a plan that misses more is not told."""
MOST_MICROBATCHES = 64
MOST_ACTIONS = 3_000
MOST_DEVICES = 64
LEAST_WAY, MOST_WAY = 0.4, 6.0
"""From device to device and back, in forward and backward together: less or more is no guess."""
TRIED = ("naive", "gpipe", "1f1b", "eager-1f1b", "zb-h1", "interleaved", "looped-bfs")
LATE = 3.0
"""Weight of work that is done earlier or later, against work at other moments."""
FOLLOWED = 4
"""Guesses that are improved."""


def fit_turns(trace: Trace) -> TraceFit:
    """The Fit of devices that take turns: each does its work in one go down, and one up.

    A backward is taken to be twice a forward. What no device works is the way of results.
    """
    p, busy = trace.devices, trace.busy_per_device
    form = Form("naive", p, 1, 1)
    quiet = max(0.0, trace.makespan - float(busy.sum()))
    hop = quiet / (2 * (p - 1)) if quiet > 1e-3 * trace.makespan else 0.0
    forward, backward = (tuple((busy * part / 3).tolist()) for part in (1, 2))
    plan = TimedSchedule(form.build(), forward, backward, latency=(hop,) * (p - 1), form=form)
    guess = f"two or more devices work at once in {100 * trace.overlap:.0f} % of the working time"
    return _guessed(plan, guess)


def _guessed(plan: TimedSchedule, guess: str) -> TraceFit:
    return TraceFit(plan, 0.0, 0.0, plan.schedule.stages, True, True, guess=guess)


class _Times(NamedTuple):
    """What a guess is made of, beside its form."""

    share: float
    """Of a forward, in forward and backward together."""
    hop: float
    """Seconds."""
    overhead: float
    """Seconds."""


def fit_nearest(trace: Trace) -> TraceFit | None:
    """The TraceFit that is busy when ``trace`` is, for most of the time; None if none comes near.

    Work per device is the trace's. Schedule, micro-batches, latency, overhead and the share of
    forwards are tried, and the best guesses improved step by step.
    """
    if not 1 < trace.devices <= MOST_DEVICES:
        return None
    look = _Look(trace)
    tried = [(look.miss(form, times), form, times) for form, times in _guesses(trace)]
    best = sorted(tried, key=lambda t: t[0])[:FOLLOWED]
    found = [_improved(look, form, times, miss) for miss, form, times in best]
    if not found:
        return None
    least = min(miss for miss, *_ in found)
    plain = [f for f in found if f[0] <= 1.1 * least + 0.005]
    miss, form, times = min(plain, key=lambda f: (f[1].chunks, TRIED.index(f[1].name), f[0]))
    idle = trace.idle / (trace.devices * trace.makespan)
    plan = look.plan(form, times)
    if plan is None or miss > MOST_MISSED * 2 * idle * (1 - idle):
        return None
    alike = float((look.seen(plan) == look.busy).mean())
    words = f"devices work or wait as it says {100 * alike:.0f} % of the time"
    return _guessed(plan, f"the nearest of the table: {words}")


def _guesses(trace: Trace) -> Iterator[tuple[Form, _Times]]:
    """Forms with times to begin with: from device to device it takes down + up = F + B + 2 hops."""
    first, last = trace.start[trace.turns[:-1]], trace.end[trace.turns[1:] - 1]
    down, up = float(first.max()), trace.makespan - float(last.min())
    way = (down + up) / (trace.devices - 1)
    shares = {1 / 3, float(np.clip(down / (down + up or 1), 0.1, 0.7))}
    # the first device's pauses before the last one starts: it waits for nothing
    mine = slice(*trace.turns[:2])
    start, end = trace.start[mine], trace.end[mine]
    gaps = (start[1:] - end[:-1])[end[:-1] < down]
    gap = float(np.median(gaps)) if len(gaps) else 0.0
    work = float(trace.busy_per_device.mean())
    blocks = int(np.diff(trace.turns).max())
    for form in forms_of(trace.devices):
        length = work / form.microbatches / form.chunks
        fits = LEAST_WAY * length <= way <= MOST_WAY * length
        if not fits or blocks > 3 * form.chunks * form.microbatches:
            continue
        for overhead in {0.0, min(gap, 2 * length)}:
            hop = max(0.0, (way - length) / 2 - overhead)
            for share in shares:
                for part in (0.0, 0.5, 1.0):
                    if part == 0.0 or hop > 0.05 * length:
                        yield form, _Times(share, part * hop, overhead)


def forms_of(devices: int) -> Iterator[Form]:
    for m in (m for m in range(1, MOST_MICROBATCHES + 1) if m <= 16 or m % 4 == 0):
        for form in forms(devices, m, most=2):
            small = 2 * devices * form.chunks * m <= MOST_ACTIONS
            if form.name in TRIED and small and (m > 1 or form.name == "naive" or form.chunks > 1):
                yield form


class _Look:
    """A trace, seen at some moments."""

    def __init__(self, trace: Trace):
        self.trace = trace
        self.moments = (np.arange(MOMENTS) + 0.5) / MOMENTS * trace.makespan
        self.busy = _busy_at(self.moments, trace.start, trace.end, trace.turns)
        """[devices, moments]"""

    def plan(self, form: Form, times: _Times) -> TimedSchedule | None:
        """The TimedSchedule of these times; every chunk of a device has the same."""
        order = built(form)
        if order is None:
            return None
        of_stage = np.zeros(order.stages, int)
        of_stage[order.stage] = order.device
        length = (self.trace.busy_per_device / form.microbatches / form.chunks)[of_stage]
        forward, backward = (
            tuple((length * part).tolist()) for part in (times.share, 1 - times.share)
        )
        hops = (times.hop,) * (order.stages - 1)
        return TimedSchedule(
            order, forward, backward, latency=hops, overhead=times.overhead, form=form
        )

    def miss(self, form: Form, times: _Times) -> float:
        """How far off it is: work at other moments, work done late, another makespan."""
        plan = self.plan(form, times)
        if plan is None:
            return np.inf
        t = plan.timeline
        off = abs(t.makespan - self.trace.makespan) / self.trace.makespan
        if off > 0.3:
            return 1.0 + float(off)
        seen = self.seen(plan)
        late = np.abs(np.cumsum(seen, axis=1) - np.cumsum(self.busy, axis=1)).mean() / MOMENTS
        return float((seen != self.busy).mean()) + LATE * float(late) + 0.5 * off

    def seen(self, plan: TimedSchedule) -> np.ndarray:
        start = plan.timeline.start + plan.overhead
        zero = start.min()
        return _busy_at(self.moments, start - zero, plan.timeline.end - zero, plan.schedule.turns)


def _busy_at(
    moments: np.ndarray, start: np.ndarray, end: np.ndarray, turns: np.ndarray
) -> np.ndarray:
    rows = []
    for a, b in pairwise(turns.tolist()):
        at = np.searchsorted(start[a:b], moments, "right") - 1
        rows.append((at >= 0) & (moments < end[a:b][at]))
    return np.stack(rows)


def _improved(look: _Look, form: Form, times: _Times, miss: float) -> tuple[float, Form, _Times]:
    """(miss, form, times) after steps to whatever neighbour is better."""
    unit = float(look.trace.busy_per_device.mean()) / form.microbatches / form.chunks
    for step in (0.2, 0.07, 0.025):
        for _ in range(4):
            tried = [
                _Times(
                    float(np.clip(times.share * (1 + a * step), 0.05, 0.9)),
                    max(0.0, times.hop + b * step * unit),
                    max(0.0, times.overhead + c * step * unit),
                )
                for a, b, c in MOVES
            ]
            best, better = min((look.miss(form, t), t) for t in tried)
            if best >= miss:
                break
            miss, times = best, better
    return miss, form, times


MOVES = [(a, 0, 0) for a in (-1, 1)] + [(0, b, 0) for b in (-1, 1)] + [(0, 0, c) for c in (-1, 1)]
