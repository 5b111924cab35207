"""Why did it run out of memory: torch's snapshot of its allocator beside the ledger of a stage.

blocks of the snapshot, at their fullest   -->   as large as a weight at 2 B, at 4 B, as logits, ...
ledger of the stage                        -->   weights, gradients | master weights, moments | ...

Sizes alone tell what a block is, so states of as many bytes a parameter are one class here.
"""

import gzip
import os
import pickle
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, NoReturn

from tiledask.errors import ConfigError, short
from tiledask.plan import html
from tiledask.plan.fitting.memory import MemoryEstimate
from tiledask.plan.inputs.weights import Weight
from tiledask.plan.units import format_bytes
from tiledask.plan.whole import whole_number

__all__ = ["BesideSnapshot", "MemorySnapshot", "beside_snapshot", "read_snapshot"]

MOST_BYTES = 1_000_000_000
SMALL = 1 << 16
"""Bytes of a block below which its size says nothing: norms, biases, indices."""
CLOSE = 1e-3
"""Share by which a block may be larger than the tensor that it is: padding."""
REST = "activations, buffers and the rest"
HELD = ("active_allocated", "active_awaiting_free", "active_pending_free")


@dataclass(frozen=True)
class MemorySnapshot:
    """What a device's allocator held at its fullest moment, of those that the snapshot tells."""

    blocks: tuple[int, ...]
    """Bytes that each was asked for, the largest first."""
    reserved: int
    """Bytes of the device that the allocator has, when the snapshot was made."""
    refused: int
    """Bytes that were asked for in vain; 0 if the snapshot has no such event."""

    @property
    def active(self) -> int:
        return sum(self.blocks)


