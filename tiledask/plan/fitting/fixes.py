"""What makes a layout fit: the nearest change, as a value and as a sentence."""

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tiledask.errors import ConfigError, PartitionError, ScheduleError
from tiledask.plan.arrays import Array
from tiledask.plan.fitting.fewest import FREE, changes, fewest_devices
from tiledask.plan.fitting.memory import MemoryEstimate, layout_terms
from tiledask.plan.fitting.overhead import overhead_of
from tiledask.plan.fitting.terms import fullest
from tiledask.plan.fitting.vectorized import ORDERS, peaks
from tiledask.plan.inputs.hardware import ClusterSpec
from tiledask.plan.inputs.layout import ITEMS, MOST_OF_ANY, RECOMPUTE, Layout, Numbers
from tiledask.plan.inputs.recipes import DEVICE
from tiledask.plan.timing.step_time import step_parts
from tiledask.plan.units import divisors, format_bytes

if TYPE_CHECKING:
    from tiledask.plan.fitting.fit import Fit

__all__ = ["FIELDS", "SINGLE", "Fix", "Search", "changes", "sentence"]

FIELDS = ("zero", "microbatch", "recompute", "tp", "pp", "dp")
"""Fields that a fix may change; of fixes that are alike in all else the earlier ones come first."""
MOST_COPIES = 2**17
"""Copies up to which every number is tried; beyond, those that fill the cluster."""
AT_ONCE = 4096
"""Layouts whose memory is counted together, the fastest first."""
SINGLE = (*FIELDS[:3], "flash_attention", "sequence_parallel", *FIELDS[3:])
"""Fields that are changed one at a time."""


@dataclass(frozen=True)
class Fix:
    """A layout that fits, near the one that does not."""

    layout: Layout
    changed: tuple[str, ...]
    """Names of the fields that differ."""
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

    @property
    def devices(self) -> int:
        """Devices that it needs."""
        return self.layout.devices

    def __str__(self) -> str:
        return self.sentence


def sentence(
    before: "Fit", after: "Fit", changed: tuple[str, ...], slower: float | None, fewest: bool
) -> str:
    """What changes, what it takes and what is then held. ``fewest``: nothing takes fewer devices,
    but what is held fixed."""
    old, new, there = before.layout, after.layout, before.cluster.devices
    values = {name: (getattr(old, name, ""), getattr(new, name, "")) for name in changed}
    if "recipe" in changed:
        values["recipe"] = before.memory.recipe.name, after.memory.recipe.name
    steps = ", ".join(f"{name} {was} -> {now}" for name, (was, now) in values.items())
    need = f"{new.devices} of {there} devices"
    if new.devices > there:
        none = "it"
        if fewest:
            count = old.microbatch * old.microbatches
            of = (
                f"with {count} sequence{'s' * (count > 1)} of {after.memory.sequence} tokens a copy"
            )
            none = f"no layout on {there} device{'s' * (there > 1)} fits {of}; the smallest that "
            none += "does"
        need = f"{none} takes {new.devices}, {new.devices - there} more than the cluster has"
    if old.microbatches != new.microbatches:
        need += f", {new.microbatches} micro-batches a copy"
    if old.sequences != new.sequences:
        lost = old.dp - new.dp
        need += f", {lost} of {old.dp} copies are given up" if lost > 0 else ""
        need += f", the global batch goes from {old.sequences} to {new.sequences}"
    if slower is not None:
        need += f", a sequence takes {slower:.3g} times as long by estimate"
    low, high, capacity = map(format_bytes, (*after.band, before.capacity))
    steps = steps or "no change but the number of devices"
    return f"{steps} ({need}): {low}, with overhead {high}, of {capacity} per device"


