"""d2l's LeNet with a split of its own for every layer: what moves in between, predicted and run.

way        x must be      y is                dy must be     dx is            weights
"images"   by images      by images           by images      by images        whole; dw is summed
"out"      whole          by output units     by units       partial sums     output units
"in"       by units       partial sums        whole          by units         input units

Backward, "out" is what "in" is forward. `moved` brings a value from one split to another.
Partial sums are added up before the activation: relu of a sum is no sum of relus.
"""

from collections.abc import Mapping
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from tiledask.distributed.convolution.channels import own
from tiledask.distributed.convolution.lenet import LENET
from tiledask.distributed.convolution.lenet_runs import StepShare
from tiledask.distributed.ranks.group import Group
from tiledask.errors import ConfigError
from tiledask.plan.collectives.cost import even
from tiledask.plan.program.lenet import BOUNDARIES, OUT
from tiledask.tile import layers as L

__all__ = [
    "NAMES",
    "WAYS",
    "bytes_of",
    "checked",
    "every",
    "parts_of",
    "split_step",
    "whole_gradients",
]

WHOLE, PARTIAL, UNITS, IMAGES = "whole", "partial sums", "units", "images"
WAYS = ("images", "out", "in")
X = {"images": IMAGES, "out": WHOLE, "in": UNITS}
Y = {"images": IMAGES, "out": UNITS, "in": PARTIAL}
DY = {"images": IMAGES, "out": UNITS, "in": WHOLE}
DX = {"images": IMAGES, "out": PARTIAL, "in": UNITS}
NAMES = tuple(layer.name for layer in LENET)

Ways = Mapping[str, str]
"""Name of a layer -> its way."""


def checked(answer: Any) -> dict[str, str] | None:
    """``answer`` as the way of each layer, in order; raises ConfigError for a way that is none."""
    if not isinstance(answer, Mapping) or set(answer) != set(NAMES):
        return None
    for name, way in answer.items():
        if way not in WAYS:
            raise ConfigError(f"{name} is split by one of {', '.join(WAYS)}, got {way!r}")
    return {name: answer[name] for name in NAMES}


def every() -> list[dict[str, str]]:
    """All 81 answers."""
    return [dict(zip(NAMES, ways, strict=True)) for ways in product(WAYS, repeat=len(NAMES))]


# -- by arithmetic -------------------------------------------------------------------------------


def bytes_of(ways: Ways, images: int, ranks: int, itemsize: int) -> int:
    """Bytes that all ranks together send in a training step.

    >>> bytes_of(dict.fromkeys(NAMES, "images"), 256, 4, 4), bytes_of(dict.fromkeys(NAMES, "out"),
    ...          256, 4, 4)
    (3097632, 26499072)
    """
    return sum(part.nbytes for part in parts_of(ways, images, ranks, itemsize))


class Part(NamedTuple):
    """Bytes that move because of a layer: gradients of its weights, or arrays behind it."""

    layer: str
    what: str
    nbytes: int


def parts_of(ways: Ways, images: int, ranks: int, itemsize: int) -> list[Part]:
    """What `bytes_of` adds up."""
    found = []
    for layer, after in zip(BOUNDARIES, [*BOUNDARIES[1:], None], strict=True):
        way, then = ways[layer.name], None if after is None else ways[after.name]
        # a unit of a partial sum is as large as before pooling
        full = layer.units * int(np.prod(OUT[layer.name])) if way == "in" else None
        sizes = images, ranks, layer.units, layer.units * layer.each
        early = sizes if full is None else (*sizes[:3], full)
        if then is None:  # the loss takes whole outputs, or those of a rank's own images
            name = f"the outputs of {layer.name}, '{way}'"
            numbers = _elements(Y[way], IMAGES if way == "images" else WHOLE, *early)
        else:
            name = f"what passes from {layer.name}, '{way}', to {after.name}, '{then}'"
            back = sizes if DX[then] == PARTIAL else early
            numbers = _elements(Y[way], X[then], *early) + _elements(DX[then], DY[way], *back)
        found.append(Part(layer.name, name, numbers * itemsize))
        if way == "images":
            weights = LENET[NAMES.index(layer.name)].size
            summed = 2 * (ranks - 1) * weights * itemsize
            found.append(Part(layer.name, f"the gradients of {layer.name}", summed))
    return found


def _elements(have: str, want: str, images: int, ranks: int, units: int, each: int) -> int:
    """Numbers that `moved` moves of an array of ``images`` times ``each``."""
    if have == want:
        return 0
    if {have, want} == {UNITS, IMAGES}:  # what a rank keeps does not move
        kept = sum(i * u for i, u in zip(even(images, ranks), even(units, ranks), strict=True))
        return images * each - kept * each // units
    return (2 if (have, want) == (PARTIAL, WHOLE) else 1) * (ranks - 1) * images * each


# -- run -----------------------------------------------------------------------------------------


def moved(group: Group, x: Any, have: str, want: str, units: int) -> Any:
    """``x`` [images, units, ...], which lies as ``have``, as ``want``."""
    dims = {UNITS: 1, IMAGES: 0}
    if have == want:
        return x
    if have == PARTIAL:
        return group.all_reduce(x) if want == WHOLE else group.reduce_scatter(x, dims[want])
    if want == WHOLE:
        return group.all_gather(x, dims[have])
    return group.all_to_all(x, dims[want], dims[have])


class _Kept(NamedTuple):
    product: Any
    shape: tuple
    activation: Any
    pool: Any


