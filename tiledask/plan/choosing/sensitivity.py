"""Which constraint binds: the best plan again, with one limit of the cluster relaxed at a time.

best plan now                    48.0 s
memory x 2          48.0 -> 45.1 s    1.06 x faster
between nodes x 2   48.0 -> 47.9 s    1.00 x
"""

import math
from dataclasses import dataclass, replace
from typing import Any

from tiledask.errors import ConfigError, short
from tiledask.plan.choosing.search import Plan, Plans, search
from tiledask.plan.fitting.fixes import changes
from tiledask.plan.inputs.hardware import ClusterSpec
from tiledask.plan.inputs.load import as_cluster, as_model
from tiledask.plan.inputs.model import Model

__all__ = ["Relaxed", "sensitivity"]


@dataclass(frozen=True, repr=False)
class Relaxed:
    """The best plan on a cluster with one limit relaxed."""

    limit: str
    times: float
    before: Plan
    after: Plan

    @property
    def speedup(self) -> float:
        """Seconds before over seconds after: above 1, the limit binds. Infinite if only now
        anything fits; 1 if nothing fits before or after, or the best stays."""
        nothing = self.after.verdict == "no"
        return 1.0 if nothing else max(1.0, self.before.seconds / self.after.seconds)

    @property
    def changed(self) -> tuple[str, ...]:
        """The fields in which the best layout then differs."""
        return changes(self.before.layout, self.after.layout)

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
    model, cluster = as_model(model), as_cluster(cluster)
    now = plans or search(model, cluster, global_batch, **options)
    best, found = now.best, []
    for limit, other in _relaxed(cluster, times).items():
        if limit == "devices" and options.get("devices") is not None:
            continue
        if limit.startswith("devices"):  # other layouts, not only other numbers of these
            then = search(model, other, global_batch, **options)
        else:
            then = now.on(other, times)
        found += [Relaxed(limit, times, best, then.best)] if len(then) else []
    return sorted(found, key=lambda relaxed: -relaxed.speedup)


def _relaxed(cluster: ClusterSpec, times: float) -> dict[str, ClusterSpec]:
    device, within, between = cluster.device, cluster.within_node, cluster.between_nodes
    peaks = tuple((name, n * times) for name, n in device.peak_flops)
    memory, bandwidth = round(device.memory_bytes * times), device.memory_bandwidth * times

    def more(name: str) -> dict[str, int]:
        count = getattr(cluster, name)
        return {name: max(count + 1, round(count * times))}

    def faster(name: str, link: Any) -> dict[str, Any]:
        return {name: replace(link, bytes_per_second=link.bytes_per_second * times)}

    changed: dict[str, dict[str, Any]] = {
        "memory": {"device": replace(device, memory_bytes=memory)},
        "peak FLOP/s": {"device": replace(device, peak_flops=peaks)},
        "memory bandwidth": {"device": replace(device, memory_bandwidth=bandwidth)},
        "bandwidth within nodes": faster("within_node", within),
        "bandwidth between nodes": faster("between_nodes", between),
        "devices in a node": more("devices_per_node"),
        "devices": more("devices"),
    }
    return {limit: replace(cluster, **change) for limit, change in changed.items()}
