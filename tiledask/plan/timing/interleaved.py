"""Seconds of a pipeline of several chunks on a device, by formula, where chunks are not equal.

Micro-batches go in turns of p: a device takes p of them through its first chunk, then through its
next. The first chunks may have a layer more, the last has the head. What ends last is one of a few
paths, and each is a sum over chunks. Of the devices 0 .. z, h is the last that has as many layers
as device 0; d is any of the three:

stay    down to d, all work of d, and up again to 0
again   .. but before the last turn up to 0 by the first chunks, and to d by the second to last
visit   all work of 0, but in the first turn and the last that of z until its head
jump    all work of d, but in each turn the first chunk of 0 or 1 in place of d's last
hop     all work of h, but in each turn the last chunk of z in place of h's own
climb   all work of h, but in each turn up to 0 by the first chunks, in place of h's last
once    all work of z or z - 1, but in one turn the first chunk of 1 in place of its own

Where embedding and head count as a layer each, they are given as what they take less one: then 1
has the longest first chunk, and z the shortest last one.
"""

from dataclasses import dataclass

import numpy as np

from tiledask.plan.arrays import Array, Values

__all__ = ["interleaved_seconds"]


@dataclass(frozen=True)
class _Chunks:
    """Seconds of one micro-batch in each of p x v chunks, which stand in v rows of p."""

    p: Values
    v: Values
    each: Values
    """Layers of a chunk; the first ``more`` chunks have another."""
    more: Values
    layer: Values
    hop: Values
    embedding: Values
    head: Values

    def row(self, a: Values, first: Values, end: Values) -> Values:
        """All chunks of row ``a`` on the devices ``first`` .. ``end`` - 1."""
        count = np.maximum(0, end - first)
        more = np.clip(self.more - a * self.p - first, 0, count)
        ends = ((a == 0) & (first == 0)) * self.embedding
        ends = ends + ((a == self.v - 1) & (end == self.p)) * self.head
        total: Values = count * (self.hop + self.each * self.layer) + more * self.layer
        return total + (count > 0) * ends

    def one(self, a: Values, d: Values) -> Values:
        return self.row(a, d, d + 1)

    def stage(self, d: Values) -> Values:
        """All chunks of a device."""
        more = -((d - self.more) // self.p)
        ends = (d == 0) * self.embedding + (d == self.p - 1) * self.head
        total: Values = self.v * (self.hop + self.each * self.layer) + more * self.layer + ends
        return total

    def down(self, d: Values) -> Values:
        """Until device d begins: down the first chunks, after p embeddings; and the p layers that
        the device before it has more in a row of chunks where d has one less."""
        row, some = np.divmod(self.more, self.p)
        h = np.maximum(some - 1, 0)
        over = self.row(0, 0, h) + self.row(row, h + 1, d + 1) + self.p * self.layer
        behind = (some > 0) & (some <= d) & (row < self.v - 1)
        found = np.where(behind, np.maximum(self.row(0, 0, d), over), self.row(0, 0, d))
        total: Values = found + (self.p - 1) * (d > 0) * _gain(self.embedding)
        return total


def interleaved_seconds(
    p: Values,
    v: Values,
    m: Values,
    layers: Values,
    layer: Array,
    hop: Array,
    embedding: Array,
    head: Array,
) -> Values:
    """Seconds from the first forward to the last backward pass.

    ``m``: micro-batches, a multiple of ``p``; ``v``: chunks of a device, 2 or more. ``layer``,
    ``hop``: of one micro-batch in a layer, and what a chunk waits for its neighbours, both ways.
    Within 2 % of the simulation, or 3 % where most chunks have one layer; layers of two kinds,
    given as their mean, 5 %. Where embedding and head count as layers 4 %, and with one layer in
    most chunks 8 %.
    """
    each, more = np.divmod(layers, p * v)
    f, b, s = (
        _Chunks(p, v, each, more, *ways)
        for ways in zip(
            *((*one, one[0] + one[1]) for one in (layer, hop, embedding, head)), strict=True
        )
    )
    turns, last, z, some = m // p, v - 1, p - 1, more % p
    h = np.where(some > 0, some, z) - 1
    far, second = z - h, np.minimum(1, z)

    def again(d: Values) -> Values:
        way = b.row(0, 0, d) + b.one(last, 0) + b.row(last - 1, d + 1, p)
        return way - p * b.one(last, d)

    def stay(d: Values) -> Values:
        more = _gain(again(d) - _gain(p - 2 * (z - d)) * f.one(last, d))
        return m * s.stage(d) + f.down(d) + b.down(d) + (turns > 1) * more

    def visit(x: _Chunks, y: _Chunks) -> Values:
        way = x.down(z) - z * x.one(0, 0) + p * (x.stage(z) - x.stage(0))
        return _gain(way + z * y.one(last, z) - y.one(last, 0))

    def jump(d: Values) -> Values:
        one = np.where(d < z, np.maximum(s.one(0, 0), s.one(0, second)), s.one(0, 0))
        way = (p - 1) * one + s.row(0, d + 1, p) + s.one(last, 0)
        lost = (1 + 2 * (z - d)) * s.one(0, d) + p * s.one(last, d)
        return (2 * (z - d) < p) * _gain(way - lost)

    def once(d: Values) -> Values:
        way = s.row(0, 0, second) + s.row(0, second + 1, d + 1)
        return m * s.stage(d) + way + p * (s.one(0, second) - s.one(0, d))

    first, final = visit(f, b), visit(b, f)
    visits = np.where(turns > 2, first + final, (turns > 1) * np.maximum(first, final))
    hops = p * (s.stage(h) - s.one(last, h) - s.stage(z) + s.one(last, z))
    hops = hops - 2 * far * s.one(0, h) + s.row(last, h, z)
    climb = again(h) + b.one(last, 0) - b.one(last - 1, h) + f.one(last, 0) - p * f.one(last, h)
    climb = climb + (p - 2 * far - 2) * f.one(0, 0) - (p - 2 * far - 1) * f.one(last - 1, h)
    climb = (far > 0) * (2 * far + 2 <= p) * _gain(climb)
    middle = _gain(turns - 2)  # turns
    at_h = stay(h) + middle * np.maximum(climb, jump(h))
    at_z = stay(z) + np.maximum(middle * jump(z), (turns - 1) * (2 * far <= p) * _gain(hops))
    late = np.maximum(once(z), once(np.maximum(z - 1, second)))
    return np.maximum(np.maximum(stay(0 * p) + visits, late), np.maximum(at_h, at_z))


def _gain(seconds: Values) -> Values:
    """Seconds that a path is longer by; none where it is shorter."""
    found: Values = np.maximum(0, seconds)
    return found
