"""Convolutions split by channels: of the output, or of the input.

                 x [n, c, h, w]     w [o, c, kh, kw]    y [n, o, oh, ow]
by output        all of it          rows of it          channels
by input         channels           columns of it       all of it, after the all_reduce

Each rank passes its parts, cut as numpy.array_split cuts; `part` gives them. Ranks without a
channel take part with empty arrays. Each is a program of one layer, as those of `td.tensor`.
"""

from typing import Any

from tiledask.distributed.ranks.group import Group
from tiledask.distributed.tensor.layer_programs import KeptLayer, LayerRule, backward, forward
from tiledask.distributed.tensor.placed import EVERYWHERE, Placed, Weights, replicate
from tiledask.errors import PlacementError
from tiledask.plan.products.placement import split
from tiledask.plan.program.making.convolutions import WindowTerms
from tiledask.tile.layers.convolution.im2col import Windows, windows

__all__ = [
    "by_input",
    "by_input_grad",
    "by_output",
    "by_output_grad",
    "own",
    "part",
    "window_terms",
]


def own(group: Group, units: int) -> slice:
    """Which of ``units`` this rank holds.

    >>> from tiledask.distributed.ranks.threads import run_threads
    >>> [(s.start, s.stop) for s in run_threads(lambda rank: own(rank.group(), 10), 4).results]
    [(0, 3), (3, 6), (6, 8), (8, 10)]
    """
    return slice(*split(0, units, group.size)[group.rank])


def part(group: Group, x: Any, dim: int) -> Any:
    """A copy of this rank's part of ``x`` along ``dim``."""
    return x[(slice(None),) * dim + (own(group, x.shape[dim]),)].copy()


# -- by output channels --------------------------------------------------------------------------


def by_output(group: Group, x: Any, w: Any, b: Any = None, **options: Any) -> tuple[Any, KeptLayer]:
    """(this rank's channels of y, kept) for all of x and the rank's rows of w and b.

    ``options``: stride, padding, dilation. `Group.all_gather` along dimension 1 makes all of y.
    """
    return _run(group, "conv", x, w, b, options)


def by_output_grad(
    group: Group, dy: Any, kept: KeptLayer, w: Any, b: Any = None, *, wanted: bool = True
) -> tuple[Any, Any, Any]:
    """(all of dx, dw, db) for dy of the own channels.

    One all_reduce: the input went to all ranks, so its gradient comes from all of them. None,
    and dx is None, where it is not ``wanted``: of the images that a network is given.
    """
    return _run_grad(group, dy, kept, w, b, wanted)


# -- by input channels ---------------------------------------------------------------------------


def by_input(group: Group, x: Any, w: Any, b: Any = None, **options: Any) -> tuple[Any, KeptLayer]:
    """(all of y, kept) for this rank's channels of x, its columns of w and all of b.

    One all_reduce; b, which every rank has, is added once, behind it.
    """
    return _run(group, "conv_by_input", x, w, b, options)


def by_input_grad(
    group: Group, dy: Any, kept: KeptLayer, w: Any, b: Any = None
) -> tuple[Any, Any, Any]:
    """(dx of the own channels, dw, db) for all of dy; db is the same on all ranks."""
    return _run_grad(group, dy, kept, w, b)


# -- programs of one layer -----------------------------------------------------------------------


def window_terms(laid: Windows) -> WindowTerms:
    """Windows as programs are told of them."""
    return WindowTerms(laid.size, laid.stride, laid.padding, laid.dilation)


def _run(
    group: Group, layer: str, x: Any, w: Any, b: Any, options: dict[str, Any]
) -> tuple[Any, KeptLayer]:
    laid = _windows(w, options)
    y, kept = forward(_one, group, (replicate(x),), _named(w, b), layer, laid)
    return y.local, kept


def _run_grad(
    group: Group, dy: Any, kept: KeptLayer, w: Any, b: Any, wanted: bool = True
) -> tuple[Any, Any, Any]:
    dx, grads = backward(group, replicate(dy), kept, _named(w, b), wanted)
    db = grads["b"]
    return dx and dx.local, grads["w"].local, db and db.local


def _named(w: Any, b: Any = None) -> Weights:
    """A rank's parts: how many channels others have is not said, and changes nothing here."""
    return {"w": replicate(w), "b": None if b is None else replicate(b)}


def _windows(w: Any, options: dict[str, Any]) -> Windows:
    options = dict(options)
    if (groups := options.pop("groups", 1)) != 1:
        raise PlacementError(
            f"an output channel of a grouped convolution needs its group's input only: this "
            f"split has groups=1, got {groups}; give each rank whole groups"
        )
    return windows(w.shape[2:], **options)


def _one(group: Group, given: tuple[Placed], of: Weights, layer: str, laid: Windows) -> LayerRule:
    (x,) = given
    y = _made(x, of["w"], laid)
    return LayerRule(layer, y, {"unit": "", "window": window_terms(laid)}, layer)


def _made(x: Placed, w: Placed, laid: Windows) -> Placed:
    """What comes out. Raises KernelError where windows do not fit into the image."""
    n, _, high, wide = x.shape
    return Placed.of(None, EVERYWHERE, (n, w.shape[0], *laid.out((high, wide))))
