"""The nearest layout that fits: change as few fields as will do, then use few devices."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, product
from typing import Any

import numpy as np

from tiledask.errors import PartitionError, ScheduleError
from tiledask.plan.fitting.fewest import FREE, MANY, fewest_devices
from tiledask.plan.fitting.memory import MemoryEstimate, layout_terms
from tiledask.plan.fitting.overhead import Overhead, judge, overhead_of, sure_of
from tiledask.plan.fitting.terms import fullest
from tiledask.plan.fitting.vectorized import ORDERS
from tiledask.plan.inputs.hardware import ClusterSpec
from tiledask.plan.inputs.layout import ITEMS, RECOMPUTE, Layout
from tiledask.plan.inputs.recipes import state_bytes
from tiledask.plan.units import divisors

__all__ = ["FIELDS", "Search"]

FIELDS = ("zero", "microbatch", "recompute", "tp", "pp", "dp")
"""Fields that a fix may change; among equals the earlier ones cost less time."""


class Search:
    """Layouts near one that does not fit."""

    def __init__(self, memory: MemoryEstimate, cluster: ClusterSpec, overhead: Overhead):
        self.model, self.recipe, self.sequence = memory.model, memory.recipe, memory.sequence
        self.start, self.cluster, self.overhead = memory.layout, cluster, overhead
        self.own = overhead != overhead_of(memory.layout, self.recipe.framework)
        device = cluster.device
        self.sure = device.memory_bytes if self.own else sure_of(device, self.recipe)

    def nearest(self) -> Layout | None:
        """The fewest changed fields, then the fewest devices, then the order of FIELDS."""
        for n in range(1, len(FIELDS) + 1):
            best: Layout | None = None
            for names in combinations(FIELDS, n):
                limit = self.cluster.devices if best is None else best.devices - 1
                for base in self._bases(names, limit):
                    limit = self.cluster.devices if best is None else best.devices - 1
                    found = self._settle(base, "dp" in names, limit)
                    if found is not None:
                        best = found
            if best is not None:
                return best
        return None

    def fewest_devices(self, free: tuple[str, ...] = FREE) -> Layout | None:
        """The fewest devices, whatever the cluster has, with only the fields ``free`` changed; of
        the layout's own schedule and partition where more of one degree takes still fewer."""
        own = self.overhead if self.own else None
        run = self.model, self.start, self.cluster, self.recipe, self.sequence
        found = [fewest_devices(*run, overhead=own, free=free)]
        start = self.start
        special = start.partition is not None or start.unshard is not None
        if special or start.schedule not in ORDERS:
            found += [self.single(name) for name in ("tp", "pp", "dp")]
        return min(filter(None, found), key=lambda layout: layout.devices, default=None)

    def _options(self, name: str, limit: int) -> list[Any]:
        """Other values of a field, those that save least first."""
        now, model = getattr(self.start, name), self.model
        if name == "zero":
            return list(range(now + 1, 4))
        if name == "recompute":
            past = RECOMPUTE.index(now) + 1 if now in RECOMPUTE else len(RECOMPUTE) - 1
            return list(RECOMPUTE[past:]) if self.recipe.trains else []
        if name in ("flash_attention", "sequence_parallel"):
            helps = name == "flash_attention" or self.start.tp > 1
            return [True] if helps and not now and self.recipe.trains else []
        if name == "microbatch":
            return [b for b in range(now - 1, 0, -1) if now % b == 0]
        if name == "tp":
            top = min(model.heads, limit)
            whole = divisors(self.cluster.devices_per_node, top)
            return [t for t in whole if t != now and model.allows_tp(t)]
        top = min(model.layers // self.start.interleave, limit)
        return [p for p in range(1, top + 1) if p != now]

    def _bases(self, names: tuple[str, ...], limit: int) -> Iterator[Layout]:
        """Layouts in which the fields ``names`` but dp take other values, by tp x pp."""
        inner = [name for name in names if name != "dp"]
        choices = product(*(self._options(name, limit) for name in inner))
        rows = [dict(zip(inner, values, strict=True)) for values in choices]
        start = self.start
        rows.sort(key=lambda row: row.get("tp", start.tp) * row.get("pp", start.pp))
        for row in rows:
            if "microbatch" in row:
                row["microbatches"] = start.microbatches * start.microbatch // row["microbatch"]
            if row.get("pp", start.pp) != start.pp and start.partition != ITEMS:
                row["partition"] = None
            try:
                yield replace(start, **row)
            except ValueError:  # an interleaved schedule that pp does not divide
                continue

    def _settle(self, base: Layout, free: bool, limit: int) -> Layout | None:
        """``base`` if it fits on ``limit`` devices; with dp free, at the smallest dp that does."""
        slices = base.tp * base.pp * base.cp
        top = limit // slices
        if not free:
            return base if base.dp <= top and self._ok(base) else None
        sharded = any(state.sharded(base.zero) for state in self.recipe.states)
        top = top if sharded else min(top, 1)  # without ZeRO, dp changes no device's bytes
        step = base.dp_step
        if top < step:
            return None
        # a single copy gathers nothing, so it is looked at apart from the shrinking shards
        alone = self._ok(replace(base, dp=step))
        if not alone and not self._ok(replace(base, dp=top // step * step)):
            return None
        low, high = (0, 1) if alone else (1, top // step)
        while high - low > 1:
            middle = (low + high) // 2
            fits = self._ok(replace(base, dp=middle * step))
            low, high = (low, middle) if fits else (middle, high)
        dp = high * step
        return replace(base, dp=dp) if dp != self.start.dp else None

    def _ok(self, layout: Layout) -> bool:
        """Whether every stage fits with overhead; the likeliest not to is looked at first."""
        if self.recipe.offloads_weights and layout.zero != 3:
            return False
        overhead = self.overhead if self.own else overhead_of(layout, self.recipe.framework)

        def fits(held: int) -> bool:
            return bool(judge(held, overhead.certain, overhead.total, self.sure) == 0)

        # the most that a weight can be in
        slices = layout.pp * max(layout.tp, layout.ep * layout.expert_slices)
        share, copies = self.model.parameters // slices, layout.dp * layout.cp
        if not fits(sum(state_bytes(share, self.recipe, layout.zero, copies).values())):
            return False  # not even the average device holds its states
        run = self.model, layout, self.recipe, self.sequence
        first, *others = range(layout.pp)
        try:
            looks = (layout_terms(*run, stages) for stages in ([first], others) if stages)
            return all(fits(np.max(fullest(terms))) for terms in looks)
        except (PartitionError, ScheduleError):  # a schedule that this pp does not allow
            return False

    def single(self, name: str) -> Layout | None:
        """The nearest other value of the field ``name`` alone that fits; more of tp, pp or dp,
        whether or not the cluster has as many devices."""
        start = self.start
        if name == "dp":
            if not any(state.sharded(start.zero) for state in self.recipe.states):
                return None
            found = self._settle(start, True, MANY * start.devices)
            return found if found and found.dp > start.dp else None
        for row in self._bases((name,), MANY):
            more = name not in ("tp", "pp") or getattr(row, name) > getattr(start, name)
            if more and self._ok(row):
                return row
        return None
