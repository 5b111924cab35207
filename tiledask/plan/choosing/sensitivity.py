"""Which constraint binds: the best plan again, with one limit of the cluster relaxed at a time.

best plan now                    48.0 s
memory x 2          48.0 -> 45.1 s    1.06 x faster
between nodes x 2   48.0 -> 47.9 s    1.00 x
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tiledask.errors import ConfigError, short
from tiledask.plan.choosing.search import Plan, Plans, search
from tiledask.plan.frames import frame
from tiledask.plan.inputs.hardware import ClusterSpec, Link
from tiledask.plan.inputs.load import as_cluster, as_model
from tiledask.plan.inputs.model import Model

if TYPE_CHECKING:
    import pandas as pd

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
        if self.after.verdict == "no":
            return 1.0
        return self.before.seconds / self.after.seconds

    @property
    def changed(self) -> tuple[str, ...]:
        """Fields in which the best layout differs."""
        a, b = vars(self.before.layout), vars(self.after.layout)
        return tuple(name for name in a if a[name] != b[name])

    def to_dict(self) -> dict[str, Any]:
        """The limit and what it buys, as plain values for JSON."""
        names = ("limit", "times", "speedup", "changed")
        return {name: getattr(self, name) for name in names}

    def __repr__(self) -> str:
        return f"Relaxed({self})"

    def __str__(self) -> str:
        if self.after.verdict == "no":
            return f"{self.limit} x {self.times:g}: still nothing fits"
        if self.before.verdict == "no":
            return f"{self.limit} x {self.times:g}: now a plan fits, {self.after!r}"
        other = f", with another layout ({', '.join(self.changed)})" if self.changed else ""
        return f"{self.limit} x {self.times:g}: {self.speedup:.3g} times as fast{other}"


class Sensitivity(list[Relaxed]):
    """What relaxing each limit buys, the most first."""

    def to_dict(self) -> dict[str, Any]:
        """Of each limit, as plain values for JSON."""
        return {each.limit: each.to_dict() for each in self}

    def to_frame(self) -> "pd.DataFrame":
        """A row per limit: limit, times, speedup, changed."""
        return frame([each.to_dict() for each in self], ["limit", "times", "speedup", "changed"])


def sensitivity(
    model: Model | str,
    cluster: ClusterSpec | str,
    global_batch: int,
    *,
    times: float = 2.0,
    plans: Plans | None = None,
    **options: Any,
) -> Sensitivity:
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
        raise ConfigError(
            f"times must be a number above 1, by which limits grow; got {short(times)}"
        )
    model, cluster = as_model(model), as_cluster(cluster)
    now = (plans or search(model, cluster, global_batch, **options)).settle()
    before, found = now.best, []
    for limit, other in _relaxed(cluster, times):
        if limit.startswith("devices"):  # other layouts, not only other numbers of these
            if limit == "devices" and options.get("devices") is not None:
                continue
            then = search(model, other, global_batch, **options).settle(now.settled)
        else:
            then = now.on(other, times)
        if len(then):
            found.append(Relaxed(limit, times, before, then.best))
    return Sensitivity(sorted(found, key=lambda relaxed: -relaxed.speedup))


def _relaxed(cluster: ClusterSpec, times: float) -> Iterator[tuple[str, ClusterSpec]]:
    device, node = cluster.device, cluster.devices_per_node

    def of(**numbers: Any) -> dict[str, Any]:
        return {"device": replace(device, **numbers)}

    def faster(link: Link) -> Link:
        return replace(link, bytes_per_second=link.bytes_per_second * times)

    def more(count: int) -> int:
        return max(count + 1, round(count * times))

    flops = tuple((name, n * times) for name, n in device.peak_flops)
    changes: dict[str, dict[str, Any]] = {
        "memory": of(memory_bytes=round(device.memory_bytes * times)),
        "peak FLOP/s": of(peak_flops=flops),
        "memory bandwidth": of(memory_bandwidth=device.memory_bandwidth * times),
        "bandwidth within nodes": {"within_node": faster(cluster.within_node)},
        "bandwidth between nodes": {"between_nodes": faster(cluster.between_nodes)},
        "devices in a node": {"devices_per_node": more(node)},
        "devices": {"devices": more(cluster.devices)},
    }
    for limit, change in changes.items():
        yield limit, replace(cluster, **change)
