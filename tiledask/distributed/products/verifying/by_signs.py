"""Was C = A @ B multiplied right? By Freivalds: u C w = (u A)(B w), for random signs u and w.

    owner of A's block    u A    its columns, added up with random signs, some rows at a time
    owner of B's block    B w    its rows, likewise
    who has C's block     u C w
    the client            u C w against the sum over k of (u A)(B w), within what rounding may do

Each rank looks once over the three blocks that it owns, and tells what it found with what it counts
anyway: nothing more moves between ranks. What a rank multiplied were copies of others' blocks, what
is compared comes from those who own them, so that damage on the way is seen as well as damage of C.
Of its own operands a rank looks whether they still are what was made (block_sums.py). A product of
operands that were found right before looks over C alone, for what was expected of it is known; if
that is not there, over all three again.

Rows are taken GROUP at a time, and each group is compared: one damaged element is one of
GROUP x n whose rounding adds up, and is seen from about 1e-2 of their rms (2e-3 at 1024 cubed in
float32, 9e-3 at 4096).
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib import import_module
from itertools import pairwise
from math import prod
from random import Random
from typing import Any

import numpy as np

from tiledask.distributed.arrays.block_sums import changed
from tiledask.plan.products.product_plan import ProductPlan
from tiledask.plan.products.regions import Region, extents_of, overlap, slices, within
from tiledask.tile import accumulator
from tiledask.tile.backend import array_namespace, on_device
from tiledask.tile.backend import to_numpy as off_device

__all__ = [
    "GROUP",
    "SAFETY",
    "BlocksCompared",
    "ExpectedSums",
    "Pieces",
    "Weighed",
    "Weigher",
    "compare",
    "expected_of",
    "finfo_of",
    "regions_of",
    "sources_of",
    "weigh",
    "weighers",
]

GROUP = 64
"""Rows of C that are compared together, at least; never more groups than this of a block."""
ROWS, COLUMNS = 4, 4
"""Parts of a group, and of a row of B, whose sums say how large its elements are."""
SAFETY = 3.0
"""How far beyond what rounding usually does a difference may be."""

Pieces = list[tuple[Region, Any]]
"""Pieces of an operand: where each lies in the whole array, and its numbers."""
Sums = tuple[np.ndarray, np.ndarray]
"""(added up with random signs, about the root of the sum of squares)."""


@dataclass(frozen=True)
class Weigher:
    """What one rank is told: its blocks, and how those of C cut them."""

    seed: int
    rank: int
    lead: tuple[int, ...]
    """Extents of all of C's rows; (1,) where A is a vector."""
    columns: int
    a: Region
    b: Region
    c: Region
    rows: tuple[Region, ...]
    """Of C's blocks, each once."""
    cuts: tuple[Region, ...]
    """Their columns, each once."""
    keys: tuple[str, str] = ("", "")
    """Of its blocks of A and B."""
    operands: bool = True
    """Whether to look over A and B too; else only over C, whose size is then estimated."""

    def weigh(self, a: Any, b: Any, c: Any) -> "Weighed":
        """What the rank found; ``c`` as it was summed up, if that was in a wider type."""
        u, w = _signs(self.seed, self.lead), _signs(self.seed + 1, (self.columns,))
        of_a, of_b, wrong = dict[int, Sums](), dict[int, Sums](), tuple[str, ...]()
        with on_device(c), np.errstate(over="ignore", invalid="ignore"):
            if self.operands:
                blocks = zip("AB", self.keys, (a, b), strict=True)
                wrong = tuple(name for name, key, block in blocks if changed(key, block))
                self._operands(a, b, u, w, of_a, of_b)
            c, here = c.reshape(extents_of(self.c)), self.c[:-1]
            signs, edges = (u[slices(here)], w[slices(self.c[-1:])]), _edges(here[-1], here[-1])
            of_c = _of_both(c, *signs, edges, exact=self.operands)
        return Weighed(self.rank, of_a, of_b, of_c, c.dtype.name, wrong)

    def _operands(
        self, a: Any, b: Any, u: Any, w: Any, of_a: dict[int, Sums], of_b: dict[int, Sums]
    ) -> None:
        a, b = a.reshape(extents_of(self.a)), b.reshape(extents_of(self.b))
        for i, rows in enumerate(self.rows):
            if (here := overlap(rows, self.a[:-1])) is not None:
                block = a[within(here, self.a[:-1])]
                of_a[i] = _of_rows(block, u[slices(here)], _edges(here[-1], rows[-1]))
        for i, cut in enumerate(self.cuts):
            if (here := overlap(cut, self.b[1:])) is not None:
                block = b[:, within(here, self.b[1:])[0]]
                of_b[i] = _of_columns(block, w[slices(here)])


