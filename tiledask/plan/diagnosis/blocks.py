"""From busy blocks, in which actions have run together, to the plan behind them.

    trace    device 1   ....#########..######....#####      only the edges are seen
    guess               ....F0F1F2F3..B0F4B1....B2B3B4      a schedule, and times for it

Every edge of a guess is the end of a chain of actions, so it is a sum of times: linear until
another chain is longer. Newton's step from such sums to the edges seen, repeated, finds the times;
then each edge of the trace is explained to within a sample, or the guess was wrong.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from tiledask.plan.diagnosis.infer import TraceFit
from tiledask.plan.diagnosis.timed import Form, TimedSchedule, built
from tiledask.plan.diagnosis.trace import Trace
from tiledask.plan.pipelines.schedule import KINDS, Schedule
from tiledask.plan.pipelines.schedules import V_SHAPED, is_looped, schedules
from tiledask.plan.pipelines.simulate import simulate

__all__ = ["fit_blocks"]

MOST_MICROBATCHES = 256
BACKWARD = (0.5, 5.0)
"""How many forwards a backward may take: outside of this no guess is made."""
WAYS = (0.0, 0.1, 0.25, 0.4, 0.6)
"""Shares of the time from a device's start to the next one's that are tried as latency."""
STEPS = 20
TRIES = 24
"""Guesses of one kind that are followed up: those nearest to the trace to begin with."""
FEW = 6
"""The same, where the plan is nearly known."""
MOST_ACTIONS = 1500
"""Of a schedule that is tried."""


def fit_blocks(trace: Trace, near: Form | None = None) -> TraceFit | None:
    """A TraceFit whose edges are those of ``trace`` within half a sample on average; None if there
    is none.

    Schedules with fewer times go first, and of one kind the guesses that are nearest to begin
    with. Where a device has several chunks, and where few pauses are seen, the search often ends
    without: it starts from equal chunks, and anything would fit. With ``near`` only schedules are
    tried that have as many micro-batches and chunks as that, and one more or less.
    """
    if trace.devices == 1 or trace.is_coarse:
        return None
    limit = max(0.5 * trace.grain, 1e-6 * trace.makespan)
    for _, group in groupby(_candidates(trace), key=lambda c: c[0]):
        guesses: list[tuple[float, int, _Search, np.ndarray]] = []
        for _, form in group:
            # nearly as many micro-batches, or the same made of one in two chunks
            if (
                near is not None
                and abs(form.microbatches * form.chunks - near.microbatches * near.chunks)
                > form.chunks
                and abs(form.microbatches - near.microbatches) > 1
            ):
                continue
            order = built(form)
            if order is None or order.paired.any() or len(order) > MOST_ACTIONS:
                continue
            if (np.diff(order.turns) < np.diff(trace.turns)).any():
                continue  # more blocks than it has actions
            chains = _Chains.of(order)
            if len(chains.names) > 2 * len(trace.start):
                continue  # fewer edges than it has times
            search = _Search(chains, form, trace, limit)
            guesses += ((search.miss(g), len(guesses), search, g) for g in search.guesses())
        for *_, search, guess in sorted(guesses, key=lambda g: g[:2])[
            : TRIES if near is None else FEW
        ]:
            found = search.newton(guess)
            if found is not None:
                return found
    return None


def _candidates(trace: Trace) -> Iterator[tuple[int, Form]]:
    """(times per device, Form), simplest first."""
    table: dict[int, list[tuple[str, int]]] = {}
    for name in schedules:
        split = name.startswith("zb") or name.endswith("zb") or name in V_SHAPED
        chunks = 2 if name in V_SHAPED or is_looped(name) else 1
        table.setdefault(chunks * (3 if split else 2), []).append((name, chunks))
    for size, named in sorted(table.items()):
        least, most = _microbatches(trace, named[0][1], WAYS[0], WAYS[-1])
        if size == 2:
            # a device starts at least F + hop before the next and ends at least B + hop after it
            start, end = trace.start[trace.turns[:-1]], trace.end[trace.turns[1:] - 1]
            room = np.diff(start) - np.diff(end)
            sure = room > 0
            needed = trace.busy_per_device[:-1][sure] / (room[sure] + 2 * trace.grain)
            least = max(least, int(np.ceil(needed.max(initial=1) - 1e-9)))
        for m in range(least, most + 1):
            for name, chunks in named:
                yield size, Form(name, trace.devices, chunks, m)


def _microbatches(trace: Trace, chunks: int, low: float, high: float) -> tuple[int, int]:
    """(fewest, most) micro-batches if latency has from ``low`` to ``high`` of each way down."""
    down = np.diff(trace.start[trace.turns[:-1]])
    work = float(np.median(trace.busy_per_device[:-1] / np.maximum(down, 1e-300))) / chunks
    least = work / (1 - low) / (1 + BACKWARD[1])
    most = work / (1 - high) / (1 + BACKWARD[0])
    return max(1, int(least)), min(MOST_MICROBATCHES, int(most) + 1)


@dataclass(frozen=True)
class _Chains:
    """A schedule as equations: each action's end is a sum of times."""

    order: Schedule
    topological: list[int]
    before: list[int]
    """The action before on the device, or -1."""
    needed: list[int]
    """The action whose result comes from another device, or -1."""
    columns: np.ndarray
    """[actions, times]: the times that an action itself takes."""
    names: list[str]

    @classmethod
    def of(cls, order: Schedule) -> "_Chains":
        n, stages = len(order), order.stages
        kinds = order.kind
        split = bool((kinds == 2).any())
        words = [(k, s) for k in ((0, 2, 3) if split else (0, 1)) for s in range(stages)]
        at = {word: j for j, word in enumerate(words)}
        columns = np.zeros((n, len(words) + 1))
        for a, (k, s) in enumerate(zip(kinds.tolist(), order.stage.tolist(), strict=True)):
            parts = [(2, s), (3, s)] if split and k == 1 else [(k, s)]
            for part in parts:
                columns[a, at[part]] += 1
        ends = simulate(order, forward=1.0, backward=2.0).end
        before = np.arange(-1, n - 1)
        before[order.turns[:-1]] = -1
        names = [f"{KINDS[k]} of stage {s}" for k, s in words] + ["latency"]
        topological = np.argsort(ends, kind="stable").tolist()
        # the result that an action takes from another device
        device = order.device.tolist()
        actions = list(
            zip(kinds.tolist(), order.stage.tolist(), order.microbatch.tolist(), strict=True)
        )
        made = {(k > 0, s, i): a for a, (k, s, i) in enumerate(actions) if k < 3}
        needed = []
        for a, (k, s, i) in enumerate(actions):
            other = made.get((k > 0, s + (1 if k else -1), i), -1) if k < 3 else -1
            needed.append(other if other >= 0 and device[other] != device[a] else -1)
        return cls(order, topological, before.tolist(), needed, columns, names)

    def run(self, times: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(starts, ends, chains): ends = chains @ times."""
        lengths = self.columns @ times
        hop = float(times[-1])
        n = len(lengths)
        start, end = [0.0] * n, [0.0] * n
        chains = self.columns.copy()
        for a, length in zip(self.topological, lengths[self.topological].tolist(), strict=True):
            b, r = self.before[a], self.needed[a]
            free = end[b] if b >= 0 else 0.0
            there = end[r] + hop if r >= 0 else 0.0
            if r >= 0 and (there > free or b < 0):
                chains[a] += chains[r]
                chains[a, -1] += 1
                free = there
            elif b >= 0:
                chains[a] += chains[b]
            start[a] = free
            end[a] = free + length
        return np.array(start), np.array(end), chains


@dataclass(frozen=True)
class _Search:
    """Newton's steps for one schedule, from several guesses."""

    chains: _Chains
    form: Form
    trace: Trace
    limit: float

    def guesses(self) -> Iterator[np.ndarray]:
        """Times to begin with, for each latency that makes so many micro-batches likely."""
        for share in WAYS:
            fewest, most = _microbatches(self.trace, self.form.chunks, share, share)
            if fewest <= self.form.microbatches <= most:
                yield self.guess(share)

    def miss(self, times: np.ndarray) -> float:
        """Seconds by which edges are off, root mean square."""
        _, off, _ = self.look(times)
        return float(np.sqrt((off**2).mean()))

    def guess(self, share: float) -> np.ndarray:
        """Times to begin with; ``share`` of the shortest way from device to device is latency."""
        order, trace = self.chains.order, self.trace
        down = np.diff(trace.start[trace.turns[:-1]])
        hop = share * float(down.min())
        work = trace.busy_per_device / self.form.microbatches / self.form.chunks
        forward = np.append(down - hop, np.mean(down - hop))
        forward = np.clip(forward, 0.05 * work, 0.9 * work)
        of_stage = np.zeros(order.stages, int)
        of_stage[order.stage] = order.device
        kinds = (len(self.chains.names) - 1) // order.stages
        rest = (work - forward)[of_stage] / (kinds - 1)
        return np.concatenate([forward[of_stage], *[rest] * (kinds - 1), [hop]])

    def newton(self, times: np.ndarray) -> TraceFit | None:
        """Steps that believe near edges more than far ones, until each is within a sample.

        Gives up when three steps have not made the guess much better.
        """
        scale, first, best, stuck = float(times.mean()), np.inf, np.inf, 0
        for step in range(STEPS):
            rows, off, work = self.look(times)
            rms = float(np.sqrt((off**2).mean()))
            first = rms if step == 0 else first
            hopeful = 0.5**step * 2 * first if step < 5 else 0.1 * first
            if step >= 2 and rms > max(hopeful, 20 * self.limit):
                return None
            if rms <= self.limit and rms > 0.9 * best:
                break
            stuck = stuck + 1 if rms > 0.98 * best and rms > self.limit else 0
            if stuck == 4:
                return None
            best = min(best, rms)
            near = 1 / (np.abs(off) + np.median(np.abs(off)) + 1e-12 * self.trace.makespan)
            near[len(off) - work :] = near.max()
            near /= near.max()
            damp = rms / scale * np.eye(len(times))
            change = np.linalg.lstsq(
                np.concatenate([rows * near[:, None], damp]),
                np.concatenate([off * near, np.zeros(len(times))]),
                rcond=None,
            )[0]
            times = np.maximum(times + np.clip(change, -0.3 * scale, 0.3 * scale), 0.0)
        rows, off, _ = self.look(times)
        rms, error = float(np.sqrt((off**2).mean())), float(np.abs(off).max())
        if rms > self.limit or error > 6 * self.limit:
            return None
        return TraceFit(
            _plan(self.chains, times, self.form),
            error,
            float(np.abs(off).mean()),
            len(times),
            has_hops=True,
            has_turns=True,
            free=_free(rows, self.chains.names),
        )

    def look(self, times: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
        """(sums, seconds off, how many of them are a device's whole work): the trace's edges, and
        pauses that it does not have."""
        trace, order = self.trace, self.chains.order
        start, end, sums = self.chains.run(times)
        begins = sums - self.chains.columns
        first, close = order.turns[:-1], order.turns[1:] - 1
        rows = [begins[first], sums[close]]
        started, ended = trace.start[trace.turns[:-1]], trace.end[trace.turns[1:] - 1]
        off = [started - start[first], ended - end[close]]
        for d in range(trace.devices):
            mine = np.arange(*order.turns[d : d + 2])
            seen = slice(*trace.turns[d : d + 2])
            left, entered = trace.end[seen][:-1], trace.start[seen][1:]
            length = end[mine] - start[mine]
            done, pause = np.cumsum(length)[:-1], start[mine][1:] - end[mine][:-1]
            worked = np.cumsum(trace.end[seen] - trace.start[seen])[:-1]
            at = _match(worked, entered - left, done, pause)
            rows += [sums[mine[at]], begins[mine[at + 1]]]
            off += [left - end[mine[at]], entered - start[mine[at + 1]]]
            is_extra = pause > 1e-12 * trace.makespan
            is_extra[at] = False
            extra = np.flatnonzero(is_extra)
            rows.append(begins[mine[extra + 1]] - sums[mine[extra]])
            off.append(-pause[extra])
        work = np.zeros((trace.devices, len(times)))
        np.add.at(work, order.device, self.chains.columns)
        rows.append(work)
        off.append(trace.busy_per_device - work @ times)
        return np.concatenate(rows), np.concatenate(off), trace.devices


def _match(
    worked: np.ndarray, paused: np.ndarray, done: np.ndarray, pause: np.ndarray
) -> np.ndarray:
    """For each pause of the trace the one of the guess, rising, by work done and length."""
    if not len(worked):
        return np.empty(0, int)
    cost = np.abs(worked[:, None] - done) + np.abs(paused[:, None] - pause)
    total, came = cost[0].copy(), []
    for row in cost[1:]:
        least = np.minimum.accumulate(total)
        where = np.maximum.accumulate(np.where(total == least, np.arange(len(total)), 0))
        came.append(where)
        total = np.concatenate([[np.inf], least[:-1]]) + row
    at = [int(np.argmin(total))]
    for where in reversed(came):
        at.append(int(where[at[-1] - 1]))
    return np.array(at[::-1])


def _free(rows: np.ndarray, names: list[str]) -> tuple[str, ...]:
    """The times that could change together without moving any edge."""
    _, sizes, basis = np.linalg.svd(rows, full_matrices=True)
    rank = int((sizes > 1e-9 * sizes[0]).sum())
    loose = np.abs(basis[rank:]).max(axis=0, initial=0.0) > 1e-6
    return tuple(name for name, is_loose in zip(names, loose, strict=True) if is_loose)


def _plan(chains: _Chains, times: np.ndarray, form: Form) -> TimedSchedule:
    stages = chains.order.stages
    parts = times[:-1].reshape(-1, stages)
    F, rest = parts[0], parts[1:]
    B = rest.sum(axis=0)
    I, W = (rest[0], rest[1]) if len(rest) == 2 else (B / 2, B / 2)
    hop = (float(times[-1]),) * (stages - 1)
    forward, backward, inputs, weights = (tuple(t.tolist()) for t in (F, B, I, W))
    return TimedSchedule(chains.order, forward, backward, inputs, weights, latency=hop, form=form)
