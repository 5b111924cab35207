"""The nearest layout that fits: change as few fields as will do, then lose least time.

fields changed   1        2              3                    the first column with one that fits
               zero 2   tp 8, pp 4     tp 8, pp 10, dp 2  ->  of these the global batch kept,
               pp 4     tp 8, dp 2     ...                    then the least seconds of a sequence
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from itertools import chain, combinations, product
from math import gcd
from typing import Any

import numpy as np

from tiledask.errors import ConfigError, PartitionError, ScheduleError
from tiledask.plan.arrays import Array
from tiledask.plan.fitting.fewest import FREE, fewest_devices
from tiledask.plan.fitting.memory import MemoryEstimate, layout_terms
from tiledask.plan.fitting.overhead import DeviceLimits, Overhead, overhead_of, overheads
from tiledask.plan.fitting.terms import fullest
from tiledask.plan.fitting.vectorized import ORDERS, peaks
from tiledask.plan.inputs.hardware import ClusterSpec
from tiledask.plan.inputs.layout import ITEMS, MOST_OF_ANY, RECOMPUTE, Layout, Numbers
from tiledask.plan.inputs.recipes import DEVICE
from tiledask.plan.timing.step_time import step_parts
from tiledask.plan.units import divisors

__all__ = ["FIELDS", "Search"]

FIELDS = ("zero", "microbatch", "recompute", "tp", "pp", "dp")
"""Fields that a fix may change; of fixes that are alike in all else the earlier ones come first."""
MOST_COPIES = 2**17
"""Copies up to which every number is tried; beyond, those that fill the cluster."""
AT_ONCE = 4096
"""Layouts whose memory is counted together, the fastest first."""
Columns = dict[str, Array]


class Search:
    """Layouts near one that does not fit."""

    def __init__(self, memory: MemoryEstimate, cluster: ClusterSpec, overhead: Overhead):
        self.model, self.recipe, self.sequence = memory.model, memory.recipe, memory.sequence
        self.start, self.cluster, self.overhead = memory.layout, cluster, overhead
        self.own = overhead != overhead_of(memory.layout, self.recipe.framework)
        self.sure = DeviceLimits.of(cluster.device, self.recipe, not self.own).sure

    @property
    def special(self) -> bool:
        """Whether layouts are to be looked at one by one: ``peaks`` does not know their like."""
        start = self.start
        bounds = start.partition not in (None, ITEMS)
        bounds = bounds or start.microbatch * start.microbatches > MOST_OF_ANY  # beyond 64 bits
        return bounds or start.schedule not in ORDERS

    @cached_property
    def _copies(self) -> list[int]:
        """Numbers of copies that share the global batch evenly."""
        batch, most = self.start.sequences, min(self.cluster.devices, MOST_COPIES)
        return [n for n in range(1, most + 1) if batch % n == 0]

    def nearest(self) -> Layout | None:
        """The fewest changes on the cluster's devices, one of a field or of the global batch; of
        these the batch kept, then the least time of a sequence by formula, the fewest devices, the
        order of FIELDS."""
        for n in range(1, len(FIELDS) + 2):
            rows = [
                row
                for names in chain(combinations(FIELDS, n), combinations(FIELDS, n - 1))
                for row in self._rows(names, same_batch=len(names) == n)
            ]
            if not rows:
                continue
            values = map(np.array, zip(*rows, strict=True))
            every = dict(zip((*FIELDS, "microbatches"), values, strict=True))
            inside = self._may_fit(self._numbers(every))
            some = {name: column[inside] for name, column in every.items()}
            order = self._fastest_first(self._numbers(some))
            for at in range(0, len(order), AT_ONCE):
                here = order[at : at + AT_ONCE]
                found = self._first({name: column[here] for name, column in some.items()})
                if found is not None:
                    return found
        return None

    def fewest_devices(self, free: tuple[str, ...] = FREE) -> Layout | None:
        """The fewest devices, whatever the cluster has, with only the fields ``free`` changed; of
        the layout's own schedule and partition where more of one degree takes still fewer."""
        own = self.overhead if self.own else None
        run = self.model, self.start, self.cluster, self.recipe, self.sequence
        found = [fewest_devices(*run, overhead=own, free=free)]
        start = self.start
        if start.partition is not None or self.special:
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

    def _rows(self, names: tuple[str, ...], same_batch: bool) -> Iterator[tuple[Any, ...]]:
        """The values of FIELDS and of microbatches where all of ``names`` change; either the global
        batch stays, or a copy's work does."""
        start, limit = self.start, self.cluster.devices
        choices = [
            self._options(name, limit) if name in names and name != "dp" else [getattr(start, name)]
            for name in FIELDS
        ]
        for zero, b, recompute, tp, pp, _ in product(*choices):
            slices = start.ep * (start.expert_tp or tp)
            step = slices // gcd(slices, tp * start.cp)
            top = limit // (tp * pp * start.cp) // step * step
            work = start.microbatches * start.microbatch // b  # of a copy
            same = start.dp * work  # of the global batch
            pairs = [(start.dp, work)] if same_batch else []
            if "dp" in names:
                pairs = [(dp, same // dp) for dp in self._copies if dp <= top and same % dp == 0]
                pairs = pairs if same_batch else [(top, work), (step, work)]
                pairs = [pair for pair in pairs if pair[0] != start.dp]
            for dp, m in pairs:
                whole_rounds = start.interleave == 1 or (pp > 1 and m % pp == 0)
                if 0 < dp <= top and dp % step == 0 and m <= MOST_OF_ANY and whole_rounds:
                    yield zero, b, recompute, tp, pp, dp, m

    def _numbers(self, columns: Columns) -> Numbers:
        """The layouts of ``columns``: what these leave out is the start's."""
        return replace(Numbers.of(self.start), **columns)

    def _may_fit(self, n: Any) -> Any:
        """Of a layout, or of Numbers, whether the average device has room for its states."""
        slices, copies = n.pp * np.maximum(n.tp, n.ep * n.expert_slices), n.dp * n.cp
        share = self.model.parameters // slices
        held = sum(
            state.on_device(share, -(-share // copies), n.zero)
            for state in self.recipe.states
            if state.of == "parameters" and state.place == DEVICE
        )
        brought = (n.zero == 3) | (not self.recipe.offloads_weights)
        return brought & (held + self._budget(n) <= self.sure)

    def _budget(self, n: Any) -> Any:
        """Bytes of the whole overhead of a layout, or of Numbers."""
        return self.overhead.total if self.own else overheads(n, self.recipe.framework)[1]

    def _fastest_first(self, n: Numbers) -> Array:
        """The order of layouts: those of the start's global batch, by seconds of a sequence, then
        by devices."""
        batch: Array = np.asarray(n.dp * n.microbatch * n.microbatches)
        seconds: Any = np.zeros(len(batch))
        if self.recipe.trains and not self.recipe.places:
            run = self.model, self.cluster, n, self.recipe, self.sequence
            with suppress(ConfigError):  # the device has no units for the recipe's products
                seconds = step_parts(*run).total / batch
        devices = np.asarray(n.dp * n.tp * n.pp)
        order: Array = np.lexsort((devices, seconds, batch != self.start.sequences))
        return order

    def _first(self, columns: Columns) -> Layout | None:
        """The first of some layouts that fits."""
        n, least = self._numbers(columns), self._numbers(columns)
        if self.special:  # in any order a stage holds one micro-batch
            least = replace(n, schedule="1f1b", interleave=1, microbatches=1, items=False)
        held = peaks(self.model, self.recipe, self.sequence, **vars(least))
        for at in np.flatnonzero(held + self._budget(n) <= self.sure):
            layout = self._layout({name: column[at].item() for name, column in columns.items()})
            if layout is not None and (not self.special or self._ok(layout)):
                return layout
        return None

    def _layout(self, row: dict[str, Any]) -> Layout | None:
        """The start with other values; None where its schedule does not go with them."""
        start = self.start
        if row.get("pp", start.pp) != start.pp and start.partition != ITEMS:
            row = row | {"partition": None}
        try:
            return replace(start, **row)
        except ValueError:
            return None

    def _ok(self, layout: Layout) -> bool:
        """Whether every stage fits with overhead; the likeliest not to is looked at first."""
        if not self._may_fit(layout):
            return False
        room = self.sure - self._budget(layout)
        run = self.model, layout, self.recipe, self.sequence
        first, *others = range(layout.pp)
        try:
            looks = (layout_terms(*run, stages) for stages in ([first], others) if stages)
            return all(np.max(fullest(terms)) <= room for terms in looks)
        except (PartitionError, ScheduleError):  # a schedule that this pp does not allow
            return False

    def single(self, name: str) -> Layout | None:
        """The nearest other value of the field ``name`` alone that fits; more of tp, pp or dp,
        whether or not the cluster has as many devices."""
        start = self.start
        if name == "dp":
            return self._more_copies()
        for value in self._options(name, MOST_OF_ANY):
            row = {name: value}
            if name == "microbatch":
                row["microbatches"] = start.microbatches * start.microbatch // value
            layout = self._layout(row)
            more = name not in ("tp", "pp") or value > getattr(start, name)
            if more and layout and layout.devices <= MOST_OF_ANY and self._ok(layout):
                return layout
        return None

    def _more_copies(self) -> Layout | None:
        """The smallest larger dp that fits, where copies share anything out."""
        start, step = self.start, self.start.dp_step
        if not any(state.sharded(start.zero) for state in self.recipe.states):
            return None
        low, high = start.dp // step, MOST_OF_ANY // (start.devices // start.dp) // step
        if high <= low or not self._ok(replace(start, dp=high * step)):
            return None
        while high - low > 1:  # more copies never hold more
            middle = (low + high) // 2
            fits = self._ok(replace(start, dp=middle * step))
            low, high = (low, middle) if fits else (middle, high)
        return replace(start, dp=high * step)
