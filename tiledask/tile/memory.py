"""A device's memory as a pool: it counts every array that is made of it, and refuses the next.

empty("gradients", ...)   held + asked <= capacity   an array, counted until its last view goes
                          held + asked >  capacity   Refused, a MemoryError; nothing was made
made(sizes, kernel)       the same of what a kernel returns: asked for before, and then counted as
                          what it is, so that a view of more counts as that more
"""

import gc
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from math import prod

import numpy as np
from numpy.typing import DTypeLike

from tiledask.errors import DoesNotFitError
from tiledask.plan.ledger import ALWAYS, Row
from tiledask.plan.units import format_bytes
from tiledask.tile.backend import Array, namespace

__all__ = ["Pool", "Refused"]


class Refused(DoesNotFitError):
    """An allocation that a pool did not make."""

    needed: int = 0
    """Bytes that would have been held, had it been made."""
    rows: Sequence[Row] = ()
    """What was held, if the one who asked says it."""


class Pool:
    """The memory of one device, for one thread.

    What a kernel keeps in registers is not in it: only what is asked for here counts.

    >>> pool = Pool(capacity=100)
    >>> weights = pool.empty("weights", (20,), np.float32)
    >>> pool.held, pool.empty("weights", (20,), np.float32)
    Traceback (most recent call last):
    tiledask.tile.memory.Refused: 80 B of weights at the start: 80 B held + 80 B = 160 B of 100 B, 60 B too many
    >>> del weights
    >>> pool.held, pool.peak
    (0, 80)
    """  # noqa: E501

    def __init__(self, capacity: float = float("inf"), backend: str = "numpy") -> None:
        self.capacity = capacity  # Bytes; no limit if infinite
        self.xp, self.moment = namespace(backend), ALWAYS
        self._held: Counter[str] = Counter()  # Bytes now, by tensor class
        self._known: set[int] = set()  # Arrays that are counted, by their id
        self._fullest: dict[str, Counter[str]] = {}  # What was held when it was most, by moment

    @property
    def held(self) -> int:
        """Bytes now."""
        return self._held.total()

    @property
    def peak(self) -> int:
        """The most bytes that were held at once."""
        return max((held.total() for held in self._fullest.values()), default=0)

    def enter(self, moment: str) -> None:
        """None; from now on peaks are those of ``moment``."""
        self.moment = moment
        self._look()

    def empty(self, tensor: str, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
        """A new counted array, its contents arbitrary; raises Refused if it does not fit."""
        nbytes = prod(shape) * np.dtype(dtype).itemsize
        (array,) = self.made([(tensor, nbytes)], lambda: [self.xp.empty(shape, dtype)])
        return array

    def made(
        self, sizes: Sequence[tuple[str, int]], make: Callable[[], Iterable[Array]], work: int = 0
    ) -> list[Array]:
        """The arrays that ``make`` returns, counted; ``sizes``: their tensor classes and bytes;
        ``work``: bytes that it needs meanwhile.

        Raises Refused before anything is made if these bytes do not fit beside what is held. What
        is made is counted as what it is: with the whole of which it is a view, and that once.

        >>> pool = Pool()
        >>> (row,) = pool.made([("activations", 40)], lambda: [np.ones((5, 10), np.float32)[0]])
        >>> row.nbytes, pool.held
        (40, 200)
        """
        asked: list[tuple[str, int]] = []
        try:
            for tensor, nbytes in (*sizes, *[("work space", work)] * bool(work)):
                self._add(tensor, nbytes)
                asked.append((tensor, nbytes))
            self._look()
            try:
                arrays = list(make())
            except MemoryError:  # what went before may be held by a circle that nobody holds
                gc.collect()
                arrays = list(make())
        except Refused:
            raise
        except MemoryError as error:  # this machine, or its cap on the process, came first
            tensor, nbytes = asked.pop() if asked else ("work space", 0)
            self._held[tensor] -= nbytes
            raise self._refused(tensor, nbytes, f"which the system refused ({error})") from None
        finally:
            for tensor, nbytes in asked:
                self._held[tensor] -= nbytes
        for (tensor, _), array in zip(sizes, arrays, strict=True):
            self._adopt(tensor, array)
        self._look()
        return arrays

    def _add(self, tensor: str, nbytes: int) -> None:
        if (over := self.held + nbytes - self.capacity) > 0:
            raise self._refused(tensor, nbytes, f"{format_bytes(int(over))} too many")
        self._held[tensor] += nbytes

    def _adopt(self, tensor: str, array: Array) -> None:
        """Count an array, or that of which it is a view, until the last view of it goes."""
        while isinstance(array, self.xp.ndarray) and isinstance(array.base, self.xp.ndarray):
            array = array.base
        if id(array) in self._known or not isinstance(array, self.xp.ndarray):
            return  # a single number is none of the device's arrays
        self._add(tensor, array.nbytes)
        self._known.add(id(array))
        gone = weakref.finalize(array, self._forget, id(array), tensor, array.nbytes)
        gone.atexit = False

    def _forget(self, array: int, tensor: str, nbytes: int) -> None:
        self._known.discard(array)
        self._held[tensor] -= nbytes

    def _look(self) -> None:
        if self.moment not in self._fullest or self.held > self._fullest[self.moment].total():
            self._fullest[self.moment] = +self._held

    def rows(self, place: int) -> list[Row]:
        """Ledger rows: what was there before the first moment, and what each moment added to it
        when it was at its fullest."""
        always = self._fullest.get(ALWAYS, Counter())
        found = [(ALWAYS, dict(always))]
        for moment, held in self._fullest.items():
            if moment != ALWAYS:
                more = {tensor: n - always[tensor] for tensor, n in held.items()}
                found.append((moment, {t: n for t, n in more.items() if n} or {"activations": 0}))
        return [
            Row(place, tensor, moment, n, source="bytes of the arrays held")
            for moment, tensors in found
            for tensor, n in tensors.items()
        ]

    def _refused(self, tensor: str, nbytes: int, why: str) -> Refused:
        of = f" of {format_bytes(self.capacity)}" if self.capacity < float("inf") else ""
        when = "at the start" if self.moment == ALWAYS else f"({self.moment})"
        held, more, needed = map(format_bytes, (self.held, nbytes, self.held + nbytes))
        error = Refused(f"{more} of {tensor} {when}: {held} held + {more} = {needed}{of}, {why}")
        error.needed = self.held + nbytes
        return error
