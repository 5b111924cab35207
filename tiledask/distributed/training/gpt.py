"""A GPT in parts that a pipeline stage can hold: embedding, positions, blocks, head.

    tokens --embedding (+ positions)-- layer 0 -- layer 1 -- ... -- head (norm, logits) -- loss

    units      embedding  positions  layer 0 | layer 1  layer 2 | layer 3  head
    stage                 0                          1                 2

Each function is one rank's part of it, within its tensor-parallel group. Activations that go from
stage to stage are [rows, tokens, hidden], on all ranks of the group or sharded along the tokens.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from numbers import Integral
from typing import Any, NamedTuple

from tiledask.distributed import tensor as T
from tiledask.distributed.ranks.group import Group
from tiledask.distributed.tensor.placed import EVERYWHERE
from tiledask.distributed.tensor.shards import Sharding, Shardings
from tiledask.errors import ConfigError, PartitionError
from tiledask.plan.collectives.cost import even
from tiledask.plan.collectives.shards import even_shards
from tiledask.plan.products.placement import Replicate, Shard
from tiledask.tile import layers as tile
from tiledask.tile.backend import array_namespace

__all__ = ["GPT", "Flow", "embed", "embed_grad", "head", "head_grad"]

Weights = dict[str, T.Placed]
WeightsOf = Callable[[str], Weights]
"""Name of a unit -> its weights by name; asked for once in a forward and once in a backward."""


@dataclass(frozen=True)
class GPT:
    """A decoder of GPT-2's kind; ``gated``: of Llama's (RMSNorm, SwiGLU, rotary angles).

    >>> GPT(vocabulary=59, hidden=16, layers=3, heads=4, sequence=8).units
    ('embedding', 'positions', 'layer 0', 'layer 1', 'layer 2', 'head')
    """

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

    def __post_init__(self) -> None:
        counts = {name: n for name, n in vars(self).items() if name not in ("gated", "tied")}
        for name, n in counts.items():
            if n is None and name in ("kv_heads", "ffn"):
                continue
            if isinstance(n, bool) or not isinstance(n, Integral) or n < 1:
                raise ConfigError(f"a GPT's {name} is a whole number of 1 or more, got {n!r}")
        if self.hidden % self.heads:
            raise ConfigError(
                f"a GPT has a width that its heads share: got hidden={self.hidden}, heads="
                f"{self.heads}; take a multiple of {self.heads}"
            )
        if self.heads % (self.kv_heads or self.heads):
            raise ConfigError(
                f"kv heads divide the heads, which share them: got kv_heads={self.kv_heads}, "
                f"heads={self.heads}"
            )
        if self.gated and self.hidden // self.heads % 2:
            raise ConfigError(
                f"rotary angles turn columns in pairs, so a head's width is even: got hidden="
                f"{self.hidden}, heads={self.heads}, a width of {self.hidden // self.heads}"
            )

    @property
    def inner(self) -> int:
        """Columns between the two matrices of the feed-forward."""
        return 4 * self.hidden if self.ffn is None else self.ffn

    @cached_property
    def block(self) -> T.DecoderBlock:
        """What its layers are."""
        width = self.hidden // self.heads
        return T.DecoderBlock(
            tile.Heads(self.heads, self.kv_heads or self.heads, width), self.gated
        )

    @property
    def units(self) -> tuple[str, ...]:
        """Its parts, in order."""
        blocks = (f"layer {n}" for n in range(self.layers))
        return ("embedding", *(() if self.gated else ("positions",)), *blocks, "head")

    def stage_units(self, stage: int, cut: Sequence[int]) -> tuple[str, ...]:
        """The units of one stage; ``cut``: how many layers each stage has, 0 or more.

        A stage without layers hands on what comes.

        >>> GPT(59, 16, 3, 4, 8, tied=True).stage_units(1, (2, 1))
        ('embedding', 'layer 2', 'head')
        """
        if sum(cut) != self.layers or min(cut) < 0:
            raise PartitionError(
                f"stages of {', '.join(map(str, cut))} layers are {sum(cut)} together, the model "
                f"has {self.layers}; give each stage 0 or more that add up to {self.layers}"
            )
        ends = (0, *accumulate(cut))
        blocks = tuple(f"layer {n}" for n in range(ends[stage], ends[stage + 1]))
        before = [u for u in self.units if u in ("embedding", "positions")] if not stage else []
        last = stage == len(cut) - 1
        if last and stage and self.tied:  # first, so that ZeRO shards it as on the first stage
            before = ["embedding"]
        return (*before, *blocks, *(["head"] if last else []))

    def even_cut(self, stages: int) -> tuple[int, ...]:
        """Layers as even as they can be: one more on the first stages."""
        return even(self.layers, stages)

    # -- weights ------------------------------------------------------------------------------

    def parameters(self, unit: str) -> dict[str, tile.Parameter]:
        """The parameters of a unit, by name."""
        if unit == "embedding":
            return {"table": tile.Parameter((self.vocabulary, self.hidden), scale=0.5)}
        if unit == "positions":
            return {"table": tile.Parameter((self.sequence, self.hidden), scale=0.5)}
        if unit == "head":
            tied = {} if self.tied else tile.matrix("_head", self.hidden, self.vocabulary, False)
            return self._norm("norm") | tied
        if self.gated:
            feed = tile.swiglu_mlp_parameters(self.hidden, self.inner, fused=True)
        else:
            feed = tile.mlp_parameters(self.hidden, self.inner)
        attention = tile.self_attention_parameters(
            self.hidden, self.block.heads, fused=True, bias=not self.gated
        )
        return (
            self._norm("norm_1")
            | {f"attention.{name}": p for name, p in attention.items()}
            | self._norm("norm_2")
            | {f"mlp.{name}": p for name, p in feed.items()}
        )

    def _norm(self, name: str) -> dict[str, tile.Parameter]:
        made = {f"{name}.w": tile.Parameter((self.hidden,), "ones")}
        bias = {f"{name}.b": tile.Parameter((self.hidden,), "zeros")}
        return made if self.gated else made | bias

    def layout(self, unit: str, ranks: int) -> Shardings:
        """How a unit's weights are placed on the ranks of a tensor-parallel group."""
        if unit == "positions":
            return {"table": Sharding(Replicate())}
        if unit in ("embedding", "head"):
            norm = {f"norm.{kind}": Sharding(Replicate()) for kind in "wb"}
            return norm | T.embedding_layout(self.vocabulary, ranks)
        return T.block_layout(self.block.heads, self.inner, ranks)

    @property
    def size(self) -> int:
        """Numbers in all weights."""
        return sum(p.size for unit in self.units for p in self.parameters(unit).values())


