"""What makes a layout fit: the nearest change, and the fewest devices, every layout to the byte.

fields changed  1        2            3                        the first column where one fits: of
              zero 2   tp 8, pp 4   tp 8, pp 10, dp 2  ...  -> these the batch kept, then the least
              pp 4     tp 8, dp 2   ...                        seconds of a sequence

tp x pp x cp x ep x ZeRO x recompute x ...  ->  each with the smallest dp that fits  ->  the fewest
                                                (bisection, all layouts at once)
"""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tiledask.errors import ConfigError, PartitionError, ScheduleError
from tiledask.plan.arrays import Array
from tiledask.plan.fitting.memory import MemoryEstimate, layout_terms
from tiledask.plan.fitting.overhead import overhead_of
from tiledask.plan.fitting.terms import fullest
from tiledask.plan.fitting.vectorized import ORDERS, peaks
from tiledask.plan.inputs.hardware import ClusterSpec
from tiledask.plan.inputs.layout import ITEMS, MOST_OF_ANY, RECOMPUTE, Layout, Numbers
from tiledask.plan.inputs.recipes import DEVICE
from tiledask.plan.timing.step_time import step_parts
from tiledask.plan.units import divisors

__all__ = ["CHUNKS", "FIELDS", "SINGLE", "Fix", "Search", "changes", "context_degrees"]

FIELDS = ("zero", "microbatch", "recompute", "tp", "pp", "dp")
"""Fields that a fix may change; of fixes that are alike in all else the earlier ones come first."""
SINGLE = (*FIELDS[:3], "flash_attention", "sequence_parallel", *FIELDS[3:])
"""Fields that are changed one at a time."""
FREE = (*SINGLE, "cp", "ep", "interleave")
"""Fields that the fewest devices may have otherwise."""
CHANGES = (*SINGLE, "cp", "ep", "expert_tp", "interleave", "schedule", "partition")
"""Fields of a layout in the order in which changes are named."""
MOST_COPIES = 2**17
"""Copies up to which every number is tried; beyond, those that fill the cluster."""
AT_ONCE = 4096
"""Layouts whose memory is counted together, the fastest first."""
SOME = 64
"""Layouts, those with most room for states, whose copies are counted before those of others."""
CHUNKS = (1, 2, 3, 4, 6, 8, 12, 16)
"""Chunks of layers on a stage that are tried."""
LARGEST_CP = 64
SHORTEST_PIECE = 4096
"""Tokens below which a sequence is not cut over devices."""
Columns = dict[str, Array]


@dataclass(frozen=True)
class Fix:
    """A layout that fits, near the one that does not."""

    layout: Layout
    changed: tuple[str, ...]
    """Names of the fields that differ."""
    missing: int
    """Devices that the cluster lacks for it; 0 if it has enough."""
    sentence: str
    recipe: str
    """Name of the recipe."""

    @property
    def devices(self) -> int:
        """Devices that it needs."""
        return self.layout.devices

    def __str__(self) -> str:
        return self.sentence


def changes(before: Layout, after: Layout) -> tuple[str, ...]:
    """Names of the fields in which ``after`` differs; the number of micro-batches follows."""
    return tuple(n for n in CHANGES if getattr(before, n) != getattr(after, n))


