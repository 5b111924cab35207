"""What a rank keeps of its units' weights, as a program says it: ZeRO, and the update.

             each micro-batch              after the last
ZeRO 0       +=                            all_reduce, step
ZeRO 1       +=                            reduce_scatter, step of a part, all_gather
ZeRO 2       reduce_scatter, += a part     step of a part, all_gather
ZeRO 3       reduce_scatter, += a part     step of a part         (weights: all_gather per use)

Each unit's numbers are one flat buffer per tensor class, of which a rank keeps all or its part
(Rajbhandari et al. 2020, arXiv:1910.02054).
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from math import prod
from typing import Any

from tiledask.plan.collectives.shards import shards
from tiledask.plan.program.making.layers import LayerWeights
from tiledask.plan.program.making.tape import Tape, Value
from tiledask.plan.program.ops import Op

__all__ = ["DATA", "PIPELINE", "UnitStates", "flat_name"]

DATA, PIPELINE = 0, 2
"""Axes of the mesh."""


def flat_name(tensor: str, unit: str) -> str:
    """The buffer of a tensor class of a unit: "master_weights/layer_0"."""
    return f"{tensor}/{unit}".replace(" ", "_")


class UnitStates(LayerWeights):
    """The weights of a rank's units, and what their update is."""

    def __init__(
        self,
        tape: Tape,
        shapes: Mapping[str, Mapping[str, tuple[int, ...]]],
        recipe: Any,
        zero: int,
        copies: int,
        copy: int,
        together: tuple[str, tuple[int, ...]] | None = None,
    ) -> None:
        """``together``: (label, axes) of one sum of all units' gradients, over ``copies`` ranks."""
        self.tape, self.shapes, self.recipe = tape, shapes, recipe
        self.together = together
        self.copies, self.zero, self.copy = copies, zero if copies > 1 else 0, copy
        self.sizes = {unit: sum(map(prod, of.values())) for unit, of in shapes.items()}
        self.extents = dict(zip(shapes, shards([*self.sizes.values()], copies), strict=True))
        self.sharded = {s.tensor: s.sharded(self.zero) for s in recipe.states}
        self.bytes = {s.tensor: s.bytes for s in recipe.states}
        self._flat: dict[str, Value] = {}
        self._pile: dict[str, dict[str, Value]] = {}
        self.state: dict[str, int] = {}
        self.accumulators = {flat_name("gradients", unit) for unit in shapes}
        self.constants = set[str]()
        self.at_end: dict[str, Callable[[dict[Value, Value]], Any]] = {}
        """By unit, what is done where its backward ends, before its gradients are summed up."""
        for state in recipe.states:
            for unit in shapes:
                kept = self._kept(state.tensor, unit)
                self.state[kept.name] = kept.size * kept.itemsize
                if not self.sharded[state.tensor]:
                    tape.items[kept.name] = tuple(self.shapes[unit].items())

    def _kept(self, tensor: str, unit: str) -> Value:
        size = self.extents[unit][self.copy] if self.sharded[tensor] else self.sizes[unit]
        return Value(flat_name(tensor, unit), (size,), self.bytes[tensor])

    # -- weights of layers ----------------------------------------------------------------------

    @contextmanager
    def scope(self, unit: str, when: str = "forward", again: bool = True) -> Iterator[None]:
        """The block is a unit's forward; ``again``: whether its backward needs weights."""
        self._open(unit, when)
        self.tape.rules.append((None, lambda _: self._finish(unit)))
        if unit in self.at_end:
            self.tape.rules.append((None, self.at_end[unit]))
        yield
        if again and self.sharded["weights"]:
            self.tape.rules.append((None, lambda _: self._open(unit, "backward")))

    def _open(self, unit: str, when: str) -> None:
        """A unit's weights are there, as wide as layers compute with them."""
        mine, width = self._kept("weights", unit), self.recipe.gathered_bytes
        if self.sharded["weights"] and mine.itemsize != width:
            cast = self.tape.value("cast", mine.shape, width)
            self.tape.ops.append(Op("cast", (mine.name,), (cast.name,), stream="dp"))
            mine = cast
        self._flat[unit] = self.whole("weights", unit, f"/{when}", mine)

    def whole(self, tensor: str, unit: str, when: str = "", mine: Value | None = None) -> Value:
        """All numbers of a unit: gathered, where this rank keeps a part of them, ``mine``."""
        mine = mine or self._kept(tensor, unit)
        if not self.sharded[tensor]:
            return mine
        shape, items = (self.sizes[unit],), tuple(self.shapes[unit].items())
        return self._among("all_gather", unit, mine, f"{tensor}{when}", shape=shape, items=items)

    def _among(self, kind: str, unit: str, x: Value, label: str, **args: Any) -> Value:
        """A collective among the copies of the model, of the parts of a unit that these keep."""
        args |= {"counts": self.extents[unit], "stream": "dp"}
        return self.tape.together(kind, x, f"{unit}/{label}", (DATA,), **args)

    def weight(self, unit: str, name: str) -> Value:
        """An array of a unit as it is now."""
        flat = self._flat[unit]
        return Value(f"{flat.name}[{name}]", self.shapes[unit][name], flat.itemsize)

    def bring(self, unit: str, found: Mapping[str, Value]) -> None:
        """Gradients are added up; where these are sharded, when the unit's are all there."""
        if self.sharded["gradients"]:
            self._pile.setdefault(unit, {}).update(found)
            return
        for name, g in found.items():
            kept = f"{flat_name('gradients', unit)}[{name}]"
            total = Value(kept, g.shape, self.bytes["gradients"])
            self.tape.do("accumulate", (total, g), (total,))

    def _finish(self, unit: str) -> None:
        """A unit's backward is done, of a micro-batch."""
        found = self._pile.pop(unit, {})
        if not found:
            return
        tape, kept = self.tape, self._kept("gradients", unit)
        with tape.gradients_of_weights(later=True):
            flat = tape.value("packed", (self.sizes[unit],), kept.itemsize)
            dtype = f"float{8 * kept.itemsize}" if kept.itemsize != tape.itemsize else None
            tape.do("pack", [found[n] for n in self.shapes[unit]], (flat,), dtype=dtype)
            part = self._among("reduce_scatter", unit, flat, "gradients", shape=kept.shape)
            tape.do("accumulate", (kept, part), (kept,))

    # -- the update -----------------------------------------------------------------------------

    def begin(self) -> None:
        """Nothing is summed up yet."""
        for unit in self.shapes:
            self.tape.do("clear", (), (self._kept("gradients", unit),))

    def update(
        self,
        among: Mapping[str, tuple[str, tuple[int, ...]]],
        norm: Mapping[str, bool] | None = None,
        axes: tuple[int, ...] = (),
        ranks: int = 1,
    ) -> None:
        """The optimizer's step. ``among``: by unit that several pipeline ranks hold, (label of the
        sum, these ranks). ``norm``, of all gradients over ``ranks`` along ``axes``: by unit that
        counts on this pipeline rank, whether some of its numbers count on another tensor rank."""
        tape = self.tape
        mine = {unit: self._kept("gradients", unit) for unit in self.shapes}
        for unit, (label, holders) in among.items():
            g = mine[unit]
            mine[unit] = tape.all_reduce(g, label, (PIPELINE,), len(holders), "pp", among=holders)
            tape.alias[mine[unit].name] = g.name
        if self.together:  # one behind the other in one array
            each = self.bytes["gradients"]
            mine = tape.sum_small(mine, each, *self.together, self.copies, "dp")
        else:
            mine = {unit: self._added_up(unit, g) for unit, g in mine.items()}
        guards = [] if norm is None else self._guard(mine, norm, axes, ranks)
        updates = Value("updates", (), 8)
        tape.do("advance", (updates,), (updates,))
        names = tuple(s.tensor for s in self.recipe.states if s.tensor != "gradients")
        new = {}
        for unit, g in mine.items():
            kept = [self._kept(name, unit) for name in names]
            writes = list(kept)
            if self.zero in (1, 2):
                new[unit] = tape.value("new", g.shape, self.bytes["weights"])
                tape.alias[new[unit].name] = self._kept("weights", unit).name
                writes[names.index("weights")] = new[unit]
            part = ("part", DATA, self.extents[unit]) if self.zero in (1, 2) else None
            tape.do("step", (updates, g, *kept, *guards), writes, states=names, part=part)
        for unit, part_of in new.items():
            self._among("all_gather", unit, part_of, "weights", into=self._kept("weights", unit))

    def _added_up(self, unit: str, g: Value) -> Value:
        """The gradients over the copies of the model, in the place of this one's."""
        if self.copies == 1 or self.sharded["gradients"]:
            return g
        if self.zero:
            shape = (self.extents[unit][self.copy],)
            total = self._among("reduce_scatter", unit, g, "gradients", shape=shape)
        else:
            label = f"{unit}/gradients"
            total = self.tape.all_reduce(g, label, (DATA,), self.copies, "dp")
        self.tape.alias[total.name] = self.tape.alias.get(g.name, g.name)
        return total

    def _guard(
        self, mine: Mapping[str, Value], norm: Mapping[str, bool], axes: tuple[int, ...], ranks: int
    ) -> list[Value]:
        """The norm of all gradients, and by what they are multiplied; the step may be left out."""
        tape, reads = self.tape, []
        for unit, elsewhere in norm.items():
            g = mine[unit]
            reads += [g]
            if elsewhere:
                owned = Value(flat_name("owned", unit), g.shape, 1)
                self.state[owned.name] = owned.size
                self.constants.add(owned.name)
                reads += [owned]
        masked = tuple(norm.values())
        total = tape.make("square_sum", reads, "squares", (), 8, masked=masked)
        total = tape.all_reduce(total, "norm", axes, ranks, "all")
        scale = Value("scale", (), 8)
        names = ("factor", "divisor") if mine else ("factor",)  # some ranks hold nothing
        guards = [tape.value(name, (), 8) for name in names]
        tape.do("guard", (total, scale), (*guards, scale))
        tape.ops.append(Op("stop", (guards[0].name,)))
        return guards