@dataclass(frozen=True)
class Weighed:
    """What one rank found of its blocks."""

    rank: int
    a: Mapping[int, Sums]
    """By number of the rows of C that touch its block of A."""
    b: Mapping[int, Sums]
    """By number of the columns of C that touch its block of B."""
    c: Sums
    dtype: str
    """The type in which that was given, which bounds how it was rounded."""
    damaged: tuple[str, ...]
    """Which of "A" and "B" is not what it was made."""


@dataclass(frozen=True)
class BlocksCompared:
    """What the comparison of a product's blocks gave."""

    wrong: dict[int, Region]
    """Ranks whose block of C is not A @ B: the rows that are furthest from it."""
    damaged: tuple[tuple[int, str], ...]
    """(rank, "A" or "B") of operands that are not what they were made."""
    sums: tuple[bytes, ...]
    """Of every rank's block of C what was compared: the same for the same bits."""
    said: bool = True
    """Whether something can be said of all of C, for it is finite."""

    @property
    def right(self) -> bool:
        return not (self.wrong or self.damaged)

    def same(self, first: "BlocksCompared") -> list[int]:
        """Ranks that were wrong in both runs with the same bits, from operands that were right:
        what is worth a look in float64, for rounding would be like that."""
        if first.damaged:
            return []
        both = self.wrong.keys() & first.wrong.keys()
        return sorted(rank for rank in both if self.sums[rank] == first.sums[rank])

    def without(self, ranks: Collection[int]) -> "BlocksCompared":
        """The same, where the blocks of C on ``ranks`` are right."""
        wrong = {rank: rows for rank, rows in self.wrong.items() if rank not in ranks}
        return replace(self, wrong=wrong)

    @property
    def faults(self) -> list[tuple[int, str]]:
        """(rank, "A" or "B") of damaged operands, or where there are none, (rank, "C")."""
        return [*self.damaged] or [(rank, "C") for rank in self.wrong]


@dataclass(frozen=True)
class ExpectedSums:
    """What a rank's block of C gives if it is A @ B, by groups of its rows."""

    sums: np.ndarray
    squares: np.ndarray
    """Of the sizes of the terms that are summed up."""
    depth: int


def weighers(
    plan: ProductPlan, seed: int, keys: Sequence[tuple[str, str]], operands: bool = True
) -> tuple[Weigher, ...]:
    """By rank, what it is told."""
    columns, a, b, c = len(plan.a.shape) - 1, *regions_of(plan)
    rows = tuple(dict.fromkeys(region[:-1] for region in c))
    cuts = tuple(dict.fromkeys(region[-1:] for region in c))
    lead, n = plan.a.shape[:-1] or (1,), prod(plan.result.shape[columns:])
    return tuple(
        Weigher(seed, rank, lead, n, *blocks, rows, cuts, keys[rank], operands)
        for rank, blocks in enumerate(zip(a, b, c, strict=True))
    )


def expected_of(plan: ProductPlan, found: Sequence[Weighed]) -> tuple[ExpectedSums, ...]:
    """By rank, what its block of C has to give, by what all ranks ``found`` of A and B."""
    of_a, of_b, regions = regions_of(plan)
    bands = list(dict.fromkeys(region[:-1] for region in regions))
    cuts = list(dict.fromkeys(region[-1:] for region in regions))
    made = []
    for rank, region in enumerate(regions):
        i, j = bands.index(region[:-1]), cuts.index(region[-1:])
        groups = len(_edges(region[-2], region[-2])) - 1
        sums, squares = np.zeros((2, *extents_of(region[:-2]), groups))
        depth, panels = 0, [p for source in sources_of(plan, rank) for p in plan.panels[source]]
        for panel in panels if 0 not in extents_of(region) else ():
            depth += panel.depth[1] - panel.depth[0]
            for x in panel.a:
                here = overlap(region[:-1], of_a[x.source][:-1])
                if here is None:
                    continue
                at = *within(here[:-1], region[:-2]), _groups(here[-1], region[-2])
                (k,) = within((panel.depth,), of_a[x.source][-1:])
                s, size = (part[..., k].astype(float) for part in found[x.source].a[i])
                for y in panel.b:
                    if j not in found[y.source].b:
                        continue
                    (k,) = within((panel.depth,), of_b[y.source][:1])
                    t, other = (part[k].astype(float) for part in found[y.source].b[j])
                    with np.errstate(invalid="ignore", over="ignore"):
                        sums[at] += s @ t
                        squares[at] += size**2 @ other**2
        made.append(ExpectedSums(sums, squares, depth))
    return tuple(made)


