"""A GPT in parts that a pipeline stage can hold: embedding, positions, blocks, head.

    tokens --embedding (+ positions)-- layer 0 -- layer 1 -- ... -- head (norm, logits) -- loss

    units      embedding  positions  layer 0 | layer 1  layer 2 | layer 3  head
    stage                 0                          1                 2

What goes from stage to stage is [rows, tokens, hidden], on all ranks of a tensor-parallel group or
sharded along the tokens. What a step does with it: tiledask.plan.program.making.training.
"""

from dataclasses import dataclass
from math import prod

from tiledask.errors import ConfigError
from tiledask.plan.program.making.decoder import Decoder
from tiledask.plan.whole import whole_number
from tiledask.tile import layers as tile

__all__ = ["GPT"]


@dataclass(frozen=True)
class GPT(Decoder):
    """A decoder of GPT-2's kind; ``gated``: of Llama's (RMSNorm, SwiGLU, rotary angles).

    >>> GPT(vocabulary=59, hidden=16, layers=3, heads=4, sequence=8).units
    ('embedding', 'positions', 'layer 0', 'layer 1', 'layer 2', 'head')
    """

    base: float = 10_000.0
    """Of its rotary angles, if it is gated."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            sizes = name not in ("eps", "base", "gated", "tied")
            if sizes and not (value is None and name in ("kv_heads", "ffn", "head_dim", "learned")):
                whole_number(f"a GPT's {name}", value, 1)
        kv, width = self.kv_heads or self.heads, self.hidden // self.heads
        rules = {
            f"hidden is a multiple of heads={self.heads}": self.hidden % self.heads,
            f"heads={self.heads} is a multiple of kv_heads={kv}": self.heads % kv,
            "rotary angles turn columns in pairs: hidden / heads is even": self.gated and width % 2,
        }
        for words, wrong in rules.items():
            if wrong:
                raise ConfigError(f"of a GPT {words}; got hidden={self.hidden}, heads={self.heads}")

    def parameters(self, unit: str) -> dict[str, tile.Parameter]:
        """The parameters of a unit, by name: a norm's factors start at 1, a bias at 0, the others
        at random."""
        return {
            name: tile.Parameter(of.shape, "ones" if name.endswith(".w") else "zeros")
            if len(of.shape) == 1
            else tile.Parameter(of.shape, scale=0.5 if name == "table" else of.shape[0] ** -0.5)
            for name, of in self.tilings(unit, 1).items()
        }

    @property
    def size(self) -> int:
        """Numbers in all weights."""
        return sum(prod(p.shape) for unit in self.units for p in self.parameters(unit).values())
