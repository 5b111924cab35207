"""A weight of a model, and how tensor and expert parallelism share it out."""

from dataclasses import dataclass
from typing import Any

__all__ = ["Weight", "bias", "norm"]


@dataclass(frozen=True)
class Weight:
    """A weight made of ``units`` pieces of ``size`` elements that nothing cuts further."""

    name: str
    units: int  # Attention heads, rows of an MLP matrix, rows of the vocabulary, ...
    size: int  # Elements of one unit
    split: bool = True  # Tensor parallelism shards the units; else every device holds the whole
    kind: str = "matrix"  # One of "matrix", "bias", "norm"
    copies: int = 1  # Experts that each hold one
    active: int = 1  # Experts of them that one token visits
    inputs: int = 0  # Length of the vectors that the matrix multiplies, undivided; 0 if none
    row: bool = False  # Its units cut the inputs, and its products are summed over devices

    def count(self, tp: Any = 1, ep: Any = 1) -> Any:
        """Elements on the fullest of ``tp`` devices, numbers or columns, of those that share its
        copies over ``ep``; one of fewer units than devices is copied, as key and value heads are
        under a tensor parallelism wider than they are."""
        units = -(-self.units // tp) if self.split else self.units
        return -(-self.copies // ep) * self.size * units

    def adapter(self, rank: int, tp: int = 1, ep: int = 1) -> int:
        """Parameters there of low-rank matrices beside it, W x + B (A x), A of rank x in and B of
        out x rank: A is whole beside a column-parallel weight, B beside a row-parallel one."""
        share = -(-self.units // tp) / self.units if self.split else 1
        into, out = self.inputs, self.units * self.size // self.inputs
        into, out = (round(into * share), out) if self.row else (into, round(out * share))
        return -(-self.copies // ep) * rank * (into + out)


def norm(model: Any, name: str, width: int, split: bool = False) -> tuple[Weight, ...]:
    """A norm of ``width`` elements: weight and bias, weight, or nothing."""
    each = {"layernorm": 2, "rmsnorm": 1, "none": 0}[model.norm]
    return (Weight(name, width, each, split, "norm"),) if each and width else ()


def bias(there: Any, name: str, width: int) -> tuple[Weight, ...]:
    """A bias that every device holds whole: added once, after the sum over devices."""
    return (Weight(f"{name} bias", width, 1, False, "bias"),) if there else ()
