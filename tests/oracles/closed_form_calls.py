"""What each rank of a training calls in a step, by closed forms alone.

    0F0   embedding/forward, layer 0/attention/wo/forward, ..., send          what a stage calls,
    0B0   recv, layer 0/mlp/w_1/backward, ..., layer 0/gradients (ZeRO 2, 3)  action by action
    update   embedding/gradients, ..., embedding/weights (ZeRO 1, 2)          and over the copies

tp comes from oracles/closed_layers.py, dp from oracles/closed_zero.py; what stages
send is rows x tokens x hidden, over tp if tokens are sharded.
"""

from collections.abc import Iterable, Iterator
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np
from oracles import closed_layers as L

from tiledask.distributed.training.gpt import GPT
from tiledask.plan.collectives.algorithms import default
from tiledask.plan.collectives.cost import cost, even
from tiledask.plan.collectives.shards import shards
from tiledask.plan.pipelines.schedule import Action, Schedule
from tiledask.plan.program.calls import Planned
from tiledask.tile.backend import as_dtype


def calls_of(job: Any, shape: tuple[int, int, int], at: tuple[int, int, int]) -> list[Planned]:
    """What the rank at ``at`` of a (dp, tp, pp) mesh calls in every step of a `TrainingJob`.

    A step that is left out, because something overflowed, ends after "update/norm".
    """
    return _Rank(job, shape, at).step()


