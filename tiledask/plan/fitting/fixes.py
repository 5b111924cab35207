"""What makes a layout fit: the nearest change, as a value and as a sentence."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain, combinations, product
from math import gcd
from typing import Any

import numpy as np

from tiledask.errors import ConfigError, PartitionError, ScheduleError
from tiledask.plan.arrays import Array
from tiledask.plan.fitting.fewest import FREE, changes, fewest_devices
from tiledask.plan.fitting.memory import MemoryEstimate, layout_terms
from tiledask.plan.fitting.overhead import overheads
from tiledask.plan.fitting.terms import fullest
from tiledask.plan.fitting.vectorized import ORDERS, peaks
from tiledask.plan.inputs.hardware import ClusterSpec
from tiledask.plan.inputs.layout import ITEMS, MOST_OF_ANY, RECOMPUTE, Layout, Numbers
from tiledask.plan.inputs.recipes import DEVICE
from tiledask.plan.timing.step_time import step_parts
from tiledask.plan.units import divisors, format_bytes

__all__ = ["FIELDS", "SINGLE", "SMALLER", "Fix", "Search", "changes", "sentence"]

FIELDS = ("zero", "microbatch", "recompute", "tp", "pp", "dp")
"""Fields that a fix may change; of fixes that are alike in all else the earlier ones come first."""
MOST_COPIES = 2**17
"""Copies up to which every number is tried; beyond, those that fill the cluster."""
AT_ONCE = 4096
"""Layouts whose memory is counted together, the fastest first."""
SINGLE = (*FIELDS[:3], "flash_attention", "sequence_parallel", *FIELDS[3:])
"""Fields that are changed one at a time."""
SMALLER = (
    "mixed-adam-18",
    "mixed-adam-16",
    "mixed-momentum",
    "mixed-adam-8bit",
    "bf16-adam",
    "bf16-adam-8bit",
    "lora",
)
"""Recipes that a fix may turn to, those that keep most first."""


@dataclass(frozen=True)
class Fix:
    """A layout that fits, near the one that does not."""

    layout: Layout
    changed: tuple[str, ...]
    """Names of the fields that differ."""
    devices: int
    """Devices that it needs."""
    missing: int
    """Devices that the cluster lacks for it; 0 if it has enough."""
    sentence: str
    recipe: str = ""
    """Name of the recipe."""
    seconds: float | None = None
    """Seconds of a step; None where the time model knows none."""
    slower: float | None = None
    """Seconds for each sequence of the global batch, over those of the layout that it starts
    from."""

    def __str__(self) -> str:
        return self.sentence


def sentence(
    before: MemoryEstimate,
    after: MemoryEstimate,
    cluster: ClusterSpec,
    band: tuple[int, int],
    changed: tuple[str, ...],
    slower: float | None,
    fewest: bool = False,
) -> str:
    """What changes, what it takes and what is then held: ``band``, bytes on the fullest device
    without and with overhead. ``fewest``: nothing takes fewer devices, but what is held fixed."""
    old, new = before.layout, after.layout
    steps = ", ".join(
        f"recipe {before.recipe.name} -> {after.recipe.name}"
        if name == "recipe"
        else f"{name} {getattr(old, name)} -> {getattr(new, name)}"
        for name in changed
    )
    missing = max(0, new.devices - cluster.devices)
    need = f"{new.devices} of {cluster.devices} devices"
    if missing:
        on = f"{cluster.devices} device{'s' * (cluster.devices > 1)}"
        none = f"no layout on {on} fits; the smallest that does" if fewest else "it"
        need = f"{none} takes {new.devices}, {missing} more than the cluster has"
    if missing and fewest:  # what all have that the fewest devices were looked for among
        how = "its own stages" if new.partition else f"{new.schedule} over even stages"
        count = old.microbatch * old.microbatches
        need += f", of all with recipe {after.recipe.name}, {count} sequence{'s' * (count > 1)} of "
        need += f"{after.sequence} tokens a copy (cp {old.cp}, or pieces of 4096 or more), "
        need += f"tp that divides a node, {how}"
    if old.microbatches != new.microbatches:
        need += f", {new.microbatches} micro-batches a copy"
    if old.sequences != new.sequences:
        lost = old.dp - new.dp
        need += f", {lost} of {old.dp} copies are given up" if lost > 0 else ""
        need += f", the global batch goes from {old.sequences} to {new.sequences}"
    if slower is not None:
        need += f", a sequence takes {slower:.3g} times as long by estimate"
    return (
        f"{steps or 'no change but the number of devices'} ({need}): {format_bytes(band[0])}, "
        f"with overhead {format_bytes(band[1])}, of "
        f"{format_bytes(cluster.device.memory_bytes)} per device"
    )


@dataclass(frozen=True)
class Search:
    """Layouts near one that does not fit.

    fields changed   1        2              3                   the first column where one fits:
                   zero 2   tp 8, pp 4     tp 8, pp 10, dp 2  -> of these the global batch kept,
                   pp 4     tp 8, dp 2     ...                   then the least seconds a sequence
    """

    memory: MemoryEstimate
    cluster: ClusterSpec
    sure: int
    """Bytes of tensors and overhead up to which a layout fits."""
    own: int | None
    """Bytes of overhead in any layout; None: those that are usual for each."""

    @property
    def start(self) -> Layout:
        return self.memory.layout

    @property
    def special(self) -> bool:
        """Whether layouts are to be looked at one by one: ``peaks`` does not know their like."""
        start = self.start
        bounds = start.partition not in (None, ITEMS)
        bounds = bounds or start.microbatch * start.microbatches > MOST_OF_ANY  # beyond 64 bits
        return bounds or start.schedule not in ORDERS

    def nearest(self) -> Layout | None:
        """The fewest changes on the cluster's devices, one of a field or of the global batch; of
        these the batch kept, then the least time of a sequence by formula, the fewest devices, the
        order of FIELDS."""
        batch, most = self.start.sequences, min(self.cluster.devices, MOST_COPIES)
        copies = [n for n in range(1, most + 1) if batch % n == 0]
        for n in range(1, len(FIELDS) + 2):
            rows = [
                row
                for names in chain(combinations(FIELDS, n), combinations(FIELDS, n - 1))
                for row in self._rows(names, len(names) == n, copies)
            ]
            if not rows:
                continue
            every = np.array(rows, object)[self._may_fit(self._numbers(rows))]
            order = self._fastest_first(self._numbers(every)) if len(every) else every
            for at in range(0, len(order), AT_ONCE):
                found = self._first(every[order[at : at + AT_ONCE]])
                if found is not None:
                    return found
        return None

    def fewest_devices(self, free: tuple[str, ...] = FREE) -> Layout | None:
        """The fewest devices, whatever the cluster has, with only the fields ``free`` changed; of
        the layout's own schedule and partition where more of one degree takes still fewer."""
        memory = self.memory
        run = memory.model, self.start, self.cluster, memory.recipe, memory.sequence
        found = [fewest_devices(*run, overhead=self.own, free=free)]
        if self.start.partition is not None or self.special:
            found += [self.single(name) for name in ("tp", "pp", "dp")]
        return min(filter(None, found), key=lambda layout: layout.devices, default=None)

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
            if more and layout and layout.devices <= MOST_OF_ANY and self._fits(layout):
                return layout
        return None

    def _options(self, name: str, limit: int) -> list[Any]:
        """Other values of a field, those that save least first."""
        now, model = getattr(self.start, name), self.memory.model
        trains = self.memory.recipe.trains
        if name == "zero":
            return list(range(now + 1, 4))
        if name == "recompute":
            past = RECOMPUTE.index(now) + 1 if now in RECOMPUTE else len(RECOMPUTE) - 1
            return list(RECOMPUTE[past:]) * trains
        if name in ("flash_attention", "sequence_parallel"):
            helps = name == "flash_attention" or self.start.tp > 1
            return [True] * (helps and not now and trains)
        if name == "microbatch":
            return [b for b in range(now - 1, 0, -1) if now % b == 0]
        if name == "tp":
            whole = divisors(self.cluster.devices_per_node, min(model.heads, limit))
            return [t for t in whole if t != now and model.allows_tp(t)]
        top = min(model.layers // self.start.interleave, limit)
        return [p for p in range(1, top + 1) if p != now]

    def _rows(
        self, names: tuple[str, ...], same_batch: bool, copies: list[int]
    ) -> Iterator[tuple[Any, ...]]:
        """The values of FIELDS and of microbatches where all of ``names`` change; either the global
        batch stays, which ``copies`` share evenly, or a copy's work does."""
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
                pairs = [(dp, same // dp) for dp in copies if dp <= top and same % dp == 0]
                pairs = pairs if same_batch else [(top, work), (step, work)]
                pairs = [pair for pair in pairs if pair[0] != start.dp]
            for dp, m in pairs:
                whole_rounds = start.interleave == 1 or (pp > 1 and m % pp == 0)
                if 0 < dp <= top and dp % step == 0 and m <= MOST_OF_ANY and whole_rounds:
                    yield zero, b, recompute, tp, pp, dp, m

    def _numbers(self, rows: Any) -> Numbers:
        """Layouts of ``rows``, values of FIELDS and of microbatches, and else the start's."""
        columns = (np.array(list(column)) for column in zip(*rows, strict=True))
        chosen = dict(zip((*FIELDS, "microbatches"), columns, strict=True))
        return replace(Numbers.of(self.start), **chosen)

    def _may_fit(self, n: Any) -> Any:
        """Of a layout, or of Numbers, whether the average device has memory for its states."""
        slices, copies = n.pp * np.maximum(n.tp, n.ep * n.expert_slices), n.dp * n.cp
        recipe, share = self.memory.recipe, self.memory.model.parameters // slices
        held = sum(
            state.on_device(share, -(-share // copies), n.zero)
            for state in recipe.states
            if state.of == "parameters" and state.place == DEVICE
        )
        brought = (n.zero == 3) | (not recipe.offloads_weights)
        return brought & (held + self._budget(n) <= self.sure)

    def _budget(self, n: Any) -> Any:
        """Bytes of the whole overhead of a layout, or of Numbers."""
        return overheads(n, self.memory.recipe.framework) if self.own is None else self.own

    def _fastest_first(self, n: Numbers) -> Array:
        """The order of layouts: those of the start's global batch, by seconds of a sequence, then
        by devices."""
        memory, batch = self.memory, np.asarray(n.dp * n.microbatch * n.microbatches)
        seconds: Any = np.zeros(len(batch))
        if memory.recipe.trains and not memory.recipe.places:
            with suppress(ConfigError):  # the device has no units for the recipe's products
                run = memory.model, self.cluster, n, memory.recipe, memory.sequence
                seconds = step_parts(*run).total / batch
        devices = np.asarray(n.dp * n.tp * n.pp)
        return np.lexsort((devices, seconds, batch != self.start.sequences))

    def _first(self, rows: Array) -> Layout | None:
        """The first of some layouts that fits."""
        n = least = self._numbers(rows)
        if self.special:  # in any order a stage holds one micro-batch
            least = replace(n, schedule="1f1b", interleave=1, microbatches=1, items=False)
        held = peaks(self.memory.model, self.memory.recipe, self.memory.sequence, **vars(least))
        for at in np.flatnonzero(held + self._budget(n) <= self.sure):
            layout = self._layout(dict(zip((*FIELDS, "microbatches"), rows[at], strict=True)))
            if layout is not None and (not self.special or self._fits(layout)):
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

    def _fits(self, layout: Layout) -> bool:
        """Whether every stage fits with overhead; the likeliest not to is looked at first."""
        if not self._may_fit(layout):
            return False
        run = self.memory.model, layout, self.memory.recipe, self.memory.sequence
        first, *others = range(layout.pp)
        try:
            looks = (layout_terms(*run, stages) for stages in ([first], others) if stages)
            most = (np.max(fullest(terms)) for terms in looks)
            return all(each + self._budget(layout) <= self.sure for each in most)
        except (PartitionError, ScheduleError):  # a schedule that this pp does not allow
            return False

    def _more_copies(self) -> Layout | None:
        """The smallest larger dp that fits, where copies share anything out."""
        start, step = self.start, self.start.dp_step
        if not any(state.sharded(start.zero) for state in self.memory.recipe.states):
            return None
        low, high = start.dp // step, MOST_OF_ANY // (start.devices // start.dp) // step
        if high <= low or not self._fits(replace(start, dp=high * step)):
            return None
        while high - low > 1:  # more copies never hold more
            middle = (low + high) // 2
            fits = self._fits(replace(start, dp=middle * step))
            low, high = (low, middle) if fits else (middle, high)
        return replace(start, dp=high * step)