class _Plain(pickle.Unpickler):
    """One that makes dicts, lists, texts and numbers, and calls nothing."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise ConfigError(
            f"the snapshot wants to load {short(module)}.{short(name)}; torch's have plain lists "
            f"and dicts alone, and nothing else is loaded from a pickle"
        )

    def persistent_load(self, pid: Any) -> NoReturn:
        raise ConfigError("the snapshot refers to objects outside; torch's do not")


def read_snapshot(path: str | os.PathLike[str]) -> MemorySnapshot:
    """The fuller device of a file that ``torch.cuda.memory._dump_snapshot`` wrote, .gz or not.

    With a history (``_record_memory_history``) its fullest moment, else that of the snapshot.
    Nothing in the file is called: one with more than plain containers is a ConfigError.
    """
    name = Path(path).name
    if not os.path.isfile(path) or os.path.getsize(path) > MOST_BYTES:
        raise ConfigError(f"{name} is no file of up to {format_bytes(MOST_BYTES)}; dump it again")
    data = Path(path).read_bytes()
    try:
        if data[:2] == b"\x1f\x8b":
            with gzip.open(path) as file:
                data = file.read(MOST_BYTES)
        found = _Plain(BytesIO(data)).load()
    except ConfigError:
        raise
    except Exception as error:  # what damaged pickles raise is anything
        raise ConfigError(f"{name} is no pickle that can be read: {short(error)}") from None
    try:
        return _fullest(found)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise ConfigError(
            f"{name} is no snapshot of torch's allocator: it has segments with blocks, and here "
            f"{short(error)} is wrong"
        ) from None


def _fullest(found: Mapping[str, Any]) -> MemorySnapshot:
    held: dict[int, dict[int, int]] = {}
    reserved: Counter[int] = Counter()
    for segment in found["segments"]:
        device = int(segment.get("device", 0))
        reserved[device] += int(segment["total_size"])
        address = int(segment["address"])
        for block in segment["blocks"]:
            address = int(block.get("address", address))
            if block["state"] in HELD:
                asked = int(block.get("requested_size", block["size"]))
                held.setdefault(device, {})[address] = asked
            address += int(block["size"])
    device = max(reserved, key=lambda d: (sum(held.get(d, {}).values()), reserved[d]), default=0)
    traces = found.get("device_traces") or []
    trace = traces[device] if device < len(traces) else []
    now = held.get(device, {})
    sizes = [sum(now.values())]  # going back from the snapshot
    for event in reversed(trace):
        sizes.append(sizes[-1] - _change(event))
    fullest = max(range(len(sizes)), key=sizes.__getitem__)
    for event in trace[len(trace) - fullest :][::-1]:
        if _change(event) > 0:
            now.pop(int(event["addr"]), None)
        elif _change(event) < 0:
            now[int(event["addr"])] = int(event["size"])
    refused = max((int(e["size"]) for e in trace if e["action"] == "oom"), default=0)
    return MemorySnapshot(tuple(sorted(now.values(), reverse=True)), reserved[device], refused)


def _change(event: Mapping[str, Any]) -> int:
    """Bytes that an event of the history adds to what is held."""
    sign = {"alloc": 1, "free_completed": -1}.get(event["action"], 0)
    return sign * int(event["size"]) if sign else 0


@dataclass(frozen=True, repr=False)
class BesideSnapshot:
    """Bytes of each class of tensors, predicted and in the snapshot."""

    stage: int
    snapshot: MemorySnapshot
    rows: tuple[tuple[str, int, int], ...]
    """(class, predicted, in the snapshot)."""
    said: tuple[str, ...]
    """Blocks that are as large as something that a layout may have or not."""

    @property
    def excess(self) -> dict[str, int]:
        """Class -> bytes more than predicted; below 0, less."""
        return {name: there - predicted for name, predicted, there in self.rows}

    @property
    def why(self) -> str:
        """A sentence: the class that is most larger than predicted, and by how much."""
        excess = self.excess
        name = max(excess, key=excess.__getitem__)
        if excess[name] <= 0.05 * self.snapshot.active:
            return "no class of tensors is larger than predicted by 5 % of what was held"
        predicted, there = next(row[1:] for row in self.rows if row[0] == name)
        return (
            f"{name}: {format_bytes(there)} where {format_bytes(predicted)} were predicted, "
            f"{format_bytes(excess[name])} more"
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        rows = [
            dict(zip(("class", "predicted", "snapshot"), row, strict=True)) for row in self.rows
        ]
        facts = {name: getattr(self.snapshot, name) for name in ("active", "reserved", "refused")}
        return {
            "stage": self.stage,
            "why": self.why,
            "rows": rows,
            "said": list(self.said),
            **facts,
        }

    def __repr__(self) -> str:
        return f"BesideSnapshot(stage {self.stage}: {self.why})"

    def _repr_html_(self) -> str:
        rows = [(n, *map(format_bytes, (a, b, b - a))) for n, a, b in self.rows]
        return html.table(("class", "predicted", "in the snapshot", "more"), rows, repr(self))


def beside_snapshot(
    memory: MemoryEstimate, snapshot: MemorySnapshot | str | os.PathLike[str], stage: int = 0
) -> BesideSnapshot:
    """What was predicted for a device of ``stage`` beside what its allocator held."""
    held = snapshot if isinstance(snapshot, MemorySnapshot) else read_snapshot(snapshot)
    stage = whole_number("stage", stage, 0, memory.layout.pp - 1)
    predicted = memory.ledger.by_tensor(stage)
    groups: dict[int, list[Any]] = {}
    for state in memory.recipe.states:
        if state.of == "parameters" and predicted.get(state.tensor):
            groups.setdefault(state.bytes, []).append(state)
    totals = {b: sum(predicted[s.tensor] for s in each) for b, each in groups.items()}
    widest = max(groups, default=0)
    joined = {n * widest for n in set(_tensors(memory, stage, False, True))}
    joined -= {n * widest for n in _tensors(memory, stage, False, False)}
    fused = bool(joined) and joined <= set(held.blocks)
    found, left = _sorted(memory, stage, groups, predicted, held.blocks, fused)
    rows = [(", ".join(s.tensor for s in each), totals[b], found[b]) for b, each in groups.items()]
    rest = max(memory.ledger.moments(stage).values()) - sum(totals.values())
    rows.append((REST, rest, sum(left)))
    rows.append(("cached, and held by nobody", 0, max(0, held.reserved - held.active)))
    return BesideSnapshot(stage, held, tuple(rows), tuple(_told(memory, left, held)))


def _sorted(
    memory: MemoryEstimate,
    stage: int,
    groups: Mapping[int, list[Any]],
    predicted: Mapping[str, int],
    blocks: tuple[int, ...],
    fused: bool,
) -> tuple[dict[int, int], list[int]]:
    """({bytes a parameter: bytes of blocks as large as such tensors}, the blocks that are none)."""
    wanted: dict[int, Counter[int]] = {}  # size -> {group: how many}
    layout = memory.layout
    other = {n * width for _, n, _ in _activations(memory) for width in (2, 4)}
    for width, states in groups.items():
        for state in states:
            whole = predicted[state.tensor]
            for elements in _tensors(memory, stage, state.sharded(layout.zero), fused):
                wanted.setdefault(elements * width, Counter())[width] += 1
            wanted.setdefault(whole, Counter())[width] += 1  # one buffer for all
    sizes = sorted(wanted)
    found, left = dict.fromkeys(groups, 0), []
    for block in blocks:
        at = bisect_left(sizes, block / (1 + CLOSE))
        if block < SMALL or at == len(sizes) or sizes[at] > block:
            left.append(block)
            continue
        counts = wanted[sizes[at]]
        free = [g for g in counts if counts[g] > 0]
        if not free and sizes[at] in other:
            left.append(block)
            continue
        group = free[0] if free else max(counts)
        counts[group] -= 1
        found[group] += block
    return found, left


def _tensors(memory: MemoryEstimate, stage: int, sharded: bool, fused: bool) -> Iterator[int]:
    """Elements of each tensor of parameters on a device, or of its shard of them."""
    model, layout = memory.model, memory.layout
    sizes = layout.chunk_layers(model.layers)
    items: list[tuple[Weight, ...]] = []
    for chunk in layout.stage_chunks(stage):
        start = sum(sizes[:chunk])
        items += [model.layer_weights(i) for i in range(start, start + sizes[chunk])]
        items += [model.embedding] if chunk == 0 else []
        items += [model.head] if chunk == layout.last_chunk else []
        items += [model.tied_copy] if chunk == layout.last_chunk > 0 else []
    for weights in items:
        joined: Counter[str] = Counter()
        for w in weights:
            experts = w.copies > 1
            slices = layout.expert_slices if experts else layout.tp
            each = w.size if w.kind == "norm" else 1  # weight and bias
            elements = Weight(w.name, w.units, w.size, w.split).count(slices) // each
            copies = layout.expert_copies if experts else layout.dp * layout.cp
            elements = -(-elements // copies) if sharded else elements
            times = w.copies // layout.ep if experts else each
            part = {"query": "qkv", "key": "qkv", "value": "qkv"}.get(w.name, "")
            part = part or ("in" if w.name in ("mlp gate", "mlp up") and not experts else "")
            if fused and part:
                joined[part] += elements
            else:
                yield from (elements for _ in range(times))
        yield from joined.values()


def _activations(memory: MemoryEstimate) -> tuple[tuple[str, int, str], ...]:
    """(what, its elements, what to say of it) of tensors that are no states."""
    model, layout = memory.model, memory.layout
    tokens = layout.microbatch * memory.sequence // layout.cp
    square = layout.microbatch * memory.sequence * memory.sequence // layout.cp
    heads, vocab = -(-model.heads // layout.tp), -(-model.vocab // layout.tp)
    return (
        ("the scores of a layer's attention", square * heads, " (flash attention keeps none)"),
        ("the logits of a micro-batch", tokens * vocab, ""),
        ("the inner activations of an MLP", tokens * -(-model.ffn // layout.tp), ""),
        ("a layer's input", tokens * model.hidden, ""),
    )


def _told(memory: MemoryEstimate, left: list[int], held: MemorySnapshot) -> Iterator[str]:
    """What blocks that are no states are as large as."""
    for words, elements, note in _activations(memory):
        for width in (4, 2):
            size = elements * width
            n = sum(size <= block <= (1 + CLOSE) * size for block in left)
            if n and size > SMALL:
                sizes = f"{format_bytes(n * size)} in {n} block{'s' * (n > 1)}"
                yield f"{sizes} as large as {words} at {width} B{note}"
    if held.refused:
        yield f"{format_bytes(held.refused)} were asked for in vain"