def compare(
    plan: ProductPlan, found: Sequence[Weighed], expected: Sequence[ExpectedSums]
) -> BlocksCompared:
    """Which blocks of C are wrong, by what all ranks ``found`` and what was ``expected``."""
    wrong, said = dict[int, Region](), True
    for rank, region in enumerate(regions_of(plan)[-1]):
        if 0 in extents_of(region):
            continue
        (got, norm), sought = found[rank].c, expected[rank]
        usual = _usual(found[rank].dtype, region, sought.depth, norm, sought.squares)
        with np.errstate(invalid="ignore", over="ignore"):
            off = np.abs(got - sought.sums) / usual
        off[np.isnan(off)] = np.inf
        # what overflows, or comes of what is not finite, nothing can be said of
        off[unsaid := ~np.isfinite(usual) | ~np.isfinite(sought.sums)] = 0.0
        said = said and not unsaid.any()
        if off.max() > 1.0:
            *lead, group = map(int, np.unravel_index(int(off.argmax()), off.shape))
            begin, end = _edges(region[-2], region[-2])[group : group + 2]
            rows = ((a + i, a + i + 1) for i, (a, _) in zip(lead, region[:-2], strict=True))
            first = region[-2][0]
            wrong[rank] = (*rows, (first + begin, first + end))
    damaged = tuple((each.rank, name) for each in found for name in each.damaged)
    sums = tuple(b"".join(part.tobytes() for part in each.c) for each in found)
    return BlocksCompared(wrong, damaged, sums, said)


def _usual(
    dtype: str, region: Region, depth: int, norm: np.ndarray, squares: np.ndarray
) -> np.ndarray:
    """What rounding leaves of each group, at most; infinite where nothing can be said.

    An element of C is rounded ``depth`` times, by half an eps of what it is meanwhile: of the size
    of C, or where terms cancel, of the root of the sum of their squares. Random signs add up the
    elements' errors as independent ones.
    """
    about = finfo_of(dtype)
    least = SAFETY * depth * prod(extents_of(region)) * float(about.tiny)
    with np.errstate(over="ignore", invalid="ignore"):
        size = np.sqrt(np.where(np.isfinite(norm), norm, 0.0) + squares)
        usual = SAFETY * float(about.eps) / 2 * np.sqrt(depth + 16) * size + least
        # a sum that may have been larger than the type has numbers for
        return np.where(64 * size * np.sqrt(depth + 1) > float(about.max), np.inf, usual)


def finfo_of(dtype: str) -> Any:
    return import_module("ml_dtypes").finfo(dtype) if dtype == "bfloat16" else np.finfo(dtype)


def weigh(weigher: Weigher, a: Any, b: Any, c: Any) -> Weighed:
    """What a rank finds, as a task of its own."""
    return weigher.weigh(a, b, c)


# -- sums with random signs ----------------------------------------------------------------------