def context_degrees(sequence: int) -> list[int]:
    """Powers of two that leave pieces of 4096 tokens or more."""
    most = min(LARGEST_CP, max(1, sequence // SHORTEST_PIECE))
    return [2**k for k in range(most.bit_length())]


def _grid(choices: dict[str, list[Any]]) -> Columns:
    """A row for every combination of choices, those of the last field next to each other."""
    places = np.indices([len(each) for each in choices.values()]).reshape(len(choices), -1)
    columns = zip(choices.items(), places, strict=True)
    return {name: np.array(each)[at] for (name, each), at in columns}


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
        order of FIELDS."""
        if self.start.microbatch * self.start.microbatches > MOST_OF_ANY:
            return None
        n = self._neighbours()
        moved = np.array([n[name] != getattr(self.start, name) for name in FIELDS])
        other = n["dp"] * n["microbatch"] * n["microbatches"] != self.start.sequences
        level = moved.sum(axis=0) + other
        code = (~moved).T @ (2 ** np.arange(len(FIELDS))[::-1])  # those that change FIELDS' first
        possible = (level > 0) & self._may_fit(replace(Numbers.of(self.start), **n))
        for each in np.unique(level[possible]):
            at = np.flatnonzero(possible & (level == each))
            numbers = replace(Numbers.of(self.start), **{k: column[at] for k, column in n.items()})
            keys: Any = (
                code[at],
                numbers.dp * numbers.tp * numbers.pp,
                self._seconds(numbers),
                other[at],
            )
            order = at[np.lexsort(keys)]
            for first in range(0, len(order), AT_ONCE):
                some = order[first : first + AT_ONCE]
                if found := self._first({name: column[some] for name, column in n.items()}):
                    return found
        return None

    def _neighbours(self) -> Columns:
        """Layouts on the cluster's devices with the global batch of the start, which copies share
        evenly, or with a copy's work."""
        start, limit = self.start, self.cluster.devices
        # what changes before what stays, so that layouts come in the order of FIELDS
        choices = {name: [*self._options(name, limit), getattr(start, name)] for name in FIELDS[:5]}
        n = {name: column[:, None] for name, column in _grid(choices).items()}
        slices = start.ep * (start.expert_tp + (start.expert_tp == 0) * n["tp"])
        step = slices // np.gcd(slices, n["tp"] * start.cp)
        top = limit // (n["tp"] * n["pp"] * start.cp) // step * step
        work = start.microbatches * start.microbatch // n["microbatch"]  # of a copy
        share = range(1, min(limit, MOST_COPIES) + 1)
        same = [start.dp, *(d for d in share if start.sequences % d == 0 and d != start.dp)]
        n["dp"] = np.concatenate([0 * step + same, top, step], axis=1)
        m = np.concatenate([start.dp * work // same, work, work], axis=1)
        whole = start.dp * work % same == 0, top != start.dp, step != start.dp
        good = np.concatenate(whole, axis=1) & (n["dp"] > 0) & (n["dp"] <= top)
        good &= (n["dp"] % step == 0) & (m <= MOST_OF_ANY)
        if start.interleave > 1:
            good &= (n["pp"] > 1) & (m % n["pp"] == 0)
        n["microbatches"] = m
        return {name: np.broadcast_to(column, good.shape)[good] for name, column in n.items()}

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

    def _beyond(self, n: Numbers) -> Any:
        """Bytes beyond the device's; 0 or less fits."""
        run = self.memory.model, self.memory.recipe, self.memory.sequence
        return peaks(*run, **vars(n)) + self._overhead(n) - self.sure

    def _first(self, n: Columns) -> Layout | None:
        """The first of some layouts, the start with these columns, that fits."""
        numbers, pp = replace(Numbers.of(self.start), **n), self.start.pp
        if self.special:  # in any order a stage holds one micro-batch
            numbers = replace(numbers, schedule="1f1b", interleave=1, microbatches=1, items=False)
        for at in np.flatnonzero(self._beyond(numbers) <= 0):
            row = {name: column[at].item() for name, column in n.items()}
            if row.get("pp", pp) != pp and self.start.partition != ITEMS:
                row["partition"] = None
            with suppress(ValueError):  # its schedule does not go with them
                layout = replace(self.start, **row)
                if layout.devices <= MOST_OF_ANY and (not self.special or self._fits(layout)):
                    return layout
        return None

    def _fits(self, layout: Layout) -> bool:
        """Whether every stage fits with overhead; the first, mostly the fullest, before others."""
        run = self.memory.model, layout, self.memory.recipe, self.memory.sequence
        looks = ([0], range(layout.pp)) if layout.pp > 1 else ([0],)
        with suppress(PartitionError, ScheduleError):  # a schedule that this pp does not allow
            most = (np.max(fullest(layout_terms(*run, stages))) for stages in looks)
            return all(each + self._overhead(layout) <= self.sure for each in most)
        return False

    def single(self, name: str) -> Layout | None:
        """The nearest other value of the field ``name`` alone that fits; more of tp, pp or dp,
        whether or not the cluster has as many devices."""
        start = self.start
        if name == "dp":
            return self._more_copies()
        now, options = getattr(start, name), self._options(name, MOST_OF_ANY)
        options = [v for v in options if name not in ("tp", "pp") or v > now]
        if name == "pp" and start.interleave > 1 and not self.special:
            options = [pp for pp in options if start.microbatches % pp == 0]
        n = {name: np.array(options)}
        if name == "microbatch":
            n["microbatches"] = start.microbatches * now // n[name]
        return self._first(n) if n[name].size else None

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

    def fewest_devices(self, free: tuple[str, ...] = FREE) -> Layout | None:
        """The layout on the fewest devices, however many the cluster has; of several the one that
        differs from the start in the fewest fields. None if there is none.

        Only the fields ``free`` differ: tp divides a node, cp stays or leaves pieces of 4096 tokens
        or more, and smaller micro-batches become more of them, so that a copy's work in a step
        stays. Layers are divided evenly, and a schedule that ``peaks`` does not know becomes 1F1B;
        or the layout's own stay, where more of one degree takes still fewer.
        """
        start = self.start
        found = self._fewest(free) if start.microbatch * start.microbatches <= MOST_OF_ANY else []
        best = min(found, key=lambda layout: len(changes(start, layout)), default=None)
        own: list[Layout | None] = []
        if start.partition is not None or self.special:
            own = [self.single(name) for name in ("tp", "pp", "dp")]
        return min(filter(None, [best, *own]), key=lambda layout: layout.devices, default=None)

    def _fewest(self, free: tuple[str, ...]) -> list[Layout]:
        """All that are on the fewest devices."""
        columns, step = self._shapes(free)
        unit = columns["tp"] * columns["pp"] * columns["cp"] * step

        def beyond(copies: Any, at: Array) -> Any:
            """Bytes beyond the device's on layouts ``at`` in ``copies`` x ``step``."""
            n = {name: column[at] for name, column in columns.items()}
            return self._beyond(Numbers(**n, dp=copies * step[at]))

        # one copy gathers nothing and has a smaller budget, so it stands apart; of more than one,
        # more never hold more
        every = np.flatnonzero(unit <= MOST_OF_ANY)
        copies = np.zeros(len(unit), np.int64)
        copies[every] = beyond(1, every) <= 0
        least = min((state.zero for state in self.memory.recipe.states), default=4)
        shares = (copies == 0) & (columns["zero"] >= least) & ("dp" in free)
        rest = every[shares[every]]
        some = np.argsort(beyond(MOST_OF_ANY // unit[rest], rest), kind="stable")[:SOME]
        limit = int(unit[copies > 0].min(initial=MOST_OF_ANY))  # devices of a layout that fits
        for at in (rest[some], rest):
            at = at[(copies[at] == 0) & (limit // unit[at] > 1)]
            at = at[beyond(limit // unit[at], at) <= 0]
            low, high = np.ones_like(at), limit // unit[at]
            while (open_ := high - low > 1).any():
                middle = (low + high) // 2
                ok = np.zeros_like(open_)
                ok[open_] = beyond(middle[open_], at[open_]) <= 0
                low, high = np.where(ok | ~open_, low, middle), np.where(ok, middle, high)
            copies[at] = high
            limit = int((copies * unit)[copies > 0].min(initial=limit))
        return [
            Layout(dp=int(copies[n] * step[n]), **{k: v[n].item() for k, v in columns.items()})
            for n in np.flatnonzero((copies * unit == limit) & (copies > 0))
        ]

    def _shapes(self, free: tuple[str, ...]) -> tuple[Columns, Array]:
        """Layouts without their dp, and the numbers that each dp is a multiple of."""
        start, model, recipe = self.start, self.memory.model, self.memory.recipe

        def choices(name: str, every: Iterable[Any]) -> list[Any]:
            """The start's value, which comes first, and the others if ``name`` is free."""
            now = getattr(start, name)
            return [now, *(v for v in every if v != now)] if name in free else [now]

        tps = divisors(self.cluster.devices_per_node) if "tp" in free else [start.tp]
        schedule = start.schedule if start.schedule in ORDERS else "1f1b"
        size = 1 if "microbatch" in free else start.microbatch
        count = start.microbatch * start.microbatches // size
        # chunks even out which stages have the dense layers of a mixture, and never save otherwise
        chunks = choices("interleave", CHUNKS if model.experts and model.dense_layers else (1,))
        shapes = _grid(
            {
                "tp": [tp for tp in tps if model.allows_tp(tp)],
                "pp": choices("pp", range(1, model.layers + 1)),
                "cp": choices("cp", context_degrees(self.memory.sequence)),
                "ep": choices("ep", divisors(model.experts)) if model.experts else [1],
                "interleave": list(dict.fromkeys([*chunks, 1])),
            }
        )
        rest = _grid(
            {
                "recompute": choices("recompute", RECOMPUTE if recipe.trains else ()),
                "flash_attention": choices("flash_attention", (True, False)),
                "sequence_parallel": choices("sequence_parallel", (True, False)),
                "zero": [3] if recipe.offloads_weights else choices("zero", range(4)),
            }
        )
        tp, pp, v = shapes["tp"], shapes["pp"], shapes["interleave"]
        several = (schedule == "1f1b") & (pp > 1) & (count % pp == 0)
        good = np.where(several, np.isin(v, chunks), v == 1) & (pp * v <= model.layers)
        if start.schedule == "1f1b" and "interleave" not in free:
            good &= v == start.interleave
        slices = start.expert_tp + (start.expert_tp == 0) * tp
        whole = (tp == 1) | (tp == slices)  # or the sequence is cut: experts have tp slices
        at, other = np.nonzero(good[:, None] & (whole[:, None] | rest["sequence_parallel"]))
        n = {name: column[at] for name, column in shapes.items()}
        n |= {name: column[other] for name, column in rest.items()}
        same = {"microbatch": size, "microbatches": count, "schedule": schedule}
        same |= {"expert_tp": start.expert_tp}
        n |= {name: np.full(len(at), value) for name, value in same.items()}
        split = n["ep"] * slices[at]
        return n, split // np.gcd(split, n["tp"] * n["cp"])
