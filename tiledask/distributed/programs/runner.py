"""The reader that runs: a rank goes through its order of a program, with arrays.

    recv x1      what comes is kept by its name and micro-batch; what comes early is kept aside
    do linear    a kernel, on what is kept
    send x2      and what nothing reads any more is let go

Every op is bound once to what it reads and writes: what runs is a call per op. Ops are gone through
in their order, which is right whatever their streams; a collective is met by its members in that
order too.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import pairwise
from math import prod
from typing import Any

from tiledask.distributed.ranks.group import Group
from tiledask.distributed.ranks.rank import Rank
from tiledask.plan.intervals import ends_of
from tiledask.plan.program.count import call_label, label_of
from tiledask.plan.program.ops import Op, buffer_of
from tiledask.plan.program.program import Program
from tiledask.tile.backend import aligned
from tiledask.tile.layers.by_name import RankPart

__all__ = ["Bind", "Call", "Interpreter"]

Bind = Callable[[Op, str, dict[str, Any]], Callable[..., Any]]
"""From an op, its block's name and its args to what is called with its arrays. That returns what is
written of a micro-batch (a tuple if several), and changes state in place."""
_Env = dict[str, Any]
"""The arrays of a micro-batch, by name, and the state of the rank."""
Call = Callable[[_Env], Any]
"""An op, bound to what it reads and writes; true of a "stop" that stops."""
_OF_READERS = ("product", "work")
"""Args that are for other readers."""


class Interpreter:
    """One rank's way through its order, as often as it is wanted.

    ``group``: whose ranks are those of the program, if these are not all ranks of the run; they
    agree on each collective before it begins.
    """

    def __init__(
        self,
        rank: Rank,
        program: Program,
        state: Mapping[str, Any],
        bind: Bind,
        group: Group | None = None,
    ) -> None:
        self.rank, self.program, self.group = rank, program, group
        self.index = rank.index if group is None else group.rank
        """Which rank of the program this is."""
        self.role, self.order = program.role(self.index), program.orders[self.index]
        self.turn = self.microbatch = 0
        """Those under way."""
        self._bind, self._label = bind, ""
        self._groups: dict[Any, Group] = {}
        self._state: _Env = {}
        for name in self.role.state:
            self._keep(self._state, name, state[name])
        self._envs: dict[int, _Env] = {}
        self._last = {step.microbatch: n for n, step in enumerate(self.order)}
        self._bound = self._bind_order()
        self._arriving: dict[int, Iterator[tuple[str, int]]] = {}

    # -- going through ----------------------------------------------------------------------------

    def _keep(self, env: _Env, name: str, array: Any) -> None:
        """Put an array under its name, and if it is flat those in it under theirs."""
        env[name], items = array, self.role.items.get(name, ())
        ends = ends_of(prod(shape) for _, shape in items)
        for (item, shape), (a, b) in zip(items, pairwise(ends), strict=True):
            env[f"{name}[{item}]"] = array[a:b].reshape(shape)

    def _env(self, microbatch: int) -> _Env:
        if microbatch not in self._envs:
            self._envs[microbatch] = self._state.copy()
        return self._envs[microbatch]

    def run(self) -> None:
        """Go through the order to its end, or until a "stop" stops it."""
        self._envs.clear()
        self._arriving.clear()
        self._go(range(len(self.order)))

    def close(self) -> None:
        """Let go of all arrays at once, and of what would be called."""
        self._bound, self._state, self._envs = [], {}, {}

    def _go(self, turns: Iterable[int], part: str = "") -> None:
        """Do the ops of turns; of a ``part``, "kernel" or "send", those alone."""
        for self.turn in turns:
            name, self.microbatch, _ = self.order[self.turn]
            env = self._env(self.microbatch)
            self._label = label_of(name, self.microbatch)
            op: Op | None = None
            try:
                for op, call in self._bound[self.turn]:
                    if (not part or part in (op.kind, op.name)) and call(env):
                        return
            except Exception as error:
                error.add_note(f"in {name}.{self.microbatch} of rank {self.index}: {op!r}")
                raise
            if part in ("", "send") and self._last[self.microbatch] == self.turn:
                del self._envs[self.microbatch]

    # -- ops, bound -------------------------------------------------------------------------------

    def _bind_order(self) -> list[list[tuple[Op, Call]]]:
        """By step, the calls of its block, each letting go what it is the last to use."""
        role, bound = self.role, list[list[tuple[Op, Call]]]()
        calls = {name: [self._call(op, name) for op in ops] for name, ops in role.blocks.items()}
        used = {step.microbatch: {*role.state} for step in self.order}
        for name, microbatch, _ in reversed(self.order):
            bound.append([])
            for op, call in reversed([*zip(role.blocks[name], calls[name], strict=True)]):
                gone = {buffer_of(each) for each in (*op.reads, *op.writes)} - used[microbatch]
                used[microbatch] |= gone
                items = [f"{each}[{item}]" for each in gone for item, _ in role.items.get(each, ())]
                bound[-1].append((op, partial(_freed, call, [*gone, *items]) if gone else call))
            bound[-1].reverse()
        return bound[::-1]

    def _call(self, op: Op, block: str) -> Call:
        if op.kind == "kernel":
            return self._kernel(op, block)
        if op.kind == "collective":
            return self._collective(op)
        if op.kind == "message":
            return self._message(op)
        return lambda env: env[op.buffer] != env[op.buffer]  # not a number

    def _message(self, op: Op) -> Call:
        """What sends a buffer, or brings it."""
        x, axes, peer = op.buffer, (op["axis"],), op["peer"]
        group = self._group(axes, self.program.members(self.index, axes))
        if op.name == "send":
            send = partial(group.send, to=peer, keep=True)
            return lambda env: send(env[x], label=call_label(self._label, op))
        source = self.program.peer(self.index, op)

        def take(env: _Env) -> None:
            """Messages come in the order of their sender; what is early is kept."""
            if source not in self._arriving:
                self._arriving[source] = self.program.sent(source, self.index)
            while x not in env:
                name, microbatch = next(self._arriving[source])
                came = aligned(group.recv(peer, label=call_label(self._label, op)))
                self._env(microbatch)[name] = came

        return take

    def _kernel(self, op: Op, block: str) -> Call:
        args = {n: self._resolved(value) for n, value in op.args if n not in _OF_READERS}
        if op.name.endswith("_grad_weight") and len(op.writes) == 1:
            args["bias"] = False  # there is none
        kernel = self._bind(op, block, args)
        in_place = [n for n in op.writes if n not in op.reads and n in self.role.state]
        reads = (*op.reads, *in_place)
        writes = [name for name in op.writes if buffer_of(name) in self.role.sizes]

        def call(env: _Env) -> None:
            made = kernel(*[env[x] for x in reads])
            if len(writes) == 1 and type(made) is not tuple:
                made = (made,)
            for name, value in zip(writes, made if writes else (), strict=False):
                env[name] = value

        return call

    def _resolved(self, value: Any) -> Any:
        """("part", axis, counts) as this rank's RankPart."""
        if not isinstance(value, tuple) or value[:1] != ("part",):
            return value
        _, axis, counts = value
        at = self.program.coordinates[self.index][axis] if len(counts) > 1 else 0
        ends = ends_of(counts)
        return RankPart(ends[at], ends[at + 1], ends[-1])

    def _collective(self, op: Op) -> Call:
        ((brought,), (name,)), role = (op.reads, op.writes), self.role
        base, here = role.alias.get(name), slice(None)
        if op.name == "reduce_scatter":
            here = self._resolved(("part", op["axes"][0], op["counts"])).here
        # what is of a micro-batch is never written again, here and elsewhere, if its place is its
        # own
        keep = buffer_of(brought) not in role.state.keys() | role.alias.keys()
        options = {"keep": keep, "concat_dim": op["dim"], "extents": op["extents"] or op["counts"]}
        args = {option: options.get(option, op[option]) for option in _TAKES[op.name]}
        members = self.program.members(self.index, op["axes"], op["among"])
        run = partial(getattr(self._group(op["axes"], members), op.name), **args)

        def call(env: _Env) -> None:
            made = run(env[brought], label=call_label(self._label, op))
            if name in role.state:
                env[name][...] = made
                return
            if base is not None:
                place = env[base][here]
                place[...] = made
                made = place
            self._keep(env, name, made)

        return call

    def _group(self, axes: tuple[int, ...], members: tuple[int, ...]) -> Group:
        if (axes, members) not in self._groups:
            made = self.group.among(members) if self.group else None
            self._groups[axes, members] = made or Group(self.rank, axes, members, checked=False)
        return self._groups[axes, members]


_HALO = "dim", "before", "after", "extents"
_TAKES: dict[str, tuple[str, ...]] = {
    "all_reduce": ("op", "keep"),
    "all_gather": ("dim", "keep"),
    "reduce_scatter": ("dim", "extents", "keep"),
    "all_to_all": ("split_dim", "concat_dim", "extents"),
    "halo_exchange": _HALO,
    "halo_reduce": _HALO,
}
"""By collective, what the method of a group takes."""


def _freed(call: Call, names: Iterable[str], env: _Env) -> Any:
    """A call, after which names are let go."""
    stops = call(env)
    for name in names:
        env.pop(name, None)
    return stops