class Flow(NamedTuple):
    """What goes from layer to layer: [rows, tokens, hidden] over a tensor-parallel group."""

    group: Group
    model: GPT
    sequence_parallel: bool

    @property
    def to(self) -> Replicate | Shard:
        return Shard(1) if self.sequence_parallel else EVERYWHERE

    def placed(self, local: Any) -> T.Placed:
        """What came from another stage."""
        if not self.sequence_parallel:
            return T.replicate(local)
        return T.sharded(self.group, local, 1, self.model.sequence)

    @property
    def tokens(self) -> slice:
        """The tokens of this rank, of each row."""
        if not self.sequence_parallel:
            return slice(None)
        parts = even_shards(self.model.sequence, self.group.size).parts[self.group.rank]
        return slice(*parts[0]) if parts else slice(0, 0)


# -- the first stage -------------------------------------------------------------------------------


def embed(flow: Flow, weights: WeightsOf, tokens: Any) -> tuple[T.Placed, Any]:
    """(x [rows, tokens, hidden], kept) of tokens [rows, tokens]."""
    x, kept = T.embedding(flow.group, tokens, weights("embedding")["table"], to=flow.to)
    if not flow.model.gated:
        x = x.like(x.local + weights("positions")["table"].local[flow.tokens])
    return x, kept


def embed_grad(
    flow: Flow, dx: T.Placed, kept: Any, weights: WeightsOf
) -> dict[str, dict[str, T.Placed]]:
    """Gradients by unit and name."""
    made = {}
    if not flow.model.gated:
        table = weights("positions")["table"]
        whole = array_namespace(dx.local).zeros_like(table.local)
        whole[flow.tokens] = dx.local.sum(axis=0)
        if flow.sequence_parallel:  # every rank has seen its own tokens only
            with flow.group.label("positions", "backward"):
                whole = flow.group.all_reduce(whole)
        made["positions"] = {"table": table.like(whole)}
    table = T.embedding_grad(flow.group, dx, kept, weights("embedding")["table"])
    return made | {"embedding": {"table": table}}


# -- the last stage --------------------------------------------------------------------------------


class KeptHead(NamedTuple):
    """What the head keeps."""

    norm: Any
    linear: Any
    loss: Any


def head(
    flow: Flow, weights: WeightsOf, x: T.Placed, targets: Any, count: int
) -> tuple[Any, KeptHead]:
    """(sum of the tokens' losses / count, kept); ``count`` is of all tokens of the batch."""
    mine, group = weights("head"), flow.group
    if flow.model.gated:
        x, norm = T.rms_norm(group, x, mine["norm.w"], name="norm")
    else:
        x, norm = T.layer_norm(group, x, mine["norm.w"], mine["norm.b"], name="norm")
    logits, linear = T.column_linear(group, x, _to_logits(flow, mine, weights), name="w_head")
    loss, kept = T.cross_entropy(group, logits, targets, count=count)
    return loss, KeptHead(norm, linear, kept)


def head_grad(
    flow: Flow, kept: KeptHead, weights: WeightsOf, scale: float = 1.0
) -> tuple[T.Placed, dict[str, dict[str, T.Placed]]]:
    """(dx, gradients by unit and name) of ``scale`` times the loss."""
    mine, group = weights("head"), flow.group
    dlogits = T.cross_entropy_grad(group, scale, kept.loss)
    dx, dw, _ = T.column_linear_grad(group, dlogits, kept.linear, _to_logits(flow, mine, weights))
    if flow.model.gated:
        dx, of_w = T.rms_norm_grad(group, dx, kept.norm, mine["norm.w"])
        of_norm = {"norm.w": of_w}
    else:
        dx, of_w, of_b = T.layer_norm_grad(group, dx, kept.norm, mine["norm.w"], mine["norm.b"])
        of_norm = {"norm.w": of_w} if of_b is None else {"norm.w": of_w, "norm.b": of_b}
    if flow.model.tied:
        return dx, {"head": of_norm, "embedding": {"table": _turned(dw)}}
    return dx, {"head": of_norm | {"w_head": dw}}


def _to_logits(flow: Flow, mine: Weights, weights: WeightsOf) -> T.Placed:
    return _turned(weights("embedding")["table"]) if flow.model.tied else mine["w_head"]


def _turned(w: T.Placed) -> T.Placed:
    """The transpose of a matrix that is sharded along one of its dimensions."""
    dim, shards = w.split
    return T.Placed(w.local.T, Shard(1 - dim), w.shape[::-1], shards)
