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
from math import prod
from typing import Any

import numpy as np

from tiledask.distributed import tensor as T
from tiledask.distributed.programs.runner import Interpreter
from tiledask.distributed.ranks.group import Group
from tiledask.distributed.ranks.rank import Rank
from tiledask.plan.intervals import ends_of
from tiledask.plan.program.making.zero import flat_name, sharded_parts
from tiledask.plan.program.ops import Op
from tiledask.plan.program.program import Program
from tiledask.tile import layers as tile
from tiledask.tile.backend import accumulator, array_namespace, as_dtype
from tiledask.tile.epilogue import pieces
from tiledask.tile.layers.by_name import KERNELS, RankPart
from tiledask.tile.memory import Pool
from tiledask.tile.optimizers import LossScale, guarded, update

__all__ = ["Guard", "Packing", "Trainer"]

MASTER = "master weights"
Batch = Callable[[int], tuple[np.ndarray, np.ndarray]]
"""Micro-batch -> (ids, targets), each [rows, tokens], or (images, classes), of this rank's copy of
the model."""
Write = Callable[[float, Mapping[tuple[str, str], Mapping[str, Any]]], None]
"""Of the last step's loss and (tensor class, unit) -> this rank's arrays by name."""


class Packing:
    """Arrays by name as one flat array, and back; ``shapes``: of each, in their order.

    >>> packing = Packing({"w": (2, 2), "b": (2,)})
    >>> packing.pack({"b": np.array([4, 5]), "w": np.array([[0, 1], [2, 3]])}).tolist()
    [0, 1, 2, 3, 4, 5]
    """

    def __init__(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self.shapes = dict(shapes)
        ends = ends_of(map(prod, shapes.values()))
        self.size = ends[-1]
        """Numbers in all arrays."""
        self._places = dict(zip(shapes, map(slice, ends, ends[1:]), strict=False))

    def pack(self, arrays: Mapping[str, Any]) -> Any:
        """A new flat array."""
        parts = [arrays[name].reshape(-1) for name in self.shapes]
        return array_namespace(*parts).concatenate(parts)

    def unpack(self, flat: Any) -> dict[str, Any]:
        """The arrays by name: views of ``flat``."""
        return {name: flat[at].reshape(self.shapes[name]) for name, at in self._places.items()}


class Guard:
    """Decides, alike on all ranks, by what gradients are multiplied and whether a step is taken.

    The norm is of all gradients, over all ranks; what several ranks hold (a norm's weights on
    tensor ranks, a tied table on two stages) is counted once. If it is not finite the step is left
    out on every rank, and the loss scale falls; above ``clip`` every gradient is multiplied by
    clip / norm.
    """

    def __init__(self, scale: LossScale | None, clip: float | None) -> None:
        self.scale, self.clip = scale, clip
        self.norms: list[float] = []
        """The norm in every step so far: of the loss's own gradients, before they are clipped."""

    @property
    def loss_scale(self) -> float:
        """The factor of the next loss."""
        return 1.0 if self.scale is None else self.scale.scale

    def factor(self, squares: float) -> float | None:
        """What gradients are multiplied with; None if there is no step to take.

        ``squares``: the sum of all gradients', in float64, scaled as the loss is.
        """
        self.norms.append(math.sqrt(squares) / self.loss_scale)
        self.scale, factor = guarded(self.norms[-1], self.scale, self.clip)
        return factor


def squares(flat: Any, mine: Any) -> float:
    """The sum of squares, in float64, of the numbers of ``flat`` where ``mine`` is true, or of all.

    What is not finite counts wherever it is: a replica that overflows alone would be stepped alone.

    >>> squares(np.full(3, 300, np.float16), np.array([True, False, True]))
    180000.0
    """
    wide = flat.astype(np.float64)
    total = wide @ wide
    if mine is not None and math.isfinite(total):
        wide = wide[mine]
        total = wide @ wide
    return float(total)


class Trainer:
    """One rank's part of a model, with newly drawn weights: those that one device would draw.

    ``job``: a RankConfig; ``program``: of a step of it; ``end``: of what follows the last, if
    anything does; ``pool``: in which its states lie.
    """

    flops = 0
    """Of the last step's products, where they are counted."""

    def __init__(
        self,
        rank: Rank,
        job: Any,
        program: Program,
        end: Program | None = None,
        pool: Pool | None = None,
    ) -> None:
        self.rank, self.job = rank, job
        self.pool = Pool(backend=rank.backend) if pool is None else pool
        self.guard = Guard(job.scale, job.clip)
        copies, self.tensor, stages = (self._along(program, axis) for axis in job.axes)
        self.units = job.units(stages.rank)
        self.tilings = {unit: job.model.tilings(unit, self.tensor.size) for unit in self.units}
        self.packings = {
            unit: Packing(job.model.shapes(unit, self.tensor.size, self.tensor.rank))
            for unit in self.units
        }
        sizes = {unit: packing.size for unit, packing in self.packings.items()}
        self.parts = sharded_parts(sizes, copies.size, copies.rank)
        kept = job.recipe.states
        self.sharded = {s.tensor: s.sharded(job.zero) and copies.size > 1 for s in kept}
        self.arrays = {s.tensor: self._states(s) for s in kept}
        """Tensor class -> unit -> what this rank keeps: flat, all of it or its part."""
        for unit in self.units:
            drawn = [tensor for tensor in ("weights", MASTER) if tensor in self.arrays]
            self.draw(unit, {tensor: self.arrays[tensor][unit] for tensor in drawn})
        self.numbers = {name: np.zeros(()) for name in ("loss", "updates", "scale")}
        self.numbers["scale"][...] = self.guard.loss_scale
        self.batch: Batch | None = None
        self._drawn: tuple[int, Any] = -1, None
        state = self._state_of(program)
        self._runner = self._interpreter(program, state)
        self._end = None if end is None else self._interpreter(end, state)
        self._write: Write | None = None
        self._brought: dict[str, T.Placed] = {}

    def _state_of(self, program: Program) -> dict[str, Any]:
        """By buffer, what the program finds on this rank."""
        state: dict[str, Any] = dict(self.numbers)
        for tensor, arrays in self.arrays.items():
            state |= {flat_name(tensor, unit): array for unit, array in arrays.items()}
        for unit in self.units:
            name = flat_name("owned", unit)
            if name in program.role(self.rank.index).state:
                owned = self._owned(unit)
                state[name] = None if owned.all() else self.rank.on_device(owned)
        model, xp = self.job.model, self.rank.backend
        if model.gated:
            at, width = np.arange(model.sequence), model.head_counts.width
            state["angles"] = tile.rotary_angles(
                at, width, base=model.base, dtype=self.job.dtype, xp=xp
            )
        return state

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

    def _along(self, program: Program, axis: int) -> Group:
        """The ranks that differ from this one along an axis of the program's mesh only."""
        return self.rank.group().among(program.along(self.rank.index, (axis,)))

    def _interpreter(self, program: Program, state: Mapping[str, Any]) -> Interpreter:
        return Interpreter(self.rank, program, state, self._bind)

    def close(self) -> None:
        """Let go of all arrays at once."""
        for interpreter in filter(None, (self._runner, self._end)):
            interpreter.close()
        for units in self.arrays.values():
            units.clear()

    # -- what is kept -----------------------------------------------------------------------------

    @property
    def updates(self) -> int:
        """How many steps were taken."""
        return int(self.numbers["updates"])

    def resume(self, updates: int) -> None:
        """Go on after so many updates, with the guard's scale."""
        self.numbers["updates"][...] = updates
        self.numbers["scale"][...] = self.guard.loss_scale

    @property
    def held(self) -> dict[str, int]:
        """Bytes that this rank keeps, by tensor class."""
        return {
            tensor: sum(array.nbytes for array in arrays.values())
            for tensor, arrays in self.arrays.items()
        }

    def put(self, tensor: str, unit: str, arrays: Mapping[str, Any]) -> None:
        """Take the numbers of a unit from arrays by weight: of all of them this rank's part."""
        flat, kept = self.packings[unit].pack(arrays), self.arrays[tensor][unit]
        kept[...] = flat[self.parts[unit]] if self.sharded[tensor] else flat

    def draw(self, unit: str, into: Mapping[str, Any]) -> None:
        """Newly drawn weights of a unit, one after the other, into flat arrays by tensor class: of
        all numbers, or where the class is sharded of this rank's."""
        whole, at = slice(0, self.packings[unit].size), 0
        for size, drawn in self._draws(unit):
            flat = None
            for tensor, kept in into.items():
                mine = self.parts[unit] if self.sharded.get(tensor) else whole
                low, high = max(at, mine.start), min(at + size, mine.stop)
                if low < high:
                    flat = drawn() if flat is None else flat
                    kept[low - mine.start : high - mine.start] = flat[low - at : high - at]
            at += size

    def _draws(self, unit: str) -> Iterator[tuple[int, Callable[[], Any]]]:
        """(how many numbers, what draws them) of a unit's weights, one after the other."""
        job, shapes = self.job, self.packings[unit].shapes
        layout = {name: tiling.placements[0] for name, tiling in self.tilings[unit].items()}
        options = layout, job.seed, f"{unit}.", accumulator(job.dtype), self.rank.backend

        def drawn(one: dict[str, Any]) -> Any:
            (w,) = T.draw_sharded(self.tensor, one, *options).values()
            return w.local.reshape(-1)

        for name, parameter in job.model.parameters(unit).items():
            yield prod(shapes[name]), partial(drawn, {name: parameter})

    def _states(self, state: Any) -> dict[str, Any]:
        dtype = as_dtype(self.job.dtype if state.bytes == 2 else f"float{8 * state.bytes}")
        made = {}
        for unit, packing in self.packings.items():
            here = self.parts[unit]
            size = here.stop - here.start if self.sharded[state.tensor] else packing.size
            made[unit] = self.pool.empty(state.tensor, (size,), dtype)
            made[unit][...] = 0
        return made

    def _owned(self, unit: str) -> np.ndarray:
        """Which of the numbers that are stepped here no tensor rank before this one holds."""
        tilings = self.tilings[unit].values()
        flat = np.concatenate([tiling.owned(self.tensor.rank).ravel() for tiling in tilings])
        return flat[self.parts[unit]] if self.job.zero else flat

    # -- kernels ----------------------------------------------------------------------------------

    def _bind(self, op: Op, _: str, options: dict[str, Any]) -> Callable[..., Any]:
        kernel = getattr(self, f"_{op.name}", None) or KERNELS[op.name]
        return partial(kernel, **options) if options else kernel

    def _tokens(self, which: int) -> Any:
        """ids or targets of the micro-batch under way, drawn once for both."""
        microbatch = self._runner.microbatch
        if self._drawn[0] != microbatch:
            assert self.batch is not None
            self._drawn = microbatch, self.batch(microbatch)
        return self.rank.on_device(self._drawn[1][which])

    def _ids(self, rows: int) -> Any:
        return self._tokens(0)

    def _targets(self, rows: int) -> Any:
        return self._tokens(1)

    _images, _classes = _ids, _targets

    def _add_loss(self, total: np.ndarray, loss: Any, shares: int = 1) -> None:
        """``shares``: how many ranks have the same loss, of which each counts its share."""
        total += float(loss) / shares

    def _square_sum(self, *reads: Any, masked: tuple[bool, ...]) -> np.ndarray:
        left, total = iter(reads), 0.0
        for has_mask in masked:
            g = next(left)
            total += squares(g, next(left) if has_mask else None)
        return np.asarray(total, np.float64)

    def _guard(self, total: Any, scale: np.ndarray) -> tuple[float, float]:
        divisor = float(scale)
        factor = self.guard.factor(float(total))
        scale[...] = self.guard.loss_scale
        return (np.nan if factor is None else factor), divisor

    def _write_checkpoint(self, loss: Any, *flat: Any, what: tuple[tuple[str, str], ...]) -> None:
        whole = {
            (tensor, unit): self.packings[unit].unpack(array)
            for (tensor, unit), array in zip(what, flat, strict=True)
        }
        assert self._write is not None
        self._write(float(loss), whole)

    def _bring(self, *flat: Any, units: tuple[str, ...]) -> None:
        for unit, weights in zip(units, flat, strict=True):
            for name, array in self.packings[unit].unpack(weights).items():
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
        for piece in pieces(gradients):
            of_piece = {tensor: array[piece] for tensor, array in mine.items()}
            made = update(
                self.job.rule,
                of_piece,
                gradients[piece],
                int(updates),
                float(factor),
                float(divisor),
            )
            for tensor, array in of_piece.items():
                array[...] = made[tensor]
        return new
