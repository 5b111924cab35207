"""What a rank function is given: which rank it is, its groups, and labels for what it sends."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from math import prod
from typing import Any

import numpy as np

from tiledask.distributed.ranks.group import Group
from tiledask.distributed.ranks.records import Record
from tiledask.distributed.transport.transport import Transport
from tiledask.errors import ConfigError
from tiledask.tile.backend import namespace

__all__ = ["Rank"]


class Rank:
    """One of the ranks 0..n-1 of a mesh of ``shape``, in row-major order.

    >>> from tiledask.distributed.ranks.threads import run_threads
    >>> run_threads(lambda rank: (rank.index, rank.coordinates, rank.group(1).members), (2, 2)).results
    [(0, (0, 0), (0, 1)), (1, (0, 1), (0, 1)), (2, (1, 0), (2, 3)), (3, (1, 1), (2, 3))]
    """  # noqa: E501

    def __init__(
        self,
        shape: tuple[int, ...],
        transport: Transport,
        backend: str,
        names: tuple[str, ...] = (),
    ) -> None:
        self.shape, self.names, self.index = shape, names, transport.rank
        self.ranks = prod(shape)
        """How many there are."""
        self.coordinates = list(product(*map(range, shape)))[self.index]
        self.backend = backend
        """"numpy" or "cupy": what the arrays of this rank's device are."""
        self.transport = transport
        self.records: list[Record] = []
        self._groups: dict[tuple[int, ...], Group] = {}
        self.labels: list[str] = []
        self.at_step: int | None = None
        """The step under way."""
        self.barriers = 0
        """Synchronisations in it so far."""

    def group(self, axes: int | str | tuple[int | str, ...] | None = None) -> Group:
        """The ranks that differ from this one along ``axes`` of the mesh only; None: all ranks.

        Axes are numbers, or the names that the mesh has given them.
        """
        every = tuple(range(len(self.shape)))
        wanted = every if axes is None else axes if isinstance(axes, tuple) else (axes,)
        given: list[Any] = [self.names.index(a) if a in self.names else a for a in wanted]
        if not given or len(set(given)) != len(given) or not set(given) <= set(every):
            raise ConfigError(
                f"a group is along different axes of the mesh {self.shape}, which has axes "
                f"0..{len(self.shape) - 1}{''.join(f', {name!r}' for name in self.names)}; got "
                f"{axes!r}"
            )
        chosen = tuple(sorted(given))
        if chosen not in self._groups:
            numbers = np.arange(self.ranks).reshape(self.shape)
            at = zip(every, self.coordinates, strict=True)
            along = tuple(slice(None) if axis in chosen else place for axis, place in at)
            self._groups[chosen] = Group(self, chosen, tuple(numbers[along].ravel().tolist()))
        return self._groups[chosen]

    @contextmanager
    def label(self, text: str) -> Iterator[None]:
        """Collectives inside the block carry ``text``; blocks in blocks are joined by "/"."""
        self.labels.append(text)
        try:
            yield
        finally:
            self.labels.pop()

    @contextmanager
    def step(self, number: int) -> Iterator[None]:
        """Collectives inside the block belong to step ``number``; barriers count from 0 in it."""
        before = self.at_step, self.barriers
        self.at_step, self.barriers = number, 0
        try:
            yield
        finally:
            self.at_step, self.barriers = before

    def on_device(self, host: np.ndarray) -> Any:
        """``host`` as an array of this rank's device."""
        return namespace(self.backend).asarray(host)
