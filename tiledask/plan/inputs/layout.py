"""A layout: how a training run is sharded over devices, and when micro-batches run.

dp copies x cp pieces of each sequence x pp stages x tp slices = devices

           stage 0      stage 1            one data-parallel copy: pp x tp devices
slice 0  [layers 0-5] [layers 6-11]        each device holds 1/tp of its stage's layers
slice 1  [layers 0-5] [layers 6-11]
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from itertools import accumulate, pairwise
from math import gcd
from typing import Any

import numpy as np

from tiledask.errors import ConfigError, PartitionError, ScheduleError, short
from tiledask.plan.arrays import Array
from tiledask.plan.intervals import even
from tiledask.plan.pipelines.schedules import BOTH_WAYS, LOOPED, V_SHAPED, called, schedules
from tiledask.plan.whole import is_whole, whole_number

__all__ = ["RECOMPUTE", "SCHEDULES", "Layout", "Numbers", "expert_copies", "expert_slices"]
__all__ += ["stage_layers"]

RECOMPUTE = ("none", "selective", "full")
"""What the backward pass computes again: nothing, the attention core, every layer."""
SELECTIVE_OP = "selective_op"
"""Also allowed: all but the outputs of attention and of every second matrix product."""
SCHEDULES = tuple(schedules)
"""Orders of micro-batches; with ``interleave`` > 1, "1f1b" is the interleaved one."""
ITEMS = "items"
"""The partition that counts embedding and head as a layer each."""
MOST_OF_ANY = 10**8
"""Of any field of a layout, as of a cluster's devices: a larger number is a slip of the hand."""
COUNTS = ("dp", "tp", "pp", "microbatch", "microbatches", "interleave", "cp", "ep")
BOUNDS = dict.fromkeys(COUNTS, (1, MOST_OF_ANY))
BOUNDS |= {"zero": (0, 3), "expert_tp": (0, 2**20)}
"""The least and the most of each field that is a number."""


