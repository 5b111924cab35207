"""The kernels of layers by name, as programs call them: arrays in, arrays out, nothing kept.

    do linear x w b          linear(x, w, b) -> y
    do linear_grad_input     dy w^T          what a backward needs is among what it reads

Here are those that move and add; those of each layer stand in its own file. Kernels that change
what they are given return None.
"""

from itertools import pairwise

from tiledask.plan.intervals import ends_of
from tiledask.tile.backend import Array, array_namespace
from tiledask.tile.layers.operands import rounded, wide
from tiledask.tile.layers.ops import KERNELS, RankPart, op

__all__ = ["KERNELS", "RankPart"]


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
