"""The graph of a lazy product: a task for every tile and panel of its plan."""

import operator
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise, product
from typing import Any

import dask
import dask.array as da
import dask.multiprocessing
import numpy as np
from dask._task_spec import Alias, DataNode, Task, TaskRef
from dask.typing import Key

from tiledask.distributed.products.lazy_plan import FAN_IN, Edges, LazyPlan, Side, bands_of
from tiledask.distributed.products.lazy_tasks import LazyTileJob, Made, add_up, multiply_tile
from tiledask.errors import PlacementError
from tiledask.plan.products.regions import Region, ends_within, overlap, within
from tiledask.plan.program.making.of_tile import TilePiece

__all__ = ["Graph", "Operand", "check_chunks", "edges_of", "recipes_of", "touching_chunks"]


@dataclass(frozen=True)
class Operand:
    """x or y, and how to make its blocks."""

    array: da.Array
    first: bool
    """It is x, whose k is the last dimension; y's is the first."""
    side: Side
    recipes: dict[Key, Task]
    """key -> how to make that block; empty if tasks receive them."""

    @classmethod
    def of(cls, array: da.Array, first: bool, made: bool) -> "Operand":
        edges = edges_of(array)
        edges = edges if first else edges[::-1]
        recipes = recipes_of(array) if made else {}
        edges = edges if array.ndim > 1 else ((0, 1), *edges)
        return cls(array, first, Side(edges, array.dtype.itemsize, bool(recipes)), recipes)

    def blocks(
        self, region: Region
    ) -> Iterator[tuple[tuple[Any, ...], tuple[slice, ...], bool, Region]]:
        """(key, part of it, whether that is less than all, where it lies) of each block there."""
        for index, common, block in touching_chunks(self.side.edges, region):
            part = within(common, block)
            if self.array.ndim == 1:
                index, part = index[1:], part[1:]
            if not self.first:
                index, part = index[::-1], part[::-1]
            yield (self.array.name, *index), part, common != block, common


def edges_of(array: da.Array) -> tuple[Edges, ...]:
    return tuple(tuple(np.cumsum([0, *chunks]).tolist()) for chunks in array.chunks)


def touching_chunks(
    edges: tuple[Edges, ...], region: Region
) -> Iterator[tuple[tuple[int, ...], Region, Region]]:
    """(index, what it has in common with ``region``, block) of each block that touches it."""
    touching = []
    for e, (start, stop) in zip(edges, region, strict=True):
        first, last = bisect_right(e, start) - 1, bisect_left(e, stop)
        blocks = ((i, (e[i], e[i + 1])) for i in range(first, last))
        common = ((i, (max(a, start), min(b, stop)), (a, b)) for i, (a, b) in blocks)
        touching.append([found for found in common if found[1][0] < found[1][1]])
    for found in product(*touching):
        yield (
            tuple(index for index, _, _ in found),
            tuple(common for _, common, _ in found),
            tuple(block for _, _, block in found),
        )


def recipes_of(array: da.Array) -> dict[Key, Task]:
    """key -> a task that makes that block of a source; empty unless there is one for each."""
    keys = list(dask.core.flatten(array.__dask_keys__()))
    graph, recipes = array.__dask_optimize__(array.dask, keys), {}
    for key in keys:
        node = graph.get(key)
        while isinstance(node, Alias):
            node = graph.get(node.target)
        if not isinstance(node, Task):
            return {}
        if not all(isinstance(graph.get(need), DataNode) for need in node.dependencies):
            return {}
        recipes[key] = node
    return recipes


