"""A GPT in parts that a pipeline stage can hold: embedding, positions, blocks, head.

    tokens --embedding (+ positions)-- layer 0 -- layer 1 -- ... -- head (norm, logits) -- loss

    units      embedding  positions  layer 0 | layer 1  layer 2 | layer 3  head
    stage                 0                          1                 2

What goes from stage to stage is [rows, tokens, hidden], on all ranks of a tensor-parallel group or
sharded along the tokens. What a step does with it: tiledask.plan.program.making.training.
"""

from dataclasses import dataclass
from functools import cached_property

from tiledask.distributed import tensor as T
from tiledask.errors import ConfigError, short
from tiledask.plan.collectives.layouts import HeadCounts
from tiledask.plan.program.making.decoder import DecoderShapes
from tiledask.plan.whole import whole_number
from tiledask.tile import layers as tile

__all__ = ["GPT"]


@dataclass(frozen=True)
class GPT(DecoderShapes):
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
    eps: float | None = None
    """Under the roots of its norms. None: 1e-6 of RMSNorm, 1e-5 of LayerNorm."""
    base: float = 10_000.0
    """Of its rotary angles, if it is gated."""

    def __post_init__(self) -> None:
        optional = "kv_heads", "ffn", "eps"
        for name, value in vars(self).items():
            if value is None and name in optional:
                continue
            if name in ("gated", "tied"):
                if not isinstance(value, bool):
                    raise ConfigError(f"a GPT's {name} is True or False, got {short(value)}")
            elif name in ("eps", "base"):
                number = isinstance(value, int | float) and not isinstance(value, bool)
                if not number or not 0 < value < float("inf"):
                    raise ConfigError(f"a GPT's {name} is a number above 0, got {short(value)}")
            else:
                whole_number(f"a GPT's {name}", value, 1)
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
    def head_counts(self) -> HeadCounts:
        """Of its attention."""
        heads = self.block.heads
        return HeadCounts(heads.query, heads.kv, heads.width)

    # -- weights ------------------------------------------------------------------------------

    def parameters(self, unit: str) -> dict[str, tile.Parameter]:
        """The parameters of a unit, by name."""
        return {name: _parameter(name, shape) for name, shape in self.whole_shapes(unit).items()}

    @property
    def size(self) -> int:
        """Numbers in all weights."""
        return sum(p.size for unit in self.units for p in self.parameters(unit).values())


def _parameter(name: str, shape: tuple[int, ...]) -> tile.Parameter:
    """How a weight starts: a norm's factors at 1, a bias at 0, the others at random."""
    if len(shape) == 1:
        return tile.Parameter(shape, "ones" if name.endswith(".w") else "zeros")
    return tile.Parameter(shape, scale=0.5 if name == "table" else shape[0] ** -0.5)
