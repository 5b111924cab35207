"""What convolutions call when they are split over ranks: by channels, by groups, in space.

                        forward                    backward
by output channels      -, or all_gather of y      all_reduce of dx
by input channels       all_reduce of y            -
out, then in            all_reduce of y            all_reduce of dx      once for two layers
by groups               -                          -
by rows of the image    halo_exchange              halo_reduce, all_reduce of dw and db
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from oracles.expected_calls import Expected, all_reduced, halo

from tiledask.plan.collectives.rows import RowSplit, split_rows

Calls = tuple[Expected, ...]


@dataclass(frozen=True)
class Convolution:
    """A convolution of images [n, c, h, w] to [n, o, oh, ow]."""

    images: int
    channels: int
    out: int
    image: tuple[int, int]
    """h and w."""
    size: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    padding: tuple[tuple[int, int], tuple[int, int]] = ((0, 0), (0, 0))
    """((above, below), (left, right))."""
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1
    bias: bool = True

    @property
    def out_image(self) -> tuple[int, int]:
        """oh and ow.

        >>> Convolution(1, 1, 20, (28, 28), (3, 3)).out_image
        (26, 26)
        """
        found = []
        for axis in (0, 1):
            reach = (self.size[axis] - 1) * self.dilation[axis] + 1
            room = self.image[axis] + sum(self.padding[axis]) - reach
            found.append(room // self.stride[axis] + 1)
        return found[0], found[1]

    @property
    def parameters(self) -> int:
        """Of w and b."""
        return self.out * (self.channels // self.groups * prod(self.size) + self.bias)

    def rows(self, rows: Sequence[int]) -> RowSplit:
        """Its RowSplit where each rank has ``rows`` of the image."""
        return split_rows(rows, self.size[0], self.stride[0], self.padding[0], self.dilation[0])


def by_output(conv: Convolution, ranks: int, itemsize: int) -> Calls:
    """Each rank has some output channels.

    >>> conv = Convolution(2, 6, 10, (5, 4), (3, 3), padding=((1, 1), (1, 1)))
    >>> [(each.kind, each.cost.received[0]) for each in by_output(conv, 4, 8)]
    [('all_reduce', 2880)]
    """
    return _whole("backward/dx", conv, ranks, itemsize)


def by_input(conv: Convolution, ranks: int, itemsize: int) -> Calls:
    """Each rank has some input channels."""
    elements = conv.images * conv.out * prod(conv.out_image)
    return all_reduced("forward/y", elements, ranks, itemsize)


def in_pairs(
    first: Convolution, second: Convolution, ranks: int, itemsize: int, dx: bool = True
) -> Calls:
    """``first`` by its output channels and ``second`` by its input channels: the same ones."""
    back = _whole("first/backward/dx", first, ranks, itemsize) if dx else ()
    y = tuple(
        each._replace(label=f"second/{each.label}") for each in by_input(second, ranks, itemsize)
    )
    return (*y, *back)


def in_rows(conv: Convolution, rows: Sequence[int], itemsize: int) -> Calls:
    """Each rank has ``rows`` of the image, and all of w.

    Between two neighbours 2 floor(k/2) n c w elements each way for an odd size k and stride 1.
    """
    row = conv.images * conv.channels * conv.image[1] * itemsize
    dw = all_reduced("backward/dw db", conv.parameters, len(rows), itemsize)
    return (*_lent(conv.rows(rows), row), *dw)


def _lent(split: RowSplit, row_bytes: int) -> Calls:
    facts = split.rows, split.before, split.after, row_bytes
    return (*halo("forward/halo", *facts), *halo("backward/halo", *facts, back=True))


def _whole(label: str, conv: Convolution, ranks: int, itemsize: int) -> Calls:
    return all_reduced(label, conv.images * conv.channels * prod(conv.image), ranks, itemsize)