@dataclass(frozen=True)
class Layout:
    """A validated layout.

    >>> layout = Layout(tp=8, pp=10, dp=2, zero=1)
    >>> layout.devices, layout.stage_layers(0, layers=105)
    (160, 11)
    """

    dp: int = 1  # Data-parallel copies
    tp: int = 1  # Tensor-parallel slices of each layer
    pp: int = 1  # Pipeline stages
    microbatch: int = 1  # Sequences in a micro-batch
    microbatches: int = 1  # Micro-batches of one copy in a step
    zero: int = 0  # ZeRO stage: 1 shards optimizer states over dp, 2 gradients too, 3 weights too
    sequence_parallel: bool = False  # What tp leaves whole is cut along the sequence over it
    recompute: str = "none"
    schedule: str = "1f1b"
    interleave: int = 1  # Chunks of layers per stage
    cp: int = 1  # Context-parallel pieces of every sequence; ZeRO shards over dp x cp
    ep: int = 1
    """Expert-parallel devices, out of a stage's dp x cp, that the experts are divided over; out
    of tp x dp x cp with ``expert_tp``."""
    flash_attention: bool = False  # No s x s scores are kept, but computed again in the backward
    partition: tuple[int, ...] | str | None = None
    """Bounds of the layers of each chunk, 0 .. layers, in model order: chunk c holds the
    layers bounds[c] .. bounds[c+1]-1. None: as even as can be. "items": embedding and head
    count as a layer each. Or the layers of each chunk as text, "5, 6, 6, 5"."""
    expert_tp: int = 0
    """Tensor-parallel slices of each expert, 0: tp. With fewer, ep x expert_tp devices out of a
    stage's tp x dp x cp hold all experts (Megatron-Core's parallel folding)."""

    def __post_init__(self) -> None:
        own: dict[str, Any] = {"schedule": called(self.schedule)}
        for name, (least, most) in BOUNDS.items():
            own[name] = whole_number(name, getattr(self, name), least, most)
        for name in ("sequence_parallel", "flash_attention"):
            if not isinstance(value := getattr(self, name), bool):
                raise ConfigError(f"{name} must be True or False, got {short(value)}")
        for name, allowed in (("recompute", (*RECOMPUTE, SELECTIVE_OP)), ("schedule", SCHEDULES)):
            if (value := own.get(name, self.recompute)) not in allowed:
                rule = f"{name} must be one of {', '.join(allowed)}, got {short(value)}"
                raise ConfigError(rule)
        if own["schedule"] in V_SHAPED and own["interleave"] == 1:
            own["interleave"] = 2
        vars(self).update(own)
        for error, broken, rule in _rules(self):
            if broken:
                raise error(rule)
        if (given := self.partition) in (None, ITEMS):
            return
        if isinstance(given, str):
            sizes = given.split(",")
            if not all(re.fullmatch(r"\s*\d{1,6}\s*", size) for size in sizes):
                rule = f"write the layers of each stage, such as '5, 6, 6, 5', or {ITEMS!r}"
                raise PartitionError(f"partition {short(given)}: {rule}")
            given = tuple(accumulate(map(int, sizes), initial=0))
        bounds: tuple[Any, ...] = tuple(given) if isinstance(given, Iterable) else (None,)
        inner = [b - a for a, b in pairwise(bounds)] if all(map(is_whole, bounds)) else []
        chunks = self.chunks
        if len(inner) != chunks or bounds[0] != 0 or min(inner) < 0 or 0 in inner[1:-1]:
            raise PartitionError(
                f"partition must be a sequence of whole numbers, {chunks + 1} for {chunks} chunks "
                f"(pp x interleave), that must start at 0 and rise, got {short(bounds)}; only the "
                f"first and the last chunk may be without layers"
            )
        vars(self).update(partition=tuple(map(int, bounds)))

    @property
    def devices(self) -> int:
        return self.dp * self.cp * self.tp * self.pp

    @property
    def chunks(self) -> int:
        """Pieces that the layers are cut into: pp x interleave."""
        return self.pp * self.interleave

    @property
    def sequences(self) -> int:
        """Sequences of one step over all copies: the global batch."""
        return self.dp * self.microbatch * self.microbatches

    def chunk_layers(self, layers: int) -> tuple[int, ...]:
        """Layers of each chunk, in model order.

        Without a partition, the first ``layers mod chunks`` chunks get one layer more.

        >>> Layout(pp=4).chunk_layers(10)
        (3, 3, 2, 2)
        """
        bounds, items = self.partition, 2 * (self.partition == ITEMS)
        if isinstance(bounds, tuple):
            if bounds[-1] != layers:
                there = f"the partition ends at {bounds[-1]}, the model has {layers} layers"
                raise PartitionError(f"{there}; the last bound must be the number of layers")
            return tuple(b - a for a, b in pairwise(bounds))
        if self.chunks > (most := layers + items):
            what = "items, embedding and head among them" if items else "layers"
            raise PartitionError(
                f"pp x interleave = {self.chunks} chunks need as many {what}, the model has "
                f"{most}; use pp x interleave of {most} or less"
            )
        sizes = list(even(most, self.chunks))
        sizes[0] -= items // 2
        sizes[-1] -= items // 2
        return tuple(sizes)

    def stage_layers(self, stage: int, layers: int) -> int:
        """Layers of all chunks of ``stage``; of both copies, where there are two."""
        chunks = self.chunk_layers(layers)
        return sum(chunks[chunk] for chunk in self.stage_chunks(stage))

    def stage_chunks(self, stage: Any) -> tuple[Any, ...]:
        """The chunks on the devices of ``stage``, first to last; of both copies' in turn. Of an
        array of stages, arrays.

        >>> [Layout(pp=4, schedule=name).stage_chunks(1) for name in ("zb-v", "dualpipe")]
        [(1, 6), (1, 2)]
        """
        p = self.pp
        if self.schedule in BOTH_WAYS:
            return stage, p - 1 - stage
        back = self.schedule in V_SHAPED  # every second chunk goes from the last stage to the first
        turns = (c % 2 if back else 0 for c in range(self.interleave))
        return tuple(c * p + (p - 1 - stage if t else stage) for c, t in enumerate(turns))

    @property
    def options(self) -> list[str]:
        """The layout as `tiledask fit` takes it: ["--tp", "8", "--sequence-parallel"]."""
        flags = {f"--{name.replace('_', '-')}": v for name, v in self._changed().items()}
        return [w for flag, v in flags.items() for w in ([flag] if v is True else [flag, str(v)])]

    def _changed(self) -> dict[str, Any]:
        """The fields that differ from the default."""
        return {f.name: v for f in fields(self) if (v := getattr(self, f.name)) != f.default}

    def __repr__(self) -> str:
        words = ", ".join(f"{name}={value!r}" for name, value in self._changed().items())
        return f"Layout({words})"

    def __str__(self) -> str:
        """The fields that differ from the default: "dp=2 tp=8 pp=10 zero=1"."""
        sizes = f"dp={self.dp} tp={self.tp} pp={self.pp}"
        others = (item for item in self._changed().items() if item[0] not in ("dp", "tp", "pp"))
        return " ".join([sizes, *(f"{name}={value}" for name, value in others)])


