"""The one table of layers: a kernel by name, arrays in and arrays out; and the pair made of two.

    @layer("x:*h w:h -> *h", returns="inverse")    KERNELS["rms_norm"](x, w): y, inverse
    def rms_norm(x, w, eps): ...                   rms_norm(x, w): y, saved
    @rms_norm.grad                                 KERNELS["rms_norm_grad"](dy, x, inverse, w)
    def rms_norm_grad(dy, x, inverse, w): ...      rms_norm_grad(dy, saved, w): dx, dw

What a gradient reads beside dy and the weights is what its layer saves, by name: operands, options
and what the forward returned after y. A person's operands are checked; a program was, when it was
made. Here are the kernels that move and add. Kernels that change what they are given return None.
"""

from collections.abc import Callable
from functools import update_wrapper
from inspect import signature
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

from tiledask.plan.intervals import ends_of
from tiledask.tile import fused
from tiledask.tile.backend import Array, array_namespace
from tiledask.tile.layers.operands import check, rounded, wide

__all__ = ["KERNELS", "LayerPair", "RankPart", "Saved", "layer", "op", "part_grad"]

Saved = dict[str, Any]
"""What a gradient reads, by name."""
_Saves = dict[str, Callable[[Saved], Any]]
_WEIGHTS = ("w", "b")
"""Operands that are not saved: a device that gathers its weights passes them again."""

KERNELS: dict[str, Callable[..., Any]] = {}
"""By name: what computes it. What a program tells a kernel besides arrays comes by keyword."""

_Kernel = TypeVar("_Kernel", bound=Callable[..., Any])


class RankPart(NamedTuple):
    """The indices of a dimension that are here."""

    start: int
    stop: int
    extent: int  # Of all ranks together

    @property
    def here(self) -> slice:
        return slice(self.start, self.stop)


def op(kernel: _Kernel) -> _Kernel:
    """Enter ``kernel`` into the table by its name."""
    KERNELS[kernel.__name__.lstrip("_")] = kernel
    return kernel


class LayerPair:
    """A layer of one device, made by `layer`: of operands and options it gives (y, saved)."""

    backward: Callable[..., Any]
    """The kernel of its gradient."""

    def __init__(
        self, forward: Callable[..., Any], shapes: str, returns: str, saves: _Saves
    ) -> None:
        self.forward, self.saves = op(forward), saves
        self.shapes, _, self.dy = shapes.partition(" -> ")
        self.results = ("y", *returns.split())
        self.operands, self.reads = tuple(signature(forward).parameters), set[str]()
        update_wrapper(self, forward)
        self.__doc__ = f"(y, saved): {forward.__doc__}"

    def __call__(self, *arrays: Any, **options: Any) -> tuple[Array, Saved]:
        given = dict(zip(self.operands, arrays, strict=False), **options)
        check(self.shapes, given)
        found = self.forward(*arrays, **options)
        found = found if len(self.results) > 1 else (found,)
        for name, value_of in self.saves.items():
            given[name] = value_of(given)
        given.update(zip(self.results, found, strict=True))
        return found[0], {name: value for name, value in given.items() if name in self.reads}

    def __reduce__(self) -> str:
        return self.forward.__name__  # it is the module's own object of that name

    def grad(self, backward: Callable[..., Any]) -> Callable[..., Any]:
        """f_grad(dy, saved, weights...) of the kernel ``backward``."""
        shapes, self.backward = f"{self.shapes} dy:{self.dy}", op(backward)
        parameters = signature(backward).parameters.values()
        reads = {p.name for p in parameters if p.kind is not p.VAR_KEYWORD}
        if len(reads) < len(parameters):  # it takes all options
            arrays = {each.partition(":")[0] for each in self.shapes.split()}
            reads |= set(self.operands) - arrays
        self.reads |= reads - {"dy", *_WEIGHTS}

        def f_grad(dy: Array, saved: Saved, *weights: Array) -> Any:
            given = saved | dict(zip(_WEIGHTS, weights, strict=False), dy=dy)
            check(shapes, given)
            return backward(**{name: value for name, value in given.items() if name in reads})

        f_grad.__module__, f_grad.__doc__ = backward.__module__, backward.__doc__
        f_grad.__name__ = f_grad.__qualname__ = backward.__name__
        return f_grad


def layer(
    shapes: str, returns: str = "", **saves: Callable[[Saved], Any]
) -> Callable[[Callable[..., Any]], LayerPair]:
    """Make a `LayerPair` of a forward kernel.

    ``shapes`` are those of `check`, and after an arrow y's; ``returns`` names what the kernel
    returns after y; ``saves`` gives what else to save. Programs call the kernels by their names,
    unless another is entered below by the same.
    """
    return lambda forward: LayerPair(forward, shapes, returns, saves)


# -- kernels that move and add --------------------------------------------------------------------


KERNELS |= {
    "add_bias": lambda x, b: rounded(wide(x) + wide(b), x),
    "hand_on": lambda x: x,
    "join": lambda *parts, dim=-1: array_namespace(*parts).concatenate(parts, axis=dim),
    "part": lambda x, dim, at: x[(slice(None),) * dim + (RankPart(*at).here,)].copy(),
    "reshape": lambda x, shape: x.reshape(shape),
    "zeros": lambda like, shape: array_namespace(like).zeros(shape, like.dtype),
}


@op
def _add(x: Array, y: Array) -> Array:
    return fused.run("add", x, y) if fused.takes(x) else rounded(wide(x) + wide(y), x)


@op
def part_grad(dy: Array, dim: int, at: tuple[int, int, int]) -> Array:
    """Zeros, and dy at a part of a dimension."""
    start, stop, extent = at
    dx = array_namespace(dy).zeros((*dy.shape[:dim], extent, *dy.shape[dim + 1 :]), dy.dtype)
    dx[(slice(None),) * dim + (slice(start, stop),)] = dy
    return dx


@op
def _cut(x: Array, widths: tuple[int, ...]) -> tuple[Array, ...]:
    xp, ends = array_namespace(x), ends_of(widths)
    return tuple(xp.ascontiguousarray(x[..., a:b]) for a, b in pairwise(ends))


@op
def _columns(*arrays: Array, columns: tuple[tuple[int, int], ...]) -> Array:
    return _pack(*(x[..., a:b] for x in arrays for a, b in columns))


@op
def _put_columns(flat: Array, *arrays: Array, columns: Any) -> tuple[Array, ...]:
    made, at = tuple(x.copy() for x in arrays), 0
    for view in (x[..., a:b] for x in made for a, b in columns):
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
