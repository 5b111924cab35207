"""Which constraint binds: the best plan again, with one limit of the cluster relaxed at a time.

best plan now                    48.0 s
memory x 2          48.0 -> 45.1 s    1.06 x faster
between nodes x 2   48.0 -> 47.9 s    1.00 x
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tiledask.errors import ConfigError, short
from tiledask.plan.choosing.search import SIMULATED, Plan, Plans, considered, search
from tiledask.plan.fitting.fixes import changes
from tiledask.plan.fitting.space import COLUMNS
from tiledask.plan.inputs.hardware import ClusterSpec
from tiledask.plan.inputs.layout import Numbers
from tiledask.plan.inputs.load import load_cluster, load_model
from tiledask.plan.inputs.model import Model
from tiledask.plan.timing.step_time import step_parts

__all__ = ["Relaxed", "sensitivity"]

FASTEST = 4000
"""Of so many layouts, those of the least time, memory is known first."""


@dataclass(frozen=True, repr=False)
class Relaxed:
    """The best plan on a cluster with one limit relaxed."""

    limit: str
    times: float
    before: Plan
    after: Plan
    speedup: float
    """Seconds before over seconds after: above 1, the limit binds. Infinite if only now anything
    fits; 1 if nothing fits before or after, or the best stays."""
    changed: tuple[str, ...]
    """The fields in which the best layout then differs."""

    def to_dict(self) -> dict[str, Any]:
        """The limit, what it buys, and the fields in which the best layout then differs."""
        return {name: getattr(self, name) for name in ("limit", "times", "speedup", "changed")}

    def __repr__(self) -> str:
        words = f"{self.limit} x {self.times:g}: "
        if self.after.verdict == "no":
            return words + "still nothing fits"
        if self.before.verdict == "no":
            return words + f"now a plan fits, {self.after!r}"
        other = f", with another layout ({', '.join(self.changed)})" if self.changed else ""
        return words + f"{self.speedup:.3g} times as fast{other}"


def sensitivity(
    model: Model | str,
    cluster: ClusterSpec | str,
    global_batch: int,
    *,
    times: float = 2.0,
    plans: Plans | None = None,
    **options: Any,
) -> list[Relaxed]:
    """What relaxing each limit ``times``-fold buys, the most first; the first one binds.

    The limits: memory of a device, its peak FLOP/s, its memory bandwidth, bandwidth within and
    between nodes, devices in a node, and devices (unless ``devices=`` fixes their number).
    ``options`` are those of :func:`tiledask.search`; as there, names are read. ``plans``: what it
    found with the same arguments, where that is known.

    >>> found = sensitivity("llama-2-70b", "32xA100-80GB", 128)
    >>> found[0].limit in ("devices", "peak FLOP/s"), found[0].speedup > 1.5
    (True, True)
    """
    if isinstance(times, bool) or not isinstance(times, int | float) or not 1 < times < math.inf:
        raise ConfigError(f"times, by which limits grow, must be above 1, got {short(times)}")
    model, cluster = load_model(model), load_cluster(cluster)
    now = plans or search(model, cluster, global_batch, **options)
    best, found = now.best, []
    seconds, verdict = now.columns["by_formula"], now.columns["verdict"]
    last = now.order[len(now.settled) - 1]
    # the same layouts may be first only where their time, shortened, is that of the settled ones
    near = (verdict == verdict[last]) & (seconds <= times * seconds[last])
    rows = near | (verdict < verdict[last])
    for limit, change in _relaxed(cluster, times).items():
        other = replace(cluster, **change)
        if limit == "devices" and options.get("devices") is not None:
            continue
        if limit.startswith("devices"):  # other layouts, not only other numbers of these
            run, assumed, n, left_out = considered(model, other, global_batch, **options)
            _, _, _, recipe, sequence = run
            few = n  # of the fastest alone memory is known, where enough of these fit
            if len(n["dp"]) > FASTEST:
                of = model, other, Numbers(**n), recipe, sequence
                took = sum(step_parts(*of, **assumed).values())
                fast = took <= np.partition(took, FASTEST)[FASTEST]
                few = {name: column[fast] for name, column in n.items()}
            then = Plans(run, assumed, few, left_out)
            if few is not n and then.counts["fits"] < SIMULATED:
                then = Plans(run, assumed, n, left_out)
        else:
            there = rows | (verdict > verdict[last]) if limit == "memory" else rows
            n = {name: now.columns[name][there] for name in (*COLUMNS, "peak")}
            run = model, other, now.global_batch, now.recipe, now.sequence
            then = Plans(run, now.assumed, n, now.left_out)
        if not len(then):
            continue
        after, speedup = then.best, 1.0
        if after.verdict != "no":
            speedup = max(1.0, best.seconds / after.seconds)
        changed = tuple(changes(best.layout, after.layout))
        found.append(Relaxed(limit, times, best, after, speedup, changed))
    return sorted(found, key=lambda relaxed: -relaxed.speedup)


def _relaxed(cluster: ClusterSpec, times: float) -> dict[str, dict[str, Any]]:
    """Limit -> the fields of ``cluster`` that change."""
    device, within, between = cluster.device, cluster.within_node, cluster.between_nodes
    peaks = tuple((name, n * times) for name, n in device.peak_flops)
    memory, bandwidth = round(device.memory_bytes * times), device.memory_bandwidth * times
    fast, far = (
        replace(link, bytes_per_second=link.bytes_per_second * times) for link in (within, between)
    )
    node, devices = (
        max(n + 1, round(n * times)) for n in (cluster.devices_per_node, cluster.devices)
    )
    return {
        "memory": {"device": replace(device, memory_bytes=memory)},
        "peak FLOP/s": {"device": replace(device, peak_flops=peaks)},
        "memory bandwidth": {"device": replace(device, memory_bandwidth=bandwidth)},
        "bandwidth within nodes": {"within_node": fast},
        "bandwidth between nodes": {"between_nodes": far},
        "devices in a node": {"devices_per_node": node},
        "devices": {"devices": devices},
    }