class _Rank:
    """Goes through a step action by action, and writes down what would be called."""

    def __init__(self, job: Any, shape: tuple[int, int, int], at: tuple[int, int, int]) -> None:
        self.job = job
        self.model: GPT = job.model
        self.schedule: Schedule = job.schedule
        (self.dp, self.tp, _), (self.d, self.t, self.p) = shape, at
        self.at = at
        self.shape, self.itemsize = shape, as_dtype(job.dtype).itemsize
        self.calls: list[Planned] = []
        units = job.units(self.p)
        self.sizes = [
            sum(map(prod, self.model.shapes(unit, self.tp, self.t).values())) for unit in units
        ]
        self.extents = dict(zip(units, shards(self.sizes, self.dp), strict=True))

    def step(self) -> list[Planned]:
        self.aside: set[Action] = set()
        devices = range(self.schedule.devices)
        self.messages = {d: messages(self.schedule, d, self.p) for d in devices}
        for action in self.schedule.orders[self.p]:
            (self._forward if action.kind == "F" else self._backward)(action)
        self._update()
        return self.calls

    # -- actions --------------------------------------------------------------------------------

    def _forward(self, action: Action) -> None:
        stage, model, x = action.stage, self.model, self._stream(action)
        if stage == 0:
            self._weights(action, "embedding", "forward")
            self._tensor(action, L.embedding(x).forward)
            if not model.gated:
                self._weights(action, "positions", "forward")
        else:
            self._receive(action)
        for unit in self._blocks(stage):
            self._weights(action, unit, "forward")
            self._tensor(action, _block(x, model, unit).forward)
        if stage == self.schedule.stages - 1:
            self._weights(action, "head", "forward")
            if model.tied:
                self._weights(action, "embedding", "forward")
            self._tensor(action, self._head(x).forward)
        else:
            self._send(action)

    def _backward(self, action: Action) -> None:
        stage, model, x = action.stage, self.model, self._stream(action)
        if stage == self.schedule.stages - 1:
            self._weights(action, "head", "backward")
            if model.tied:
                self._weights(action, "embedding", "backward")
            self._tensor(action, self._head(x).backward)
            self._gradients(action, "head")
            if model.tied:
                self._gradients(action, "embedding")
        else:
            self._receive(action)
        for unit in reversed(self._blocks(stage)):
            self._weights(action, unit, "backward")
            self._tensor(action, _block(x, model, unit).backward)
            self._gradients(action, unit)
        if stage > 0:
            self._send(action)
            return
        if not model.gated and self.job.sequence_parallel:
            counts = even(model.sequence * model.hidden, self.tp)
            label = f"{action}/positions/backward"
            self._collective(label, "all_reduce", counts, self.t, self.itemsize)
        self._tensor(action, L.embedding(x).backward)
        if not model.gated:
            self._gradients(action, "positions")
        self._gradients(action, "embedding")

    def _update(self) -> None:
        zero, place = self.job.zero, self.schedule.place
        ends = sorted({place[0], place[-1]})
        if self.model.tied and len(ends) == 2 and self.p in ends:
            held = self.extents["embedding"]
            size = held[self.d] if zero >= 2 else sum(held)
            me = ends.index(self.p)
            of_gradients = self.job.recipe.gradient_bytes
            self._collective("update/tied table", "all_reduce", even(size, 2), me, of_gradients)
        for unit, extents in self.extents.items():
            if zero == 0:
                whole = even(sum(extents), self.dp)
                self._copies(f"update/{unit}/gradients", "all_reduce", whole)
            if zero == 1:
                self._copies(f"update/{unit}/gradients", "reduce_scatter", extents)
        if axes := self.job.guarded:
            extents, at = [self.shape[a] for a in axes], [self.at[a] for a in axes]
            me = int(np.ravel_multi_index(at, extents))
            self._collective("update/norm", "all_reduce", even(1, prod(extents)), me, 8)
        for unit, extents in self.extents.items():
            if zero in (1, 2):
                self._copies(f"update/{unit}/weights", "all_gather", extents)

    # -- layers ---------------------------------------------------------------------------------

    def _blocks(self, stage: int) -> list[str]:
        units = self.model.stage_units(stage, self.job.cut)
        return [unit for unit in units if unit.startswith("layer")]

    def _stream(self, action: Action) -> L.Stream:
        rows, model = self._rows(action), self.model
        return L.Stream(rows, model.sequence, model.hidden, self.tp, self.job.sequence_parallel)

    def _head(self, x: L.Stream) -> L.LayerCalls[L.Call]:
        norm = L.norm(x, not self.model.gated, "norm")
        return norm.then(L.column_linear(x, "w_head"), L.cross_entropy(x))

    # -- what is written down -------------------------------------------------------------------

    def _tensor(self, action: Action, calls: Iterable[L.Call]) -> None:
        for call in calls:
            if self.t in call.members:
                me = call.members.index(self.t)
                size = call.itemsize(self.itemsize)
                self._collective(f"{action}/{call.label}", call.kind, call.counts, me, size)

    def _weights(self, action: Action, unit: str, when: str) -> None:
        if self.job.zero == 3:
            self._copies(f"{action}/{unit}/weights/{when}", "all_gather", self.extents[unit])

    def _gradients(self, action: Action, unit: str) -> None:
        if self.job.zero >= 2:
            self._copies(f"{action}/{unit}/gradients", "reduce_scatter", self.extents[unit])

    def _copies(self, label: str, kind: str, counts: tuple[int, ...]) -> None:
        """Over the copies of the model: weights that are gathered, gradients that are summed."""
        recipe = self.job.recipe
        size = recipe.weight_bytes if kind == "all_gather" else recipe.gradient_bytes
        self._collective(label, kind, counts, self.d, size)

    def _collective(
        self, label: str, kind: str, counts: tuple[int, ...], me: int, itemsize: int
    ) -> None:
        if len(counts) > 1:
            each = cost(kind, default(kind, len(counts)), counts, itemsize)
            moved = each.sent[me], each.received[me], each.messages[me]
            self.calls.append(Planned(label, kind, *moved))

    def _send(self, action: Action) -> None:
        goes = action._replace(stage=next_stage(action))
        if self.schedule.place[goes.stage] == self.p:
            self.aside.add(goes)
        else:
            self.calls.append(Planned(str(action), "send", self._message(goes), 0, 1))

    def _receive(self, action: Action) -> None:
        source = self.schedule.place[action.stage + (-1 if action.kind == "F" else 1)]
        while action not in self.aside:
            comes = next(self.messages[source])
            self.aside.add(comes)
            self.calls.append(Planned(str(action), "recv", 0, self._message(comes), 0))

    def _message(self, action: Action) -> int:
        """Bytes of what goes to or comes for an action."""
        model, tokens = self.model, self.model.sequence
        if self.job.sequence_parallel:
            tokens = even(tokens, self.tp)[self.t]
        return self._rows(action) * tokens * model.hidden * self.itemsize

    def _rows(self, action: Action) -> int:
        rows: slice = self.job.rows(self.dp, self.d, action.microbatch)
        count: int = rows.stop - rows.start
        return count


@lru_cache(1000)
def _block(x: L.Stream, model: GPT, unit: str) -> L.LayerCalls[L.Call]:
    heads, plain = model.block.heads, not model.gated
    calls = L.decoder_block(
        x, heads.query, heads.kv, heads.width, True, not plain, norm_bias=plain, bias=plain
    )
    return calls.inside(unit)


def next_stage(action: Action) -> int:
    """Where what it makes is needed."""
    return action.stage + (1 if action.kind == "F" else -1)


def messages(schedule: Schedule, source: int, to: int) -> Iterator[Action]:
    """The actions on ``to`` that ``source`` sends something for, in the order of its sends."""
    for action in schedule.orders[source]:
        goes = action._replace(stage=next_stage(action))
        if 0 <= goes.stage < schedule.stages and schedule.place[goes.stage] == to != source:
            yield goes
