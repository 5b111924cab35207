"""One rank's stages: forward and backward of a micro-batch, what comes and goes between them.

    F(s, i)   recv x from the rank of stage s-1   units forward    send y to that of stage s+1
    B(s, i)   recv dy from that of stage s+1      units backward   send dx to that of stage s-1

No rank can wait for ever. A send never waits for its recv: the message is taken into the receiver's
mailbox in whatever collective it is. So a rank waits only for what an action needs, and an order
that validates (no action needs one that comes after it) runs to its end. Messages of one rank to
another arrive in the order in which that rank's schedule sends them; one that comes before it is
needed is kept aside.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from tiledask.distributed import tensor as T
from tiledask.distributed.ranks.rank import Rank
from tiledask.distributed.tensor.shards import Shardings
from tiledask.distributed.training.gpt import Flow, Weights, embed, embed_grad, head, head_grad
from tiledask.distributed.training.grad_norm import Guard
from tiledask.distributed.training.states import States
from tiledask.plan.pipelines.schedule import Action, Schedule
from tiledask.tile import layers as tile

__all__ = ["PIPELINE", "Batch", "Stages", "messages", "next_stage"]

PIPELINE = 2
"""The mesh's axis of stages."""
Batch = Callable[[int], tuple[np.ndarray, np.ndarray]]
"""Micro-batch -> (ids, targets), each [rows, tokens], of this rank's copy of the model."""


class _Kept(NamedTuple):
    """What a forward leaves for its backward."""

    embed: Any
    blocks: list[Any]
    head: Any


