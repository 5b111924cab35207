"""The one table of layers: a kernel by name, arrays in and arrays out; and the pair made of two.

    @op                                      a program calls it by its name
    def rms_norm(x, w, eps): y, inverse
    @op
    def rms_norm_grad(dy, x, inverse, w): dx, dw

    rms_norm, rms_norm_grad = layer(...)     y, saved = rms_norm(x, w)
                                             dx, dw = rms_norm_grad(dy, saved, w)

What a gradient reads beside dy and the weights is what its layer saves, by name: operands, options
and what the forward returned after y. Here are the kernels that move and add; those of each layer
stand in its own file. Kernels that change what they are given return None.
"""

from collections.abc import Callable
from inspect import signature
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

from tiledask.plan.intervals import ends_of
from tiledask.tile.backend import Array, array_namespace
from tiledask.tile.layers.operands import rounded, wide

__all__ = ["KERNELS", "WEIGHTS", "RankPart", "Saved", "layer", "op"]

Saved = dict[str, Any]
"""What a gradient reads, by name."""
WEIGHTS = ("w", "b")
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


def layer(
    forward: Callable[..., Any],
    backward: Callable[..., Any],
    returns: str = "",
    also: Callable[..., Saved] | None = None,
) -> tuple[Callable[..., tuple[Array, Saved]], Callable[..., Any]]:
    """(f, f_grad) of two kernels: f(operands, options) -> (y, saved), f_grad(dy, saved, weights).

    ``returns`` names what ``forward`` returns after y; ``also`` gives what else to save.
    """
    operands, made = tuple(signature(forward).parameters), ("y", *returns.split())
    reads = [name for name in signature(backward).parameters if name not in ("dy", *WEIGHTS)]
    given = [(name, operands.index(name)) for name in reads if name in operands]
    results = [(name, made.index(name)) for name in reads if name in made]

    def f(*arrays: Array, **options: Any) -> tuple[Array, Saved]:
        found = forward(*arrays, **options)
        found = found if returns else (found,)
        saved = {name: arrays[i] for name, i in given if i < len(arrays)}
        saved |= {name: found[i] for name, i in results}
        if options or also:
            more = options | also(*arrays, **options) if also else options
            saved |= {name: value for name, value in more.items() if name in reads}
        return found[0], saved

    def f_grad(dy: Array, saved: Saved, *weights: Array) -> Any:
        return backward(dy, **saved | dict(zip(WEIGHTS, weights, strict=False)))

    text = (forward.__doc__ or "").partition("\n\n    >>>")[0]
    f.__name__, f.__doc__ = forward.__name__, f"(y, saved): {text}"
    f_grad.__name__ = backward.__name__
    f_grad.__doc__ = f"The gradients of `{forward.__name__}`: {backward.__doc__}"
    return f, f_grad


# -- kernels that move and add --------------------------------------------------------------------


@op
def _add(x: Array, y: Array) -> Array:
    return rounded(wide(x) + wide(y), x)


KERNELS["add_bias"] = _add


@op
def _join(*parts: Array, dim: int = -1) -> Array:
    return array_namespace(*parts).concatenate(parts, axis=dim)


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
def _part(x: Array, dim: int, at: RankPart | tuple[int, int, int]) -> Array:
    return x[(slice(None),) * dim + (RankPart(*at).here,)].copy()


@op
def _part_grad(dy: Array, dim: int, at: RankPart | tuple[int, int, int]) -> Array:
    part = RankPart(*at)
    shape = (*dy.shape[:dim], part.extent, *dy.shape[dim + 1 :])
    dx = array_namespace(dy).zeros(shape, dy.dtype)
    dx[(slice(None),) * dim + (part.here,)] = dy
    return dx


@op
def _reshape(x: Array, shape: tuple[int, ...]) -> Array:
    return x.reshape(shape)


@op
def _zeros(like: Array, shape: tuple[int, ...]) -> Array:
    return array_namespace(like).zeros(shape, like.dtype)


@op
def _accumulate(total: Array, g: Array) -> None:
    total += g.astype(total.dtype, copy=False)


@op
def _clear(x: Array) -> None:
    x[...] = 0


@op
def _pack(*arrays: Array, dtype: str = "") -> Array:
    flat = array_namespace(*arrays).concatenate([x.reshape(-1) for x in arrays])
    return flat.astype(dtype, copy=False) if dtype else flat


@op
def _hand_on(x: Array) -> Array:
    return x
