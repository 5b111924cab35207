"""The shapes of a decoder in units that a pipeline stage can hold, on any tensor-parallel rank.

units      embedding  positions  layer 0 | layer 1  layer 2 | layer 3  head
stage                 0                          1                 2
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from tiledask.errors import PartitionError
from tiledask.plan.collectives.shards import HeadCounts, block_layout, embedding_layout
from tiledask.plan.intervals import ends_of
from tiledask.plan.products.placement import Replicate, Tiling

__all__ = ["Decoder", "block_shapes"]

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
    """Of a block's weights, in order. ``fused``: q, k and v are one matrix, and gate and up."""
    query, kv_heads, width = heads
    q, kv = query * width, kv_heads * width
    into = {"qkv": q + 2 * kv} if fused else {"q": q, "k": kv, "v": kv}
    first = {"gate_up": 2 * inner} if fused else dict.fromkeys(("gate", "up"), inner)
    if not gated:
        first = {"1": inner}
    matrices = {
        "attention": {name: (hidden, n) for name, n in into.items()} | {"o": (q, hidden)},
        "mlp": {f"_{name}": (hidden, n) for name, n in first.items()},
    }
    matrices["mlp"]["_down" if gated else "_2"] = inner, hidden
    found: Shapes = {}
    for number, (layer, shapes) in enumerate(matrices.items(), 1):
        found |= {f"norm_{number}.{kind}": (hidden,) for kind in ("w" if gated else "wb")}
        for name, shape in shapes.items():
            found[f"{layer}.w{name}"] = shape
            found |= {f"{layer}.b{name}": shape[1:]} if bias else {}
    return found


@dataclass(frozen=True)
class Decoder:
    """A decoder of GPT-2's kind by its sizes; ``gated``: of Llama's (RMSNorm, SwiGLU, rotary
    angles)."""

    vocabulary: int
    hidden: int
    layers: int
    heads: int
    sequence: int
    """Tokens of a row."""
    kv_heads: int | None = None
    """None: as many as heads."""
    ffn: int | None = None
    """None: 4 hidden."""
    gated: bool = False
    tied: bool = False
    """Whether the logits' matrix is the embedding's table. In a pipeline the first and the last
    stage then both have it, and add up its gradients."""
    eps: float | None = None
    """Under the roots of its norms. None: 1e-6 of RMSNorm, 1e-5 of LayerNorm."""
    head_dim: int | None = field(default=None, repr=False, kw_only=True)
    """Columns of a head. None: hidden / heads."""
    learned: int | None = field(default=None, repr=False, kw_only=True)
    """Rows of the table of positions, 0 for none; None: a row per token, or none if ``gated``."""

    @property
    def head_counts(self) -> HeadCounts:
        """Of its attention."""
        width = self.head_dim or self.hidden // self.heads
        return self.heads, self.kv_heads or self.heads, width

    @property
    def inner(self) -> int:
        """Columns between the two matrices of the feed-forward."""
        return 4 * self.hidden if self.ffn is None else self.ffn

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
        first, *_, head = self.units
        before, last = self.units[: -1 - self.layers], stage == len(cut) - 1
        if stage:  # a tied table first, so that ZeRO shards it as on the first stage
            before = (first,) if last and self.tied else ()
        blocks = self.units[-1 - self.layers : -1][slice(*ends_of(cut)[stage : stage + 2])]
        return (*before, *blocks, *((head,) if last else ()))

    def tilings(self, unit: str, ranks: int) -> dict[str, Tiling]:
        """How a unit's weights lie on the ranks of a tensor-parallel group: norms on each."""
        layout = embedding_layout(self.vocabulary, ranks)
        shapes: Shapes = {"table": (self.vocabulary, self.hidden)}
        if unit == "positions":
            shapes, layout = {"table": (self.positions, self.hidden)}, {}
        elif unit == "head":
            shapes = {f"norm.{kind}": (self.hidden,) for kind in ("w" if self.gated else "wb")}
            shapes |= {} if self.tied else {"w_head": (self.hidden, self.vocabulary)}
        elif unit != "embedding":
            layout = block_layout(self.head_counts, self.inner, ranks)
            counts = self.head_counts, self.inner
            shapes = block_shapes(self.hidden, *counts, self.gated, bias=not self.gated)
        return {
            name: Tiling(shape, (ranks,), (layout.get(name, Replicate()),))
            for name, shape in shapes.items()
        }
