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
        anything fits; 1 if nothing fits before or after."""
        nothing = self.after.verdict == "no"
        return 1.0 if nothing else self.before.seconds / self.after.seconds

    def to_dict(self) -> dict[str, Any]:
        """The limit, what it buys, and the fields in which the best layout then differs."""
        a, b = vars(self.before.layout), vars(self.after.layout)
        changed = tuple(name for name in a if a[name] != b[name])
        of = {"limit": self.limit, "times": self.times}
        return of | {"speedup": self.speedup, "changed": changed}

    def __repr__(self) -> str:
        words = f"{self.limit} x {self.times:g}: "
        if self.after.verdict == "no":
            return words + "still nothing fits"
        if self.before.verdict == "no":
            return words + f"now a plan fits, {self.after!r}"
        changed = ", ".join(self.to_dict()["changed"])
        other = f", with another layout ({changed})" if changed else ""
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

    >>> from tiledask.plan.inputs.load import load_cluster, load_model
    >>> found = sensitivity(load_model("llama-2-70b"), load_cluster("32xA100-80GB"), 128)
    >>> found[0].limit in ("devices", "peak FLOP/s"), found[0].speedup > 1.5
    (True, True)
    """
    if isinstance(times, bool) or not isinstance(times, int | float) or not 1 < times < math.inf:
        raise ConfigError(f"times, by which limits grow, must be above 1, got {short(times)}")
    model, cluster = as_model(model), as_cluster(cluster)
    now = (plans or search(model, cluster, global_batch, **options)).settle()
    settled, found = len(now.settled), []
    for limit, other in _relaxed(cluster, times).items():
        if limit == "devices" and options.get("devices") is not None:
            continue
        if limit.startswith("devices"):  # other layouts, not only other numbers of these
            then = search(model, other, global_batch, **options).settle(settled)
        else:
            then = now.on(other, times)
        found += [Relaxed(limit, times, now.best, then.best)] if len(then) else []
    return sorted(found, key=lambda relaxed: -relaxed.speedup)


def _relaxed(cluster: ClusterSpec, times: float) -> dict[str, ClusterSpec]:
    """Limit -> the cluster with more of it."""
    device = cluster.device

    def of(**numbers: Any) -> dict[str, Any]:
        return {"device": replace(device, **numbers)}

    def faster(name: str) -> dict[str, Any]:
        link = getattr(cluster, name)
        return {name: replace(link, bytes_per_second=link.bytes_per_second * times)}

    def more(name: str) -> dict[str, Any]:
        count = getattr(cluster, name)
        return {name: max(count + 1, round(count * times))}

    changes = {
        "memory": of(memory_bytes=round(device.memory_bytes * times)),
        "peak FLOP/s": of(peak_flops=tuple((name, n * times) for name, n in device.peak_flops)),
        "memory bandwidth": of(memory_bandwidth=device.memory_bandwidth * times),
        "bandwidth within nodes": faster("within_node"),
        "bandwidth between nodes": faster("between_nodes"),
        "devices in a node": more("devices_per_node"),
        "devices": more("devices"),
    }
    return {limit: replace(cluster, **change) for limit, change in changes.items()}
