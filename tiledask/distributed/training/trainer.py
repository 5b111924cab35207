"""What a rank of a training keeps from step to step, and the kernels of its program that use it.

    weights, masters, moments   a flat array per unit, all of it or this rank's part (ZeRO)
    ids, targets                the rows of a micro-batch; or images and classes
    square_sum, guard           the norm of all gradients: clipped, or the step left out
    step                        the optimizer's, of this rank's numbers
    cast                        weights, as wide as layers compute with them
    write_checkpoint, bring     after the last step: whole arrays, to files and to whoever asked

All other kernels are tile's, by name.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np

from tiledask.distributed import tensor as T
from tiledask.distributed.programs.runner import Interpreter
from tiledask.distributed.ranks.rank import Rank
from tiledask.distributed.tensor.placed import part_of
from tiledask.plan.collectives.shards import shards
from tiledask.plan.intervals import ends_of
from tiledask.plan.products.placement import local_shapes
from tiledask.plan.program.making.zero import flat_name
from tiledask.plan.program.ops import Op
from tiledask.plan.program.program import Program
from tiledask.tile import layers as tile
from tiledask.tile.backend import accumulator, as_dtype
from tiledask.tile.elementwise import pieces
from tiledask.tile.layers.by_name import KERNELS, RankPart
from tiledask.tile.layers.random import draw
from tiledask.tile.memory import Pool
from tiledask.tile.optimizers import Rule, fused_step, guarded, update

__all__ = ["Trainer", "stepped", "unpacked"]

MASTER = "master weights"
DRAWN = {"ids": 0, "targets": 1, "images": 0, "classes": 1}
"""Kernel -> which array of a micro-batch it gives."""
Batch = Callable[[int], tuple[np.ndarray, np.ndarray]]
"""Micro-batch -> (ids, targets), each [rows, tokens], or (images, classes), of this rank's copy of
the model."""
Write = Callable[[float, Mapping[tuple[str, str], Mapping[str, Any]]], None]
"""Of the last step's loss and (tensor class, unit) -> this rank's arrays by name."""


def unpacked(flat: Any, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
    """Arrays of these shapes, one behind the other in ``flat``, by name: views of it.

    >>> unpacked(np.arange(6), {"w": (2, 2), "b": (2,)})["b"].tolist()
    [4, 5]
    """
    places = pairwise(ends_of(map(prod, shapes.values())))
    named = zip(shapes.items(), places, strict=True)
    return {name: flat[start:stop].reshape(shape) for (name, shape), (start, stop) in named}


def stepped(
    rule: Rule,
    gradients: Any,
    states: Mapping[str, Any],
    updates: int,
    factor: float = 1.0,
    divisor: float = 1.0,
) -> None:
    """An optimizer's step, in place: of flat ``states``, as ``rule`` calls them, and weights.

    Single precision in between; of some numbers at a time, which stay in cache.
    """
    if fused_step(rule, states, gradients, updates, factor, divisor):
        return
    for piece in pieces(gradients):
        mine = {tensor: array[piece] for tensor, array in states.items()}
        made = update(rule, mine, gradients[piece], updates, factor, divisor)
        for tensor, array in mine.items():
            array[...] = made[tensor]


class Trainer:
    """One rank's part of a model, with newly drawn weights: those that one device would draw.

    ``job``: a RankConfig; ``program``: of a step of it; ``end``: of what follows the last, if
    anything does; ``pool``: in which its states lie.
    """

    def __init__(
        self,
        rank: Rank,
        job: Any,
        program: Program,
        end: Program | None = None,
        pool: Pool | None = None,
    ) -> None:
        self.rank, self.job, self.program = rank, job, program
        self.pool = Pool(backend=rank.backend) if pool is None else pool
        self.scale = job.scale
        """The LossScale of the next step, if there is one."""
        self.norm = math.nan
        """Of the loss's own gradients in the last step, before they are clipped."""
        degrees, here = program.shape, program.coordinates[rank.index]
        data, self.axis, stage = job.axes
        self.slice, slices = here[self.axis], degrees[self.axis]
        self.units = job.units(here[stage])
        self.tilings = {unit: job.model.tilings(unit, slices) for unit in self.units}
        self.shapes = {unit: local_shapes(of, self.slice) for unit, of in self.tilings.items()}
        self.sizes = {unit: sum(map(prod, of.values())) for unit, of in self.shapes.items()}
        each = zip(self.sizes, shards([*self.sizes.values()], degrees[data]), strict=True)
        self.parts = {unit: slice(*ends_of(of)[here[data] :][:2]) for unit, of in each}
        kept = job.recipe.states
        self.sharded = {s.tensor: s.sharded(job.zero) and degrees[data] > 1 for s in kept}
        self.arrays = {s.tensor: self._states(s) for s in kept}
        """Tensor class -> unit -> what this rank keeps: flat, all of it or its part."""
        for unit in self.units:
            self._draw(unit)
        self.numbers = {name: np.zeros(()) for name in ("loss", "updates", "scale")}
        self.batch: Batch | None = None
        self._drawn: tuple[int, Any] = -1, None
        self._write: Write | None = None
        self._brought: dict[str, T.Placed] = {}
        self.resume(0)
        state = self._state_of(program)
        self._runner = self._interpreter(program, state)
        self._end = None if end is None else self._interpreter(end, state)

    def _states(self, state: Any) -> dict[str, Any]:
        """By unit, zeros of one tensor class: of all its numbers, or where it is sharded of this
        rank's."""
        dtype = as_dtype(self.job.dtype if state.bytes == 2 else f"float{8 * state.bytes}")
        made = {}
        for unit, size in self.sizes.items():
            here = self.parts[unit] if self.sharded[state.tensor] else slice(0, size)
            made[unit] = self.pool.empty(state.tensor, (here.stop - here.start,), dtype)
            made[unit][...] = 0
        return made

    def _state_of(self, program: Program) -> dict[str, Any]:
        """By buffer, what the program finds on this rank."""
        state: dict[str, Any] = dict(self.numbers)
        for tensor, arrays in self.arrays.items():
            state |= {flat_name(tensor, unit): array for unit, array in arrays.items()}
        for unit in self.units:
            name = flat_name("owned", unit)
            if name in program.role(self.rank.index).state:
                # numbers that are stepped here, and that no tensor rank before this one holds
                of = [t.owned(self.slice).ravel() for t in self.tilings[unit].values()]
                owned = np.concatenate(of)[self.parts[unit] if self.job.zero else ...]
                state[name] = None if owned.all() else self.rank.on_device(owned)
        model, how = self.job.model, {"dtype": self.job.dtype, "xp": self.rank.backend}
        if model.gated:
            at, (*_, width) = np.arange(model.sequence), model.head_counts
            state["angles"] = tile.rotary_angles(at, width, base=model.base, **how)
        return state

    def _interpreter(self, program: Program, state: Mapping[str, Any]) -> Interpreter:
        return Interpreter(self.rank, program, state, self._bind)

    def _bind(self, op: Op, _: str, options: dict[str, Any]) -> Callable[..., Any]:
        if op.name in DRAWN:
            return partial(self._tokens, DRAWN[op.name])
        kernel = getattr(self, f"_{op.name}", None) or KERNELS[op.name]
        return partial(kernel, **options) if options else kernel

    def step(self, batch: Batch) -> float:
        """The loss of this rank's rows: the sum of their tokens' over all tokens of all ranks; 0
        on ranks without the last stage. The weights are those after the step."""
        self.batch, self._drawn = batch, (-1, None)
        self._runner.run()
        return float(self.numbers["loss"])

    def end(self, write: Write) -> dict[str, T.Placed]:
        """The weights by "unit.name", whole but for the tensor ranks' blocks; ``write`` is called
        with what a checkpoint is made of, if there is one."""
        self._write = write
        if self._end is None:
            self._bring(*self.arrays["weights"].values(), units=self.units)
        else:
            self._end.run()
        return self._brought

    def resume(self, updates: int) -> None:
        """Go on after so many updates, with the loss scale that there is now."""
        self.numbers["updates"][...] = updates
        self.numbers["scale"][...] = self.scale.scale if self.scale else 1.0

    # -- what is kept -----------------------------------------------------------------------------

    def _draw(self, unit: str) -> None:
        """Newly drawn weights of a unit, one after the other, into those that this rank keeps: all
        of them, or where a tensor class is sharded its part."""
        kept = [tensor for tensor in ("weights", MASTER) if tensor in self.arrays]
        at = 0
        for size, drawn in self._draws(unit):
            flat = None
            for tensor in kept:
                mine = self.parts[unit] if self.sharded[tensor] else slice(0, self.sizes[unit])
                low, high = max(at, mine.start), min(at + size, mine.stop)
                if low < high:
                    flat = drawn().reshape(-1) if flat is None else flat
                    here = slice(low - mine.start, high - mine.start)
                    self.arrays[tensor][unit][here] = flat[low - at : high - at]
            at += size

    def _draws(self, unit: str) -> Iterator[tuple[int, Callable[[], Any]]]:
        """(how many numbers, what draws them) of a unit's weights, one after the other."""
        options = accumulator(self.job.dtype), self.rank.backend
        for name, parameter in self.job.model.parameters(unit).items():
            part = part_of(self.tilings[unit][name], self.slice)
            given = parameter, self.job.seed, f"{unit}.{name}", part, *options
            yield prod(self.shapes[unit][name]), partial(draw, *given)

    # -- kernels ----------------------------------------------------------------------------------

    def _tokens(self, which: int) -> Any:
        """ids or targets of the micro-batch under way, drawn once for both."""
        microbatch = self._runner.microbatch
        if self._drawn[0] != microbatch:
            assert self.batch is not None
            self._drawn = microbatch, self.batch(microbatch)
        return self.rank.on_device(self._drawn[1][which])

    def _add_loss(self, total: np.ndarray, loss: Any, shares: int = 1) -> None:
        """``shares``: how many ranks have the same loss, of which each counts its share."""
        total += float(loss) / shares

    def _square_sum(self, *reads: Any, masked: tuple[bool, ...]) -> np.ndarray:
        """In float64, of flat gradients, or of the numbers of one that its mask says are counted
        here. What is not finite counts wherever it is: a replica would be stepped alone."""
        left, total = iter(reads), 0.0
        for has_mask in masked:
            wide = next(left).astype(np.float64)
            mine, square = next(left) if has_mask else None, wide @ wide
            if mine is not None and math.isfinite(square):
                wide = wide[mine]
                square = wide @ wide
            total += float(square)
        return np.asarray(total, np.float64)

    def _guard(self, total: Any, scale: np.ndarray) -> tuple[float, float]:
        """What gradients are multiplied with, not a number if there is no step to take, and what
        they are divided by; alike on all ranks.

        ``total``: the squares of all gradients, scaled as the loss is; what several ranks hold (a
        norm's weights on tensor ranks, a tied table on two stages) is in it once.
        """
        divisor = float(scale)
        self.norm = math.sqrt(float(total)) / divisor
        self.scale, factor = guarded(self.norm, self.scale, self.job.clip)
        if self.scale is not None:
            scale[...] = self.scale.scale
        return np.nan if factor is None else factor, divisor

    def _write_checkpoint(self, loss: Any, *flat: Any, what: tuple[tuple[str, str], ...]) -> None:
        assert self._write is not None
        found = zip(what, flat, strict=True)
        self._write(float(loss), {at: unpacked(array, self.shapes[at[1]]) for at, array in found})

    def _bring(self, *flat: Any, units: tuple[str, ...]) -> None:
        for unit, weights in zip(units, flat, strict=True):
            for name, array in unpacked(weights, self.shapes[unit]).items():
                self._brought[f"{unit}.{name}"] = T.Placed(array, self.tilings[unit][name])

    def _cast(self, weights: Any) -> Any:
        return weights.astype(as_dtype(self.job.dtype))

    def _advance(self, updates: np.ndarray) -> None:
        updates += 1

    def _step(
        self,
        updates: np.ndarray,
        gradients: Any,
        *reads: Any,
        states: tuple[str, ...],
        part: RankPart | None = None,
    ) -> Any:
        """The optimizer's step of a unit's numbers that are this rank's, in place; with ``part``,
        the weights that it stepped."""
        mine = dict(zip(states, reads, strict=False))
        factor, divisor = reads[len(states) :] or (1.0, 1.0)
        new = None
        if part is not None:
            mine["weights"] = new = mine["weights"][part.here]
        stepped(self.job.rule, gradients, mine, int(updates), factor, divisor)
        return new