class Stages:
    """The stages that one rank holds, for one step after the other."""

    def __init__(
        self,
        rank: Rank,
        flow: Flow,
        schedule: Schedule,
        cut: tuple[int, ...],
        states: States,
        layouts: dict[str, Shardings],
        angles: tile.Angles | None,
        guard: Guard,
    ) -> None:
        self.rank, self.flow, self.schedule, self.states = rank, flow, schedule, states
        self.layouts, self.angles, self.group = layouts, angles, rank.group(PIPELINE)
        self.last = schedule.stages - 1
        self.units = {s: flow.model.stage_units(s, cut) for s in range(schedule.stages)}
        self.guard = guard
        self._specs: dict[str, dict[str, T.Placed]] = {}
        """By unit and name: the placement of its arrays, which is the same in every step."""
        self._owned = {unit: self._counted(unit) if guard.active else None for unit in layouts}

    def step(self, batch: Batch, count: int) -> float:
        """The loss of this rank's rows: the sum of their tokens' over ``count``, all tokens of all
        ranks; 0 on ranks without the last stage. The weights are those after the step."""
        self._kept: dict[tuple[int, int], _Kept] = {}
        self._losses = 0.0
        self._aside: dict[Action, Any] = {}
        others = range(self.schedule.devices)
        self._messages = {d: messages(self.schedule, d, self.group.rank) for d in others}
        for action in self.schedule.orders[self.group.rank]:
            with self.rank.label(str(action)):
                if action.kind == "F":
                    self._forward(action, *batch(action.microbatch), count)
                else:
                    self._backward(action)
        with self.rank.label("update"):
            self.states.finish(self._sum_tied, self.guard, self._owned)
        return self._losses

    # -- one micro-batch ----------------------------------------------------------------------

    def _forward(self, action: Action, ids: np.ndarray, targets: np.ndarray, count: int) -> None:
        _, s, i = action
        weights, model, flow = self._weights("forward"), self.flow.model, self.flow
        of_embed, of_head, blocks = None, None, []
        if s == 0:
            x, of_embed = embed(flow, weights, self.rank.on_device(ids))
        else:
            x = self._receive(action)
        for unit in self._blocks(s):
            mine = weights(unit)
            with self.rank.label(unit):
                x, kept = T.decoder_block(flow.group, x, mine, model.block, self.angles)
            blocks.append(kept)
        if s == self.last:
            loss, of_head = head(flow, weights, x, self.rank.on_device(targets), count)
            self._losses += float(loss)
        else:
            self._send(action, x)
        self._kept[s, i] = _Kept(of_embed, blocks, of_head)

    def _backward(self, action: Action) -> None:
        _, s, i = action
        kept, weights, flow = self._kept.pop((s, i)), self._weights("backward"), self.flow
        if s == self.last:
            dx, grads = head_grad(flow, kept.head, weights, self.guard.loss_scale)
            self._add(grads)
        else:
            dx = self._receive(action)
        for unit in reversed(self._blocks(s)):
            mine, of_block = weights(unit), kept.blocks.pop()
            with self.rank.label(unit):
                dx, of_unit = T.decoder_block_grad(flow.group, dx, of_block, mine, flow.model.block)
            self._add({unit: of_unit})
        if s == 0:
            self._add(embed_grad(flow, dx, kept.embed, weights))
        else:
            self._send(action, dx)

    def _blocks(self, stage: int) -> list[str]:
        return [unit for unit in self.units[stage] if unit.startswith("layer")]

    def _weights(self, when: str) -> Callable[[str], Weights]:
        return lambda unit: self.placed(unit, self.states.weights(unit, when))

    def placed(self, unit: str, arrays: Mapping[str, Any]) -> Weights:
        """A unit's arrays of this rank, with what they are a part of."""
        if unit not in self._specs:
            self._specs[unit] = {name: self._spec(unit, name, w) for name, w in arrays.items()}
        specs = self._specs[unit]
        return {name: T.Placed(w, *specs[name][1:]) for name, w in arrays.items()}

    def _spec(self, unit: str, name: str, w: Any) -> T.Placed:
        split = self.layouts[unit][name].split
        return (T.sharded(self.flow.group, w, *split) if split else T.replicate(w)).spec

    def _add(self, grads: dict[str, Weights]) -> None:
        for unit, found in grads.items():
            self.states.add(unit, {name: g.local for name, g in found.items()})

    def _counted(self, unit: str) -> Any:
        """Which numbers of a unit no rank before this one holds, flat as `States` has them; None
        for all. Copies of the model are not looked at: ZeRO shards them, or all have the same."""
        first, here = self.schedule.place[0], self.group.rank
        again = self.flow.model.tied and unit == "embedding" and here != first
        parts = []
        for name, parameter in self.flow.model.parameters(unit).items():
            sharding = self.layouts[unit][name]
            parts.append(sharding.owned(parameter.shape, self.flow.group.rank) & (not again))
        flat = np.concatenate([part.ravel() for part in parts])
        return None if flat.all() else self.rank.on_device(flat)

    def _sum_tied(self, gradients: dict[str, Any]) -> None:
        """The first and the last stage both have the table: its gradient is the sum of both's."""
        first, last = self.schedule.place[0], self.schedule.place[-1]
        if self.flow.model.tied and first != last and self.group.rank in (first, last):
            with self.rank.label("tied table"):
                both = self.group.among(sorted((first, last)))
                gradients["embedding"] = both.all_reduce(gradients["embedding"])

    # -- between stages -----------------------------------------------------------------------

    def _send(self, action: Action, x: T.Placed) -> None:
        to = self.schedule.place[next_stage(action)]
        goes = action._replace(stage=next_stage(action))
        if to == self.group.rank:
            self._aside[goes] = x.local
        else:
            self.group.send(x.local, to)

    def _receive(self, action: Action) -> T.Placed:
        """What the stage before (of a backward: behind) has for this action."""
        before = action.stage + (-1 if action.kind == "F" else 1)
        source = self.schedule.place[before]
        while action not in self._aside:
            comes = next(self._messages[source])
            self._aside[comes] = self.group.recv(source)
        return self.flow.placed(self._aside.pop(action))


def next_stage(action: Action) -> int:
    """Where what it makes is needed.

    >>> next_stage(Action("F", 1, 0)), next_stage(Action("B", 1, 0))
    (2, 0)
    """
    return action.stage + (1 if action.kind == "F" else -1)


def messages(schedule: Schedule, source: int, to: int) -> Iterator[Action]:
    """The actions on ``to`` that ``source`` sends something for, in the order of its sends.

    >>> from tiledask.plan.pipelines.schedules import schedule
    >>> [str(a) for a in messages(schedule("1f1b", stages=2, microbatches=2), 0, 1)]
    ['1F0', '1F1']
    """
    for action in schedule.orders[source]:
        goes = action._replace(stage=next_stage(action))
        if 0 <= goes.stage < schedule.stages and schedule.place[goes.stage] == to != source:
            yield goes