@dataclass(frozen=True)
class Search:
    """Layouts near one that does not fit."""

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
        return self.start.partition not in (None, ITEMS) or self.start.schedule not in ORDERS

    def nearest(self) -> Layout | None:
        """The fewest changes on the cluster's devices, one of a field or of the global batch; of
        these the batch kept, then the least time of a sequence by formula, the fewest devices, the
        order of FIELDS.

        fields changed   1        2              3                   the first column where one
                       zero 2   tp 8, pp 4     tp 8, pp 10, dp 2  -> fits: of these the batch kept,
                       pp 4     tp 8, dp 2     ...                   then the least seconds
        """
        if self.start.microbatch * self.start.microbatches > MOST_OF_ANY:
            return None
        n, moved = self._neighbours()
        other = n["dp"] * n["microbatch"] * n["microbatches"] != self.start.sequences
        level = moved.sum(axis=0) + other
        code = (~moved).T @ (2 ** np.arange(len(FIELDS))[::-1])  # those that change FIELDS' first
        possible = (level > 0) & self._may_fit(self._numbers(n))
        for each in np.unique(level[possible]):
            at = np.flatnonzero(possible & (level == each))
            numbers = self._numbers({name: column[at] for name, column in n.items()})
            keys = code[at], numbers.dp * numbers.tp * numbers.pp, self._seconds(numbers), other[at]
            order = at[np.lexsort(keys)]
            for first in range(0, len(order), AT_ONCE):
                some = order[first : first + AT_ONCE]
                found = self._first({name: column[some] for name, column in n.items()})
                if found is not None:
                    return found
        return None

    def _neighbours(self) -> tuple[dict[str, Array], Array]:
        """Layouts on the cluster's devices by column, with the global batch of the start, which
        copies share evenly, or a copy's work; and which of FIELDS differ in each."""
        start, limit = self.start, self.cluster.devices
        # what changes before what stays, so that layouts come in the order of FIELDS
        choices = {name: [*self._options(name, limit), getattr(start, name)] for name in FIELDS[:5]}
        shape = [len(each) for each in choices.values()]
        places = dict(zip(choices, np.indices(shape).reshape(5, -1)[:, :, None], strict=True))
        n = {name: np.array(choices[name])[at] for name, at in places.items()}
        slices = start.ep * (start.expert_tp + (start.expert_tp == 0) * n["tp"])
        step = slices // np.gcd(slices, n["tp"] * start.cp)
        top = limit // (n["tp"] * n["pp"] * start.cp) // step * step
        work = start.microbatches * start.microbatch // n["microbatch"]  # of a copy
        most = min(limit, MOST_COPIES)
        share = [d for d in range(1, most + 1) if start.sequences % d == 0 and d != start.dp]
        same = np.array([start.dp, *share])
        n["dp"] = np.concatenate([0 * step + same, top, step], axis=1)
        m = [start.dp * work // same, work, work]
        n["microbatches"] = np.concatenate(m, axis=1)
        whole = [start.dp * work % same == 0, top != start.dp, step != start.dp]
        good = np.concatenate(whole, axis=1) & (n["dp"] > 0) & (n["dp"] <= top)
        good &= (n["dp"] % step == 0) & (n["microbatches"] <= MOST_OF_ANY)
        if start.interleave > 1:
            good &= (n["pp"] > 1) & (n["microbatches"] % n["pp"] == 0)
        moved = [places[name] < len(each) - 1 for name, each in choices.items()]
        moved.append(n["dp"] != start.dp)
        n = {name: np.broadcast_to(column, good.shape)[good] for name, column in n.items()}
        return n, np.array([np.broadcast_to(each, good.shape)[good] for each in moved])

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

    def _numbers(self, n: dict[str, Array]) -> Numbers:
        """Layouts of these columns, and else as the start."""
        return replace(Numbers.of(self.start), **n)

    def _seconds(self, n: Numbers) -> Array:
        """Of a sequence in each layout; 0 where the time model knows none."""
        memory, batch = self.memory, np.asarray(n.dp * n.microbatch * n.microbatches)
        if memory.recipe.trains and not memory.recipe.places:
            with suppress(ConfigError):  # the device has no units for the recipe's products
                run = memory.model, self.cluster, n, memory.recipe, memory.sequence
                return np.asarray(step_parts(*run).total / batch)
        return np.zeros(len(batch))

    def _may_fit(self, n: Layout | Numbers) -> Any:
        """Of a layout, or of many, whether the average device has memory for its states."""
        slices, copies = n.pp * np.maximum(n.tp, n.ep * n.expert_slices), n.dp * n.cp
        recipe, share = self.memory.recipe, self.memory.model.parameters // slices
        held = sum(
            state.on_device(share, -(-share // copies), n.zero)
            for state in recipe.states
            if state.of == "parameters" and state.place == DEVICE
        )
        brought = (n.zero == 3) | (not recipe.offloads_weights)
        return brought & (held + self._overhead(n) <= self.sure)

    def _overhead(self, n: Layout | Numbers) -> Any:
        framework = self.memory.recipe.framework
        return overhead_of(n, framework).total if self.own is None else self.own

    def _first(self, n: dict[str, Array]) -> Layout | None:
        """The first of some layouts that fits."""
        least = numbers = self._numbers(n)
        if self.special:  # in any order a stage holds one micro-batch
            least = replace(least, schedule="1f1b", interleave=1, microbatches=1, items=False)
        held = peaks(self.memory.model, self.memory.recipe, self.memory.sequence, **vars(least))
        for at in np.flatnonzero(held + self._overhead(numbers) <= self.sure):
            layout = self._layout({name: column[at].item() for name, column in n.items()})
            if layout is not None and (not self.special or self._fits(layout)):
                return layout
        return None

    def _layout(self, row: dict[str, Any]) -> Layout | None:
        """The start with other values; None where its schedule does not go with them."""
        if row.get("pp", self.start.pp) != self.start.pp and self.start.partition != ITEMS:
            row = row | {"partition": None}
        try:
            return replace(self.start, **row)
        except ValueError:
            return None

    def _fits(self, layout: Layout) -> bool:
        """Whether every stage fits with overhead; the first, mostly the fullest, before others."""
        if not self._may_fit(layout):
            return False
        run = self.memory.model, layout, self.memory.recipe, self.memory.sequence
        room = self.sure - self._overhead(layout)
        try:
            looks = ([0], range(layout.pp)) if layout.pp > 1 else ([0],)
            return all(np.max(fullest(layout_terms(*run, stages))) <= room for stages in looks)
        except (PartitionError, ScheduleError):  # a schedule that this pp does not allow
            return False

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
        start, least = self.start, getattr(self.start, name)
        if name == "dp":
            return self._more_copies()
        for value in self._options(name, MOST_OF_ANY):
            row = {name: value}
            if name == "microbatch":
                row["microbatches"] = start.microbatches * start.microbatch // value
            layout = self._layout(row)
            more = name not in ("tp", "pp") or value > least
            if more and layout and layout.devices <= MOST_OF_ANY and self._fits(layout):
                return layout
        return None

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