@lru_cache(8)
def _signs(seed: int, shape: tuple[int, ...]) -> np.ndarray:
    """An array of -1 and 1, as float32."""
    drawn = np.frombuffer(Random(seed).randbytes(-(-prod(shape) // 8)), np.uint8)
    bits = np.unpackbits(drawn)[: prod(shape)].reshape(shape)
    return 2 * bits.astype(np.float32) - 1


def _of_rows(x: Any, u: np.ndarray, edges: Sequence[int]) -> Sums:
    """u A by groups of rows: [..., rows, k] as [..., groups, k]."""
    groups, k, wide = len(edges) - 1, x.shape[-1], accumulator(x.dtype)
    sums, sizes = (np.empty((*x.shape[:-2], groups, k), wide) for _ in range(2))
    parts = np.empty((ROWS, k))  # one for all groups: new memory costs more than what is done in it
    for at in np.ndindex(*x.shape[:-2]):
        for group, (start, stop) in enumerate(pairwise(edges)):
            _parts(x[at][start:stop], u[at][start:stop], parts)
            _keep(parts, sums[(*at, group)], sizes[(*at, group)])
    return sums, sizes


def _parts(x: Any, u: np.ndarray, out: np.ndarray) -> None:
    """None, once ``out`` has u x of ROWS parts of the rows of x [rows, k]."""
    xp, x = array_namespace(x), _widened(x)
    u, (each, rest) = xp.asarray(u, x.dtype), divmod(len(x), ROWS)
    if rest or not x.flags.c_contiguous:
        ends = [len(x) * part // ROWS for part in range(ROWS + 1)]
        for part, (start, stop) in enumerate(pairwise(ends)):
            out[part] = off_device(u[start:stop] @ x[start:stop])
    else:
        found = u.reshape(ROWS, 1, each) @ x.reshape(ROWS, each, -1)
        out[...] = off_device(found).reshape(out.shape)


def _keep(parts: np.ndarray, sums: np.ndarray, sizes: np.ndarray) -> None:
    """None, once ``sums`` has the sum of ``parts`` and ``sizes`` the root of that of their squares;
    ``parts`` are used up."""
    sums[...] = parts.sum(0)
    np.multiply(parts, parts, out=parts)
    sizes[...] = np.sqrt(parts.sum(0))


def _of_columns(x: Any, w: np.ndarray) -> Sums:
    """B w: [k, n] as [k]."""
    xp, wide, n = array_namespace(x), accumulator(x.dtype), x.shape[1]
    parts, w = np.empty((COLUMNS, len(x))), xp.asarray(w, wide)
    sums, sizes = (np.empty(len(x), wide) for _ in range(2))
    ends = [n * part // COLUMNS for part in range(COLUMNS + 1)]
    for start, stop in _slabs(len(x), x.dtype.itemsize < 4):
        rows = _widened(x[start:stop])
        for part, (a, b) in enumerate(pairwise(ends)):
            parts[part, start:stop] = off_device(rows[:, a:b] @ w[a:b])
    _keep(parts, sums, sizes)
    return sums, sizes


def _of_both(c: Any, u: np.ndarray, w: np.ndarray, edges: Sequence[int], exact: bool) -> Sums:
    """(u C w by groups of rows, the sum of their squares): [..., rows, n] as [..., groups].

    Not ``exact``: the sum of (C w)**2, which is that of squares on the average over signs.
    """
    xp, wide = array_namespace(c), accumulator(c.dtype)
    w, by_row = xp.asarray(w, wide), np.empty(c.shape[:-1])
    sums, squares = np.zeros((2, *c.shape[:-2], len(edges) - 1))
    groups = list(pairwise(edges))
    for at in np.ndindex(*c.shape[:-2]):
        for start, stop in groups if exact or c.dtype != wide else [(0, edges[-1])]:
            rows = _widened(c[at][start:stop])
            by_row[at][start:stop] = off_device(rows @ w)
            if exact:
                flat = rows.reshape(-1)
                if not np.isfinite(size := float(flat @ flat)) or size < 1e-20:
                    size = float(xp.square(flat.astype(float)).sum())
                squares[(*at, groups.index((start, stop)))] = size
        for group, (start, stop) in enumerate(groups):
            part = by_row[at][start:stop]
            sums[(*at, group)] = part @ u[at][start:stop]
            if not exact:
                squares[(*at, group)] = part @ part
    return sums, squares


def _widened(x: Any) -> Any:
    """``x`` in the type that is summed in."""
    xp = array_namespace(x)
    if x.dtype.name == "bfloat16":  # the first half of a float32; astype takes four times as long
        raw = xp.ascontiguousarray(x).view(xp.uint16).astype(xp.uint32)
        raw <<= 16
        return raw.view(xp.float32)
    return x.astype(accumulator(x.dtype), copy=False)


def _slabs(rows: int, converted: bool) -> Iterator[tuple[int, int]]:
    """Some rows at a time where they are converted, else all."""
    return pairwise([*range(0, rows, GROUP if converted else max(rows, 1)), rows])


def sources_of(plan: ProductPlan, rank: int) -> list[int]:
    """The ranks that multiplied what is summed up to a rank's block of C."""
    return list(dict.fromkeys(p.source for p in plan.partials[rank])) if plan.sums else [rank]


# -- regions -------------------------------------------------------------------------------------


def regions_of(plan: ProductPlan) -> tuple[tuple[Region, ...], ...]:
    """Of A, B and C by rank, as [..., k], [k, n] and [..., n]; a vector is of one row or column."""
    one: Region = ((0, 1),)
    lead, tail = len(plan.a.shape) - 1, len(plan.b.shape) - 1
    before, after = () if lead else one, () if tail else one
    return (
        tuple((*before, *region) for region in plan.a.regions),
        tuple((*region, *after) for region in plan.b.regions),
        tuple((*before, *region, *after) for region in plan.result.regions),
    )


def _group(rows: tuple[int, int]) -> int:
    return max(GROUP, -(-(rows[1] - rows[0]) // GROUP))


def _edges(here: tuple[int, int], rows: tuple[int, int]) -> list[int]:
    """Where groups of ``rows`` end within ``here``, counted from its start."""
    (start, stop), step = here, _group(rows)
    first = rows[0] + ((start - rows[0]) // step + 1) * step
    return [0, *(end - start for end in range(first, stop, step)), stop - start]


def _groups(here: tuple[int, int], rows: tuple[int, int]) -> slice:
    """The groups of ``rows`` that ``here`` touches."""
    step = _group(rows)
    return slice((here[0] - rows[0]) // step, -(-(here[1] - rows[0]) // step))