@dataclass
class Graph:
    """The tasks: parts of blocks that straddle tiles, products, and sums of products."""

    name: str
    plan: LazyPlan
    left: Operand
    right: Operand
    kernel: str
    tile: Any
    verify: bool = False
    made: dict[Key, Task] = field(default_factory=dict)
    parts: dict[tuple[Key, Region], Key] = field(default_factory=dict)

    def tasks(self) -> dict[Key, Task]:
        for index in np.ndindex(*(len(edges) - 1 for edges in self.plan.tiles)):
            self._add_tile(index)
        return self.made

    def _add_tile(self, index: tuple[int, ...]) -> None:
        plan, dtype = self.plan, self.left.array.dtype.name
        region = tuple((e[i], e[i + 1]) for i, e in zip(index, plan.tiles, strict=True))
        # of an operand of one dimension, C has none
        keep = slice(self.left.array.ndim == 1, len(index) - (self.right.array.ndim == 1))
        key: Key = (self.name, *index[keep])
        final = tuple(b - a for a, b in region)[keep]
        steps: list[Key] = [(f"{self.name}-panel", *index, i) for i in range(len(plan.panels) - 1)]
        if not plan.parallel:
            steps[-1] = key
        before = None
        for step, k in zip(steps, pairwise(plan.panels), strict=True):
            self._add_product(step, region, k, before, final if step == key else None)
            before = None if plan.parallel else TaskRef(step)
        level = 0
        while step != key:
            groups = [steps[i : i + FAN_IN] for i in range(0, len(steps), FAN_IN)]
            level += 1
            steps = [(f"tiledask_sum-{self.name}", level, *index, i) for i in range(len(groups))]
            steps = [key] if len(groups) == 1 else steps
            for step, group in zip(steps, groups, strict=True):
                parts, shape = map(TaskRef, group), final if step == key else None
                self.made[step] = Task(step, add_up, dtype, shape, *parts)

    def _add_product(
        self, key: Key, region: Region, k: tuple[int, int], before: Any, final: Any
    ) -> None:
        inputs: dict[Key, int] = {}
        sources: dict[str, int | Made] = {}
        left = self._pieces(self.left, (*region[:-1], k), inputs, sources)
        right = self._pieces(self.right, (*region[-1:], k), inputs, sources)
        bands = bands_of(self.left.side.edges[-1], self.right.side.edges[-1])
        here = tuple(both for band in bands if (both := overlap((band,), (k,))) is not None)
        tile, dtype = tuple((0, b - a) for a, b in region), self.left.array.dtype.name
        job = LazyTileJob(
            left,
            right,
            sources,
            tile,
            final,
            dtype,
            tuple(band for (band,) in here),
            self.kernel,
            self.tile,
            region if self.verify else None,
        )
        self.made[key] = Task(key, multiply_tile, job, before, *map(TaskRef, inputs))

    def _pieces(
        self, operand: Operand, box: Region, inputs: dict[Key, int], sources: dict[str, int | Made]
    ) -> tuple[TilePiece, ...]:
        """What a task takes of ``operand`` in ``box``; it is told where from in ``sources``."""
        pieces = list[TilePiece]()
        for key, part, less, common in operand.blocks(box):
            name = f"{'x' if operand.first else 'y'}{len(pieces)}"
            if operand.recipes:
                task = operand.recipes[key]
                needs = tuple(
                    (need, inputs.setdefault(need, len(inputs)))
                    for need in sorted(task.dependencies, key=str)
                )
                sources[name] = Made(task, needs, part)
            else:
                sources[name] = inputs.setdefault(
                    self._part(key, part) if less else key, len(inputs)
                )
            lies = *ends_within(common[:-1], box[:-1]), common[-1]
            turn = 1 if operand.first else -1
            pieces.append(TilePiece(name, lies[::turn], bool(operand.recipes)))
        return tuple(pieces)

    def _part(self, key: Key, part: tuple[slice, ...]) -> Key:
        """The key of a part of a block: a task of its own, so that only that part travels."""
        name = key, tuple((s.start, s.stop) for s in part)
        if name not in self.parts:
            self.parts[name] = here = (f"tiledask_part-{self.name}", len(self.parts))
            self.made[here] = Task(here, operator.getitem, TaskRef(key), part)
        return self.parts[name]


def check_chunks(name: str, z: da.Array) -> None:
    if any(np.isnan(z.shape)):
        raise PlacementError(
            f"{name} has chunks of unknown size, its shape is {z.shape}, and a plan needs numbers; "
            f"{name}.compute_chunk_sizes() finds them out"
        )