def _rules(layout: Layout) -> Iterator[tuple[type[ValueError], bool, str]]:
    """(what it is when broken, whether it is, the rule) of those about several fields."""
    name, tp, p = layout.schedule, layout.tp, layout.pp
    v, m = layout.interleave, layout.microbatches
    slices = layout.ep * expert_slices(layout)
    step = slices // gcd(slices, tp * layout.cp)  # experts take whole copies of a stage
    rule = f"ep={layout.ep} must divide dp x cp = {layout.dp * layout.cp}, over which experts are "
    rule += "sharded, or ep x expert_tp, where that is less than tp, tp x dp x cp; a dp that "
    yield ConfigError, layout.dp % step > 0, f"{rule}{step} divides does"
    rule = f"expert_tp={layout.expert_tp} beside tp={tp} sends each device's own tokens to "
    rule += "experts; use sequence_parallel=True"
    yield ConfigError, expert_slices(layout) != tp > 1 and not layout.sequence_parallel, rule
    several, of = name in ("1f1b", *V_SHAPED) or name in LOOPED, f"schedule={name!r}"
    rule = f"{of} has one chunk on a stage, got interleave={v}; use '1f1b'"
    yield ScheduleError, v > 1 and not several, rule
    rule = f"{of} has two chunks on each stage, got interleave={v}; use interleave=2"
    yield ScheduleError, name in V_SHAPED and v != 2, rule
    rule = f"{of} in {v} chunks needs pp of 2 or more, got pp=1; use schedule='1f1b' and "
    yield ScheduleError, v > 1 and p == 1, rule + "interleave=1"
    # Megatron-LM sends groups of pp micro-batches through each chunk in turn
    rule = f"{of} in {v} chunks needs microbatches to be a multiple of pp, got {m} and {p}; "
    yield ScheduleError, v > 1 and name == "1f1b" and m % p > 0, rule + f"{-(-m // p) * p} works"


@dataclass(frozen=True)
class Numbers:
    """The numbers of a Layout: each one value, or an array with one value per layout."""

    dp: int | Array = 1
    tp: int | Array = 1
    pp: int | Array = 1
    cp: int | Array = 1
    ep: int | Array = 1
    microbatch: int | Array = 1
    microbatches: int | Array = 1
    zero: int | Array = 0
    sequence_parallel: bool | Array = False
    recompute: str | Array = "none"
    flash_attention: bool | Array = False
    schedule: str | Array = "1f1b"
    interleave: int | Array = 1
    expert_tp: int | Array = 0
    items: bool | Array = False  # Embedding and head count as a layer each: ``partition="items"``

    @classmethod
    def of(cls, *layouts: Layout) -> "Numbers":
        """The numbers of one Layout, or of several; bounds of their own are taken to be even."""
        names = (field.name for field in fields(cls) if field.name != "items")
        columns = {name: [getattr(layout, name) for layout in layouts] for name in names}
        columns["items"] = [layout.partition == ITEMS for layout in layouts]
        one = len(layouts) == 1
        return cls(**{name: c[0] if one else np.array(c) for name, c in columns.items()})


def expert_slices(n: Layout | Numbers) -> Any:
    """Tensor-parallel slices of each expert."""
    return n.expert_tp + (n.expert_tp == 0) * n.tp


def expert_copies(n: Layout | Numbers) -> Any:
    """Devices of a stage with the same slice of the same experts: ZeRO shards over them."""
    return n.tp * n.dp * n.cp // (n.ep * expert_slices(n))


def stage_layers(n: Numbers, layers: int) -> tuple[Any, Any, Any]:
    """(layers of the first stage, of the next, of the last), without embedding and head."""
    chunks, inside = n.pp * n.interleave, np.asarray(n.items) & (np.asarray(n.pp) > 1)
    each, more = np.divmod(layers + 2 * inside, chunks)
    stages = (0, np.minimum(1, n.pp - 1), n.pp - 1)
    first, second, last = (each * n.interleave + -(-(more - at) // n.pp) for at in stages)
    last = last - inside
    return first - inside, np.where(np.asarray(n.pp) > 2, second, last), last
