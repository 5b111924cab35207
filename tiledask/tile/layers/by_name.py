"""The one table of layers: a kernel by name, arrays in and arrays out; and the pair made of two.

    @layer("x:*h w:h -> *h", returns="inverse")    KERNELS["rms_norm"](x, w): y, inverse
    def rms_norm(x, w, eps): ...                   rms_norm(x, w): y, saved
    @rms_norm.grad                                 KERNELS["rms_norm_grad"](dy, x, inverse, w)
    def rms_norm_grad(dy, x, inverse, w): ...      rms_norm_grad(dy, saved, w): dx, dw

What a gradient reads beside dy and the weights is what its layer saves, by name: operands, options
and what the forward returned after y. A person's operands are checked, a program's are not: it was
checked when it was made. Here are the kernels that move and add; those of each layer stand in its
own file. Kernels that change what they are given return None.
"""

from collections.abc import Callable
from functools import update_wrapper
from inspect import signature
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

from tiledask.plan.intervals import ends_of
from tiledask.tile.backend import Array, array_namespace
from tiledask.tile.layers.operands import check, rounded, wide

__all__ = ["KERNELS", "LayerPair", "RankPart", "Saved", "layer", "op"]

Saved = dict[str, Any]
"""What a gradient reads, by name."""
_WEIGHTS = ("w", "b")
"""Operands that are not saved: a device that gathers its weights passes them again."""

KERNELS: dict[str, Callable[..., Any]] = {}
"""By name: what computes it. What a program tells a kernel besides arrays comes by keyword."""

_Kernel = TypeVar("_Kernel", bound=Callable[..., Any])


class RankPart(NamedTuple):
    """The indices of a dimension that are here."""

    start: int
    stop: int
    extent: int
    """Of all ranks together."""

    @property
    def here(self) -> slice:
        return slice(self.start, self.stop)


def op(kernel: _Kernel) -> _Kernel:
    """Enter ``kernel`` into the table by its name."""
    KERNELS[kernel.__name__.lstrip("_")] = kernel
    return kernel


class LayerPair:
    """A layer of one device: called with operands and options it gives (y, saved).

    `grad` adds a gradient, of dy, what was saved, and the weights. Made by `layer`.
    """

    def __init__(
        self,
        forward: Callable[..., Any],
        shapes: str,
        returns: str,
        saves: dict[str, Callable[[Saved], Any]],
        program: bool,
    ) -> None:
        operands, _, y = shapes.partition(" -> ")
        self.forward, self.shapes, self.dy = forward, operands, y
        self.saves, self.program = saves, program
        self.results = ("y", *returns.split())
        self.operands = tuple(signature(forward).parameters)
        self.reads: dict[str, None] = {}
        self.backward: Callable[..., Any] = forward
        """The kernel of its gradient, once there is one."""
        update_wrapper(self, forward)
        self.__doc__ = f"(y, saved): {forward.__doc__}"
        if program:
            op(forward)

    def __call__(self, *arrays: Any, **options: Any) -> tuple[Array, Saved]:
        given = dict(zip(self.operands, arrays, strict=False), **options)
        check(self.shapes, given)
        found = self.forward(*arrays, **options)
        if len(self.results) == 1:
            found = (found,)
        for name, value_of in self.saves.items():
            given[name] = value_of(given)
        given.update(zip(self.results, found, strict=True))
        return found[0], {name: given[name] for name in self.reads if name in given}

    def __repr__(self) -> str:
        return f"<layer {self.forward.__name__}>"

    def __reduce__(self) -> str:
        return self.forward.__name__  # it is the module's own object of that name

    def grad(self, backward: Callable[..., Any]) -> Callable[..., Any]:
        """f_grad(dy, saved, weights...) of the kernel ``backward``."""
        wanted = [name for name in signature(backward).parameters if name != "dy"]
        shapes, self.backward = f"{self.shapes} dy:{self.dy}", backward
        self.reads |= dict.fromkeys(name for name in wanted if name not in _WEIGHTS)
        if self.program:
            op(backward)

        def f_grad(dy: Array, saved: Saved, *weights: Array) -> Any:
            given = dict(saved, dy=dy)
            given.update(zip(_WEIGHTS, weights, strict=False))
            check(shapes, given)
            return backward(dy, **{name: given[name] for name in wanted if name in given})

        f_grad.__module__, f_grad.__doc__ = backward.__module__, backward.__doc__
        f_grad.__name__ = f_grad.__qualname__ = backward.__name__
        return f_grad


def layer(
    shapes: str,
    returns: str = "",
    program: bool = True,
    **saves: Callable[[Saved], Any],
) -> Callable[[Callable[..., Any]], LayerPair]:
    """Make a `LayerPair` of a forward kernel.

    ``shapes`` are those of `check`, and after an arrow y's; ``returns`` names what the kernel
    returns after y; ``saves`` gives what else to save; with ``program`` programs call the kernels
    by their names.
    """
    return lambda forward: LayerPair(forward, shapes, returns, saves, program)


# -- kernels that move and add --------------------------------------------------------------------

_Part = RankPart | tuple[int, int, int]

KERNELS |= {
    "add": lambda x, y: rounded(wide(x) + wide(y), x),
    "add_bias": lambda x, b: rounded(wide(x) + wide(b), x),
    "add_channels": lambda y, b: y + b[:, None, None],
    "channel_sums": lambda dy: dy.sum(axis=(0, 2, 3)),
    "hand_on": lambda x: x,
    "join": lambda *parts, dim=-1: array_namespace(*parts).concatenate(parts, axis=dim),
    "part": lambda x, dim, at: x[(slice(None),) * dim + (RankPart(*at).here,)].copy(),
    "reshape": lambda x, shape: x.reshape(shape),
    "zeros": lambda like, shape: array_namespace(like).zeros(shape, like.dtype),
}


@op
def _part_grad(dy: Array, dim: int, at: _Part) -> Array:
    part = RankPart(*at)
    shape = (*dy.shape[:dim], part.extent, *dy.shape[dim + 1 :])
    dx = array_namespace(dy).zeros(shape, dy.dtype)
    dx[(slice(None),) * dim + (part.here,)] = dy
    return dx


@op
def _cut(x: Array, widths: tuple[int, ...]) -> tuple[Array, ...]:
    xp, ends = array_namespace(x), ends_of(widths)
    return tuple(xp.ascontiguousarray(x[..., a:b]) for a, b in pairwise(ends))


@op
def _columns(*arrays: Array, columns: tuple[tuple[int, int], ...]) -> Array:
    parts = [x[..., a:b].reshape(-1) for x in arrays for a, b in columns]
    return array_namespace(*parts).concatenate(parts)


@op
def _put_columns(
    flat: Array, *arrays: Array, columns: tuple[tuple[int, int], ...]
) -> tuple[Array, ...]:
    made, at = tuple(x.copy() for x in arrays), 0
    for x in made:
        for a, b in columns:
            view = x[..., a:b]
            view[...] = flat[at : at + view.size].reshape(view.shape)
            at += view.size
    return made


@op
def _pack(*arrays: Array, dtype: str = "") -> Array:
    flat = array_namespace(*arrays).concatenate([x.reshape(-1) for x in arrays])
    return flat.astype(dtype, copy=False) if dtype else flat


@op
def _accumulate(total: Array, g: Array) -> None:
    total += g.astype(total.dtype, copy=False)


@op
def _clear(x: Array) -> None:
    x[...] = 0
