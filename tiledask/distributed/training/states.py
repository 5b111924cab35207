"""What a rank keeps of its stages' weights: gradients added up over micro-batches, then one step.

             each micro-batch              after the last
ZeRO 0       +=                            all_reduce, step
ZeRO 1       +=                            reduce_scatter, step of a part, all_gather
ZeRO 2       reduce_scatter, += a part     step of a part, all_gather
ZeRO 3       reduce_scatter, += a part     step of a part         (weights: all_gather per use)
"""

from collections.abc import Callable, Mapping
from typing import Any

from tiledask.distributed.data_parallel.zero import Zero
from tiledask.distributed.training.grad_norm import Guard, squares

__all__ = ["States"]


class States(Zero):
    """Weights, gradients and the optimizer's states of several micro-batches' training."""

    def weights(self, name: str, when: str) -> Mapping[str, Any]:
        """A unit's weights by name; under ZeRO-3 gathered, and let go of by whoever asked."""
        flat = self.arrays["weights"][name]
        if self._sharded["weights"]:
            flat = self._gather(name, f"weights/{when}", flat)
        return self._packings[name].unpack(flat)

    def gathered(self, tensor: str, name: str) -> Mapping[str, Any]:
        """All of a unit's numbers of a tensor class, by weight."""
        flat = self.arrays[tensor][name]
        if self._sharded[tensor]:
            flat = self._gather(name, tensor, flat)
        return self._packings[name].unpack(flat)

    def put(self, tensor: str, name: str, arrays: Mapping[str, Any]) -> None:
        """Take the numbers of a unit from arrays by weight: of all of them this rank's part."""
        flat, kept = self._packings[name].pack(arrays), self.arrays[tensor][name]
        kept[...] = flat[self._part(name)] if self._sharded[tensor] else flat

    def add(self, name: str, grads: Mapping[str, Any]) -> None:
        """Add a micro-batch's gradients of a unit to those of the step."""
        kept = self.arrays["gradients"][name]
        if not self._sharded["gradients"]:
            self._packings[name].add(kept, grads)
        else:
            flat = self._packings[name].pack(grads).astype(kept.dtype, copy=False)
            with self.group.label(name, "gradients"):
                flat = self.group.reduce_scatter(
                    flat, extents=self._extents[name], algorithm=self.algorithm
                )
            kept += flat

    def finish(
        self, tie: Callable[[dict[str, Any]], None], guard: Guard, owned: Mapping[str, Any]
    ) -> None:
        """The optimizer's step with the gradients that were added; these are 0 afterwards.

        ``tie`` may change the gradients before they are summed over the ranks; ``guard`` may leave
        the step out, and then weights and states stay. ``owned``: by unit, which of its numbers
        are counted in the norm here (None: all).
        """
        gradients = self.arrays["gradients"]
        tie(gradients)
        if not self._sharded["gradients"]:
            for name in self._packings:
                self._add_up(name)
        factor: float | None = 1.0
        if guard.active:
            self.scale = guard.loss_scale
            factor = guard.factor(sum(self._squares(n, owned[n]) for n in self._packings))
        if factor is not None:
            self._take(factor)
        for name in self._packings:
            gradients[name][...] = 0

    def _squares(self, name: str, owned: Any) -> float:
        return squares(
            self._mine("gradients", name), None if owned is None else owned[self._part(name)]
        )

    def _take(self, factor: float) -> None:
        """A step by gradients ``factor`` times what was added up."""
        self.steps += 1
        for name in self._packings:
            self._update(name, factor)
        if self.zero and not self._sharded["weights"]:
            for name in self._packings:
                mine = self._mine("weights", name)
                self.arrays["weights"][name] = self._gather(name, "weights", mine)
