"""Arrays by name as one flat array, and back: what is sent in one piece.

{"w": [[0, 1], [2, 3]], "b": [4, 5]}   <->   [0 1 2 3 4 5]
"""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import prod
from typing import Any, Generic, TypeVar

from tiledask.errors import PlacementError
from tiledask.plan.intervals import ends_of
from tiledask.tile.backend import array_namespace

__all__ = ["Packing"]

Name = TypeVar("Name", bound=Hashable)


@dataclass(frozen=True)
class Packing(Generic[Name]):
    """The names and shapes of some arrays, in order.

    >>> import numpy as np
    >>> packing = Packing.of({"w": np.ones((2, 2)), "b": np.zeros(2)})
    >>> packing.pack({"b": np.array([4, 5]), "w": np.array([[0, 1], [2, 3]])}).tolist()
    [0, 1, 2, 3, 4, 5]
    """

    shapes: tuple[tuple[Name, tuple[int, ...]], ...]
    """Names, which are mostly text, and shapes."""

    @classmethod
    def of(cls, arrays: Mapping[Name, Any]) -> "Packing[Name]":
        """The Packing of arrays, or of anything else with a shape, by name."""
        return cls(tuple((name, tuple(array.shape)) for name, array in arrays.items()))

    @property
    def size(self) -> int:
        """Numbers in all arrays."""
        return sum(prod(shape) for _, shape in self.shapes)

    @cached_property
    def _places(self) -> list[tuple[Name, slice, tuple[int, ...]]]:
        """(name, where in the flat array, shape)."""
        ends = ends_of(prod(shape) for _, shape in self.shapes)
        return [
            (n, slice(*at), shape)
            for at, (n, shape) in zip(pairwise(ends), self.shapes, strict=True)
        ]

    def pack(self, arrays: Mapping[Name, Any]) -> Any:
        """A new flat array. Raises PlacementError for other names or shapes than these."""
        parts = [array.reshape(-1) for array in self.checked(arrays)]
        return array_namespace(*parts).concatenate(parts)

    def add(self, flat: Any, arrays: Mapping[Name, Any]) -> None:
        """Add ``arrays`` to ``flat``, in place, as if they were packed before, in its type."""
        for array, kept in zip(self.checked(arrays), self.unpack(flat).values(), strict=True):
            kept += array.astype(flat.dtype, copy=False)

    def checked(self, arrays: Mapping[Name, Any]) -> list[Any]:
        """The arrays in order. Raises PlacementError for other names or shapes than these."""
        said, got = dict(self.shapes), {name: tuple(a.shape) for name, a in arrays.items()}
        if said != got:
            wrong = [name for name in {**said, **got} if said.get(name) != got.get(name)]
            raise PlacementError(
                f"the arrays that are packed have always the same names and shapes: of "
                f"{wrong[0]!r} {said.get(wrong[0], 'nothing')} was said, and this is "
                f"{got.get(wrong[0], 'missing')}; pass a gradient for every weight, zeros if a "
                f"rank has none"
            )
        return [arrays[name] for name in said]

    def unpack(self, flat: Any) -> dict[Name, Any]:
        """The arrays by name: views of ``flat``."""
        return {name: flat[at].reshape(shape) for name, at, shape in self._places}
