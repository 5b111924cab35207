"""Pipeline stages that really compute: consecutive layers, their weights made from a seed.

    init(backend)                          the weights, on the device
    forward(weights, x)                    (y, saved); x and y are [tokens, width]
    backward_input(weights, saved, dy)     (dx, saved for the weights)
    backward_weight(saved)                 their gradients: a list with a dict of arrays per layer

A stage is a frozen value with a ``width`` that travels to its worker; its weights are made there,
and made again if the worker dies. ``forward`` returns what ``backward`` needs, so that several
micro-batches can be in flight. One without gradients lacks the last two. For its ``weight_bytes``,
where it has them, and as many of gradients a run must have room.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from tiledask.plan.intervals import split
from tiledask.tile.backend import array_namespace, namespace
from tiledask.tile.elementwise import gelu, gelu_grad

__all__ = ["FeedForward", "HalfFeedForward", "flat", "stack"]

Arrays = dict[str, Any]
"""Arrays of a layer by name: NumPy's, or CuPy's."""


@dataclass(frozen=True)
class FeedForward:
    """Residual feed-forward blocks x + w2 gelu(w1 x + b1) + b2, one per number in ``layers``.

    x ---+--- @ w1 + b1 --- gelu --- @ w2 + b2 ---+--- y       [tokens, width] in and out
         |       z            h                   |
         '----------------------------------------'

    forward            x -> y         saves x, z
    backward, input    dy -> dx       saves x, h, dz, dy; the next device waits for this alone
    backward, weight      -> gradients
    """

    layers: tuple[int, ...]
    """Which layers of the model; layer i is drawn from ``seed + i`` wherever it lands. Without any,
    what comes is handed on: a stage that only takes its time."""
    width: int
    hidden: int
    seed: int = 0
    dtype: str = "float32"

    @property
    def weight_bytes(self) -> int:
        """Bytes of this stage's weights."""
        each = 2 * self.width * self.hidden + self.width + self.hidden
        return len(self.layers) * each * np.dtype(self.dtype).itemsize

    def init(self, backend: str) -> list[Arrays]:
        """By layer w1 [width, hidden], b1, w2 [hidden, width], b2.

        Drawn by NumPy in float64 and then cast, so that all backends and element types start from
        the same numbers. Deviations are 1/sqrt(width) for w1 and a quarter of 1/sqrt(hidden) for
        w2, with which tens of blocks in a row keep their values near one.
        """
        made = []
        for layer in self.layers:
            rng = np.random.default_rng(self.seed + layer)
            drawn = {
                "w1": rng.standard_normal((self.width, self.hidden)) / math.sqrt(self.width),
                "b1": rng.standard_normal(self.hidden) * 0.01,
                "w2": rng.standard_normal((self.hidden, self.width)) / (4 * math.sqrt(self.hidden)),
                "b2": rng.standard_normal(self.width) * 0.01,
            }
            xp = namespace(backend)
            made.append({name: xp.asarray(w.astype(self.dtype)) for name, w in drawn.items()})
        return made

    def forward(self, weights: list[Arrays], x: Any) -> tuple[Any, list[Arrays]]:
        saved = []
        for layer in weights:
            z = x @ layer["w1"]  # [tokens, hidden]
            z += layer["b1"]
            y = gelu(z) @ layer["w2"]  # [tokens, width]
            y += layer["b2"]
            y += x
            saved.append({"x": x, "z": z})
            x = y
        return x, saved

    def backward_input(
        self, weights: list[Arrays], saved: list[Arrays], dy: Any
    ) -> tuple[Any, list[Arrays]]:
        kept = []
        for layer, of in zip(reversed(weights), reversed(saved), strict=True):
            dz = gelu_grad(dy @ layer["w2"].T, of["z"])  # [tokens, hidden]
            kept.append({"x": of["x"], "h": gelu(of["z"]), "dz": dz, "dy": dy})
            dx = dz @ layer["w1"].T  # [tokens, width]
            dx += dy
            dy = dx
        return dy, kept[::-1]

    def backward_weight(self, saved: list[Arrays]) -> list[Arrays]:
        return [
            {"w1": x.T @ dz, "b1": dz.sum(axis=0), "w2": h.T @ dy, "b2": dy.sum(axis=0)}
            for x, h, dz, dy in (kept.values() for kept in saved)
        ]


@dataclass(frozen=True)
class HalfFeedForward:
    """The same blocks for serving: weights of two bytes, products in float32, no gradients.

    Weights are drawn and used a few rows at a time, so that the stage needs hardly more memory
    than its weights: what is asked of a model that just fits its devices.
    """

    layers: tuple[int, ...]
    width: int
    hidden: int
    seed: int = 0
    rows: int = 64
    """Rows of a weight matrix that are float32 at once."""

    @property
    def weight_bytes(self) -> int:
        """Bytes of this stage's weights."""
        return len(self.layers) * 2 * self.width * self.hidden * 2

    @property
    def workspace_bytes(self) -> int:
        """Bytes of the float32 rows in use, beside the weights and the activations."""
        return self.rows * max(self.width, self.hidden) * 4

    def init(self, backend: str) -> list[list[Any]]:
        xp, shapes = namespace(backend), ((self.width, self.hidden), (self.hidden, self.width))
        weights = [[xp.empty(shape, np.float16) for shape in shapes] for _ in self.layers]
        for layer, pair in zip(self.layers, weights, strict=True):
            for n, w in enumerate(pair):
                rng = np.random.default_rng((self.seed, layer, n))
                for start, stop in self._chunks(len(w)):
                    # of one variance; an even distribution is drawn three times as fast
                    part = rng.random((stop - start, w.shape[1]), np.float32)
                    part -= 0.5
                    part *= (12 / len(w)) ** 0.5
                    w[start:stop] = xp.asarray(part.astype(np.float16))
        return weights

    def forward(self, weights: list[list[Any]], x: Any) -> tuple[Any, None]:
        for w1, w2 in weights:
            x = x + self._product(gelu(self._product(x, w1)), w2)
        return x, None

    def _product(self, x: Any, w: Any) -> Any:
        y = array_namespace(x).zeros((len(x), w.shape[1]), np.float32)
        for start, stop in self._chunks(w.shape[0]):
            y += x[:, start:stop] @ w[start:stop].astype(np.float32)
        return y

    def _chunks(self, n: int) -> list[tuple[int, int]]:
        return split(0, n, max(1, -(-n // self.rows)))


def stack(bounds: Sequence[int], kind: type = FeedForward, **shape: Any) -> list[Any]:
    """One stage of ``kind`` per interval of ``bounds`` (a Partition's), for instance
    ``stack(td.partition([1] * 24, 4).bounds, width=256, hidden=1024)``.
    """
    return [kind(tuple(range(start, stop)), **shape) for start, stop in pairwise(bounds)]


def flat(gradients: Sequence[Any]) -> Any:
    """All arrays of a run's ``gradients`` (by stage, layer and name), end to end in one: the same
    order for every cut of the same layers.

    >>> flat([[{"w": np.ones((2, 2))}, {"b": np.zeros(1)}]]).tolist()
    [1.0, 1.0, 1.0, 1.0, 0.0]
    """
    layers = [layer for stage in gradients for layer in stage]
    return np.concatenate([array.ravel() for layer in layers for array in layer.values()])
