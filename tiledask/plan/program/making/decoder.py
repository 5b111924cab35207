"""The shapes of a decoder in units that a pipeline stage can hold, on any tensor-parallel rank.

units      embedding  positions  layer 0 | layer 1  layer 2 | layer 3  head
stage                 0                          1                 2
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tiledask.errors import PartitionError
from tiledask.plan.collectives.shards import (
    HeadCounts,
    Shardings,
    block_layout,
    embedding_layout,
)
from tiledask.plan.intervals import ends_of
from tiledask.plan.products.placement import Replicate, Tiling

__all__ = ["Decoder", "DecoderShapes", "block_shapes"]

Shapes = dict[str, tuple[int, ...]]
"""By the weight's name."""


def block_shapes(
    hidden: int,
    heads: HeadCounts,
    inner: int,
    gated: bool,
    fused: bool = True,
    bias: bool = False,
) -> Shapes:
    """Of the weights of a block: norms, matrices and their biases, in their order. ``fused``: q, k
    and v are one matrix, and gate and up."""
    q, kv = heads.query * heads.width, heads.kv * heads.width
    into = {"qkv": q + 2 * kv} if fused else {"q": q, "k": kv, "v": kv}
    attention = {name: (hidden, columns) for name, columns in into.items()} | {"o": (q, hidden)}
    names = (["_gate_up"] if fused else ["_gate", "_up"]) if gated else ["_1"]
    feed = dict.fromkeys(names, (hidden, inner * (2 if names == ["_gate_up"] else 1)))
    feed["_down" if gated else "_2"] = inner, hidden
    found: Shapes = {}
    for number, (layer, matrices) in enumerate((("attention", attention), ("mlp", feed)), 1):
        found |= {f"norm_{number}.{kind}": (hidden,) for kind in ("w" if gated else "wb")}
        for name, shape in matrices.items():
            found[f"{layer}.w{name}"] = shape
            found |= {f"{layer}.b{name}": shape[1:]} if bias else {}
    return found


class DecoderShapes:
    """What follows from the sizes of a decoder of GPT-2's kind; ``gated``: of Llama's."""

    vocabulary: int
    hidden: int
    layers: int
    sequence: int
    """Tokens of a row."""
    gated: bool
    tied: bool
    eps: float | None
    """Under the roots of its norms. None: 1e-6 of RMSNorm, 1e-5 of LayerNorm."""

    @property
    def head_counts(self) -> HeadCounts:
        """Of its attention."""
        raise NotImplementedError

    @property
    def inner(self) -> int:
        """Columns between the two matrices of the feed-forward."""
        raise NotImplementedError

    learned: int | None = None
    """Rows of the table of positions, 0 for none; None: a row per token, or none if ``gated``."""

    @property
    def positions(self) -> int:
        """Rows of the table of positions; 0: there is none."""
        usual = 0 if self.gated else self.sequence
        return usual if self.learned is None else self.learned

    @property
    def units(self) -> tuple[str, ...]:
        """Its parts, in order."""
        blocks = (f"layer {n}" for n in range(self.layers))
        return ("embedding", *(("positions",) if self.positions else ()), *blocks, "head")

    def stage_units(self, stage: int, cut: Sequence[int]) -> tuple[str, ...]:
        """The units of one stage; ``cut``: how many layers each stage has, 0 or more.

        A stage without layers hands on what comes.
        """
        if sum(cut) != self.layers or min(cut) < 0:
            raise PartitionError(
                f"stages of {', '.join(map(str, cut))} layers are {sum(cut)} together, the model "
                f"has {self.layers}; give each stage 0 or more that add up to {self.layers}"
            )
        blocks = tuple(f"layer {n}" for n in range(self.layers))[
            slice(*ends_of(cut)[stage : stage + 2])
        ]
        last = stage == len(cut) - 1
        before = [u for u in self.units if u in ("embedding", "positions")] if not stage else []
        if last and stage and self.tied:  # first, so that ZeRO shards it as on the first stage
            before = ["embedding"]
        return (*before, *blocks, *(["head"] if last else []))

    def whole_shapes(self, unit: str) -> Shapes:
        """Of a unit's weights."""
        h, kinds = self.hidden, "w" if self.gated else "wb"
        if unit == "embedding":
            return {"table": (self.vocabulary, h)}
        if unit == "positions":
            return {"table": (self.positions, h)}
        if unit == "head":
            norm: Shapes = {f"norm.{kind}": (h,) for kind in kinds}
            return norm if self.tied else norm | {"w_head": (h, self.vocabulary)}
        return block_shapes(h, self.head_counts, self.inner, self.gated, bias=not self.gated)

    def tilings(self, unit: str, ranks: int) -> dict[str, Tiling]:
        """How a unit's weights lie on the ranks of a tensor-parallel group: norms on each."""
        layout: Shardings = {}
        if unit in ("embedding", "head"):
            layout = embedding_layout(self.vocabulary, ranks)
        elif unit != "positions":
            layout = block_layout(self.head_counts, self.inner, ranks)
        return {
            name: Tiling(shape, (ranks,), (layout.get(name, Replicate()),))
            for name, shape in self.whole_shapes(unit).items()
        }

    def shapes(self, unit: str, ranks: int, rank: int) -> Shapes:
        """Of a unit's weights on one rank of a tensor-parallel group."""
        tilings = self.tilings(unit, ranks)
        return {name: tiling.block_shape((rank,)) for name, tiling in tilings.items()}


@dataclass(frozen=True)
class Decoder(DecoderShapes):
    """A decoder by its sizes alone."""

    vocabulary: int
    hidden: int
    layers: int
    sequence: int
    heads: HeadCounts
    ffn: int
    gated: bool = False
    tied: bool = False
    eps: float | None = None
    learned: int | None = None

    @property
    def head_counts(self) -> HeadCounts:
        return self.heads

    @property
    def inner(self) -> int:
        return self.ffn