def split_step(rank: Any, ways: Ways, weights: Any, images: Any, classes: Any) -> StepShare:
    """One training step on this rank: its part of the loss, and gradients of what it holds."""
    group, count = rank.group(), len(images)
    held = {name: _part(group, ways[name], name, weights[name]) for name in NAMES}
    first = {IMAGES: 0, UNITS: 1}.get(X[ways[NAMES[0]]])
    x = images if first is None else _cut(group, images, first)
    kept, ends = [], [*(X[ways[name]] for name in NAMES[1:]), None]
    for boundary, want in zip(BOUNDARIES, ends, strict=True):
        name, way = boundary.name, ways[boundary.name]
        want = want or (IMAGES if way == "images" else WHOLE)
        y, done = _multiply(name, held[name], x, way)
        if way == "in":
            y = moved(group, y, PARTIAL, want, boundary.units)
            b = weights[name]["b"]
            b = _cut(group, b, 0) if want == UNITS else b
            y = y + (b[:, None, None] if y.ndim == 4 else b)
        y, activation, pool = _activate(name, y)
        x = y if way == "in" else moved(group, y, Y[way], want, boundary.units)
        kept.append(_Kept(*done, activation, pool))
    whole = ways[NAMES[-1]] != "images"
    loss, k = L.cross_entropy(x, classes if whole else _cut(group, classes, 0), count=count)
    dx, grads = L.cross_entropy_grad(1.0, k), {}
    dx = _cut(group, dx, 1) if ways[NAMES[-1]] == "out" else dx
    lies = DY[ways[NAMES[-1]]]
    for boundary in reversed(BOUNDARIES):
        name, way, k = boundary.name, ways[boundary.name], kept.pop()
        early = WHOLE if lies == PARTIAL else lies
        early = DY[way] if way != "in" else early
        dy = moved(group, dx, lies, early, boundary.units)
        dy = dy if k.pool is None else L.avg_pool2d_grad(dy, k.pool)
        dy = dy if k.activation is None else L.relu_grad(dy, k.activation)
        dy = moved(group, dy, early, DY[way], boundary.units)
        dx, grads[name] = _multiply_grad(group, name, held[name], dy, k, way)
        lies = DX[way]
    nbytes = sum(w.nbytes for each in held.values() for w in each.values())
    return StepShare(float(loss) / (group.size if whole else 1), grads, nbytes, 0)


def whole_gradients(ways: Ways, shares: list[StepShare]) -> tuple[float, dict[str, dict[str, Any]]]:
    """(loss, all gradients) of a step; shards one behind the other."""
    grads: dict[str, dict[str, Any]] = {}
    for name in NAMES:
        parts = [share.grads[name] for share in shares]
        grads[name] = dict(parts[0])
        if ways[name] != "images":
            dim = _dim(ways[name], parts[0]["w"])
            grads[name]["w"] = np.concatenate([part["w"] for part in parts], axis=dim)
        if ways[name] == "out":
            grads[name]["b"] = np.concatenate([part["b"] for part in parts])
    return sum(share.loss for share in shares), grads


def _cut(group: Group, x: Any, dim: int) -> Any:
    return x[(slice(None),) * dim + (own(group, x.shape[dim]),)]


def _dim(way: str, w: Any) -> int:
    """Along which a convolution [o, c, kh, kw] or a matrix [in, out] is cut."""
    return int(way == "in") if w.ndim == 4 else int(way == "out")


def _part(group: Group, way: str, name: str, weights: Mapping[str, Any]) -> dict[str, Any]:
    w, b = weights["w"], weights["b"]
    if way == "images":
        return {"w": w, "b": b}
    if way == "out":
        return {"w": _cut(group, w, _dim(way, w)).copy(), "b": _cut(group, b, 0).copy()}
    if w.ndim == 4:
        return {"w": _cut(group, w, 1).copy(), "b": b}
    units = 1 if name == NAMES[0] else BOUNDARIES[NAMES.index(name) - 1].units
    mine, each = own(group, units), len(w) // units  # a channel's rows stay together
    return {"w": w[mine.start * each : mine.stop * each].copy(), "b": b}


def _multiply(name: str, held: Mapping[str, Any], x: Any, way: str) -> tuple[Any, tuple]:
    b = None if way == "in" else held["b"]
    if held["w"].ndim == 4:
        y, kept = L.conv2d(x, held["w"], b)
        return y, (kept, x.shape)
    flat, shape = L.flatten(x)
    y, kept = L.linear(flat, held["w"], b)
    return y, (kept, shape)


def _multiply_grad(
    group: Group, name: str, held: Mapping[str, Any], dy: Any, kept: _Kept, way: str
) -> tuple[Any, dict]:
    w, b = held["w"], None if way == "in" else held["b"]
    if w.ndim == 4:
        dx, dw, db = L.conv2d_grad(dy, kept.product, w, b)
    else:
        dx, dw, db = L.linear_grad(dy, kept.product, w, b)
        dx = L.flatten_grad(dx, kept.shape)
    if way == "in":
        db = dy.sum(axis=(0, 2, 3) if dy.ndim == 4 else 0)
    if way == "images":
        flat = group.all_reduce(np.concatenate([dw.reshape(-1), db]))
        dw, db = flat[: dw.size].reshape(dw.shape), flat[dw.size :]
    return dx, {"w": dw, "b": db}


def _activate(name: str, y: Any) -> tuple[Any, Any, Any]:
    """What follows the products: relu, and for convolutions the mean of 2x2."""
    if name == NAMES[-1]:
        return y, None, None
    y, activation = L.relu(y)
    y, pool = L.avg_pool2d(y, 2) if y.ndim == 4 else (y, None)
    return y, activation, pool
