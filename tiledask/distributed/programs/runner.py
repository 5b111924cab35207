"""The reader that runs: a rank goes through its line of a program, with arrays.

    recv x1      what comes is kept by its name and frame; what comes early is kept aside
    do linear    a kernel, on what is kept
    send x2      and what nothing reads any more is let go

Every buffer has a slot in a list per frame, and every instruction is bound once to its slots: what
runs is a call per instruction. Streams are gone through in the order of the line, which is right
whatever their number; a collective is met by its members in that order too.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import pairwise
from math import prod
from operator import itemgetter
from typing import Any, Protocol

from tiledask.distributed.ranks.group import Group
from tiledask.distributed.ranks.program_group import ProgramGroup
from tiledask.distributed.ranks.rank import Rank
from tiledask.plan.intervals import ends_of
from tiledask.plan.program.calls import call_label, label_of
from tiledask.plan.program.instructions import (
    AllToAll,
    Collective,
    Do,
    Fetch,
    HaloExchange,
    Instruction,
    Instructions,
    Keep,
    ProgramPart,
    Recv,
    Send,
    Stop,
    buffer_of,
)
from tiledask.tile.backend import aligned
from tiledask.tile.layers.by_name import RankPart

__all__ = ["Bind", "LineRunner", "Outside"]

Bind = Callable[[Do, ProgramPart, dict[str, Any]], Callable[..., Any]]
"""From an instruction, its part and what the kernel is told to what is called with its arrays. It
returns what is written of a frame (a tuple if several), and changes what stays in place."""
_Env = list[Any]
"""The arrays of a frame, by slot."""
_Call = Callable[[_Env], None]


_OF_READERS = ("product", "work")
"""Options that are for other readers."""


class Outside(Protocol):
    """What is beyond a line: where its fetches read, and where what is kept goes."""

    def fetch(self, each: Fetch) -> Callable[[Any], Any]:
        """From what its buffer holds (None, if nothing stays there) to what is there afterwards."""

    def keep(self, each: Keep) -> Callable[[Any], None]:
        """Takes what is kept."""


class StepLeftOut(Exception):
    """A `Stop` stopped."""


class LineRunner:
    """One rank's way through its line, as often as it is wanted.

    ``group``: whose ranks are those of the program, if these are not all ranks of the run; they
    agree on each collective before it begins.
    """

    def __init__(
        self,
        rank: Rank | None,
        program: Instructions,
        stays: Mapping[str, Any],
        bind: Bind,
        outside: Outside | None = None,
        group: Group | None = None,
    ) -> None:
        """``rank``: None of a line that is alone, and talks to no other rank."""
        self.rank, self.program, self.outside, self.group = rank, program, outside, group
        self.index = 0 if rank is None else rank.index if group is None else group.rank
        """Which rank of the program this is."""
        self.role, self.line = program.role(self.index), list(program.lines[self.index])
        self.frame = 0
        """The frame under way."""
        self._bind, self._label = bind, ""
        self._groups: dict[Any, ProgramGroup] = {}
        self._slots: dict[str, int] = {}
        self._stays: _Env = []
        for name in self.role.stays:
            self._slot(name, stays[name])
            for item, view in self._views(name, stays[name]):
                self._slot(item, view)
        self._frames: dict[int, _Env] = {}
        self._last = dict[int, int]()
        for turn, (_, frame) in enumerate(self.line):
            self._last[frame] = turn
        self._bound = self._bind_line()
        self._arriving: dict[int, Iterator[tuple[ProgramPart, str, int]]] = {}

    # -- what is kept -----------------------------------------------------------------------------

    def _slot(self, name: str, value: Any = None) -> int:
        if name not in self._slots:
            self._slots[name] = len(self._stays)
            self._stays.append(value)
        return self._slots[name]

    def _views(self, name: str, flat: Any) -> Iterator[tuple[str, Any]]:
        """The arrays in a flat one."""
        items = self.role.items.get(name, ())
        ends = ends_of(prod(shape) for _, shape in items)
        for (item, shape), (a, b) in zip(items, pairwise(ends), strict=True):
            yield f"{name}[{item}]", flat[a:b].reshape(shape)

    def _names(self, name: str) -> list[str]:
        """Of a buffer, and of the arrays in it."""
        return [name, *(f"{name}[{item}]" for item, _ in self.role.items.get(name, ()))]

    def _env(self, frame: int) -> _Env:
        if frame not in self._frames:
            self._frames[frame] = self._stays.copy()
        return self._frames[frame]

    # -- going through ----------------------------------------------------------------------------

    def run(self) -> bool:
        """Whether the line was gone through to its end: a `Stop` may have stopped it."""
        self._frames.clear()
        self._arriving.clear()
        try:
            for turn, calls in enumerate(self._bound):
                self._go(turn, calls)
                self._leave(turn)
        except StepLeftOut:
            return False
        return True

    def close(self) -> None:
        """Let go of all arrays at once, and of what would be called."""
        self._bound, self._stays, self._frames = [], [], {}

    def _go(self, turn: int, calls: Iterable[tuple[Instruction, _Call]]) -> None:
        """Do instructions of a turn."""
        number, self.frame = self.line[turn]
        part, env = self.role.parts[number], self._env(self.frame)
        self._label = label_of(part, self.frame)
        each: Instruction | None = None
        try:
            for each, call in calls:  # noqa: B007
                call(env)
        except StepLeftOut:
            raise
        except Exception as error:
            error.add_note(f"in {part.name}.{self.frame} of rank {self.index}: {each!r}")
            raise

    def _leave(self, turn: int) -> None:
        """Let a frame go whose last turn this was."""
        _, frame = self.line[turn]
        if self._last[frame] == turn:
            del self._frames[frame]

    # -- instructions, bound ----------------------------------------------------------------------

    def _bind_line(self) -> list[list[tuple[Instruction, _Call]]]:
        """By turn, the calls. Parts are bound once for all frames that go the same way."""
        ways: dict[int, list[int]] = {}
        for number, frame in self.line:
            ways.setdefault(frame, []).append(number)
        bound: dict[tuple[int, ...], dict[int, list[tuple[Instruction, _Call]]]] = {}
        calls: dict[int, list[_Call]] = {}
        for number, part in enumerate(self.role.parts):
            calls[number] = [self._call(each, part) for each in part.instructions]
        for way in map(tuple, ways.values()):
            if way not in bound:
                bound[way] = self._freed(way, calls)
        return [bound[tuple(ways[frame])][number] for number, frame in self.line]

    def _freed(
        self, way: tuple[int, ...], calls: Mapping[int, list[_Call]]
    ) -> dict[int, list[tuple[Instruction, _Call]]]:
        """The calls of a frame's parts, each letting go what it is the last to use."""
        seen: set[str] = set()
        made: dict[int, list[tuple[Instruction, _Call]]] = {}
        for number in reversed(way):
            found = []
            pairs = zip(self.role.parts[number].instructions, calls[number], strict=True)
            for each, call in reversed(list(pairs)):
                used = {buffer_of(name) for name in (*each.reads, *each.writes)}
                gone = [n for n in used - seen if n not in self.role.stays]
                seen |= used
                slots = tuple(
                    slot
                    for name in gone
                    for n in self._names(name)
                    if (slot := self._slots.get(n)) is not None
                )
                found.append((each, _then_free(call, slots) if slots else call))
            made[number] = found[::-1]
        return made

    def _call(self, each: Instruction, part: ProgramPart) -> _Call:
        if isinstance(each, Do):
            return self._do(each, part)
        if isinstance(each, Collective):
            return self._collective(each)
        x = self._slot(each.buffer)
        if isinstance(each, Stop):
            return lambda env: _stop(env[x])
        if isinstance(each, Fetch | Keep):
            return self._beyond(each, x)
        return self._message(each, x)

    def _message(self, each: Send | Recv, x: int) -> _Call:
        """What sends a slot, or fills it."""
        axis, peer, program = (each.axis,), each.peer, self.program
        group = self._group(axis, program.along(self.index, axis))
        if isinstance(each, Send):
            return lambda env: group.send(env[x], peer, label=self._called(each), keep=True)
        source = program.peer(self.index, each)
        return lambda env: self._receive(each, x, group, source, env)

    def _called(self, each: Instruction) -> str:
        return call_label(self._label, each)

    def _beyond(self, each: Fetch | Keep, x: int) -> _Call:
        assert self.outside is not None  # who runs such a program says where things lie
        if isinstance(each, Keep):
            keep = self.outside.keep(each)
            return lambda env: keep(env[x])
        fetch, room = self.outside.fetch(each), self._slot(buffer_of(each.buffer))

        def call(env: _Env) -> None:
            env[x] = fetch(env[room])

        return call

    def _do(self, each: Do, part: ProgramPart) -> _Call:
        told = {n: self._resolved(value) for n, value in each.options if n not in _OF_READERS}
        kernel = self._bind(each, part, told)
        in_place = [n for n in each.writes if n not in each.reads and n in self.role.stays]
        reads = tuple(map(self._slot, (*each.reads, *in_place)))
        writes = [self._slot(name) for name in each.writes if buffer_of(name) in self.role.nbytes]
        take = _taken(reads)
        if not writes:

            def call(env: _Env) -> None:
                kernel(*take(env))

        elif len(writes) == 1:
            (y,) = writes

            def call(env: _Env) -> None:
                made = kernel(*take(env))
                env[y] = made[0] if type(made) is tuple else made

        else:

            def call(env: _Env) -> None:
                for slot, value in zip(writes, kernel(*take(env)), strict=False):
                    env[slot] = value

        return call

    def _resolved(self, value: Any) -> Any:
        """("part", axis, counts) as this rank's RankPart."""
        if not (isinstance(value, tuple) and value[:1] == ("part",)):
            return value
        _, axis, counts = value
        at = self.program.coordinates[self.index][axis] if len(counts) > 1 else 0
        ends = ends_of(counts)
        return RankPart(ends[at], ends[at + 1], ends[-1])

    def _collective(self, each: Collective) -> _Call:
        group = self._together(each)
        x, y, name = self._slot(each.buffer), self._slot(each.result), each.result
        items = [self._slot(f"{name}[{item}]") for item, _ in self.role.items.get(name, ())]
        base = self._slot(self.role.within[name]) if name in self.role.within else None
        here = slice(None)
        if each.kind == "reduce_scatter":
            here = self._resolved(("part", each.axes[0], each.counts)).here
        # what is of a frame is never written again, here and elsewhere, if its place is its own
        keep = buffer_of(each.buffer) not in self.role.stays.keys() | self.role.within.keys()
        run: Callable[..., Any]
        if each.kind == "all_reduce":
            run = partial(group.all_reduce, op=each.op, keep=keep)
        elif each.kind == "all_gather":
            run = partial(group.all_gather, dim=each.dim, keep=keep)
        elif each.kind == "broadcast":
            run = partial(group.broadcast, shape=each.shape, root=each.root, keep=keep)
        elif each.kind == "reduce":
            run = partial(group.reduce, root=each.root, op=each.op, keep=keep)
        elif each.kind == "reduce_scatter":
            extents = each.extents or each.counts
            run = partial(group.reduce_scatter, dim=each.dim, extents=extents, keep=keep)
        elif isinstance(each, AllToAll):
            dims = {"split_dim": each.split_dim, "concat_dim": each.dim}
            run = partial(group.agreed, each.kind, {"extents": each.extents} | dims)
        else:
            assert isinstance(each, HaloExchange)
            widths = {"dim": each.dim, "before": each.before, "after": each.after}
            run = partial(group.agreed, each.kind, {"extents": each.extents} | widths)

        def call(env: _Env) -> None:
            made = run(env[x], label=self._called(each))
            if name in self.role.stays:
                env[y][...] = made
                return
            if base is not None:
                place = env[base][here]
                place[...] = made
                made = place
            env[y] = made
            for slot, (_, view) in zip(items, self._views(name, made), strict=False):
                env[slot] = view

        return call

    def _together(self, each: Collective) -> Any:
        """Whom a collective is among."""
        return self._group(each.axes, self.program.members(self.index, each))

    def _group(self, axes: tuple[int, ...], members: tuple[int, ...]) -> ProgramGroup:
        key = axes, members
        if key not in self._groups:
            assert self.rank is not None  # a line that is alone has no messages
            among = None if self.group is None else self.group.among(members)
            said = (axes, members) if among is None else (among.axes, among.members)
            self._groups[key] = ProgramGroup(self.rank, *said, group=among)
        return self._groups[key]

    # -- messages ---------------------------------------------------------------------------------

    def _receive(self, each: Recv, slot: int, group: ProgramGroup, source: int, env: _Env) -> None:
        """Messages come in the order of their sender's line; what is early is kept in its frame."""
        if source not in self._arriving:
            self._arriving[source] = self._sends(source)
        while env[slot] is None:
            _, name, frame = next(self._arriving[source])
            came = aligned(group.recv(each.peer, label=self._called(each)))
            self._env(frame)[self._slots[name]] = came

    def _sends(self, source: int) -> Iterator[tuple[ProgramPart, str, int]]:
        """What a rank sends to this one, in its order: (part that does, buffer, frame)."""
        program, me = self.program, self.index
        parts = program.role(source).parts
        for number, frame in program.lines[source]:
            for each in parts[number].instructions:
                if isinstance(each, Send) and program.peer(source, each) == me:
                    yield parts[number], each.buffer, frame


def _stop(x: Any) -> None:
    if x != x:  # not a number
        raise StepLeftOut


def _taken(slots: tuple[int, ...]) -> Callable[[_Env], tuple[Any, ...]]:
    if not slots:
        return lambda env: ()
    if len(slots) == 1:
        (x,) = slots
        return lambda env: (env[x],)
    return itemgetter(*slots)


def _then_free(call: _Call, slots: tuple[int, ...]) -> _Call:
    def called(env: _Env) -> None:
        call(env)
        for slot in slots:
            env[slot] = None

    return called
