"""A line whose streams are gone through side by side: what is fetched comes while work is done.

    compute   [wait][multiply 0][multiply 1][multiply 2]       this thread
    fetch     [fetch 0][fetch 1]  [fetch 2]                    a thread of its own

What waits for what is the program's graph, as its check and its clock have it: an instruction
begins when what it reads is there, and nothing that it overwrites is in use.
"""

import threading
from collections.abc import Callable, Mapping
from time import time
from typing import Any, NamedTuple

from tiledask.distributed.programs.runner import Bind, LineRunner, Outside
from tiledask.errors import ProgramError
from tiledask.plan.program.graph import Node, graph
from tiledask.plan.program.instructions import COMPUTE_STREAM, Instruction, Instructions

__all__ = ["BesideRunner"]


class _Step(NamedTuple):
    each: Instruction
    call: Callable[[Any], None]
    frame: int
    waits: tuple[tuple[str, int], ...]
    """(another stream, how many of its instructions have to be done)."""


class BesideRunner(LineRunner):
    """One way through a line that is alone."""

    def __init__(
        self,
        program: Instructions,
        stays: Mapping[str, Any],
        bind: Bind,
        outside: Outside,
        waited: Callable[[float, float], None] = lambda begun, end: None,
    ) -> None:
        """``waited`` hears from when to when the work waited for another stream."""
        super().__init__(None, program, stays, bind, outside)
        self.waited = waited
        self._steps: dict[str, list[_Step]] = {COMPUTE_STREAM: []}
        instructions = (each for part in self.role.parts for each in part.instructions)
        if all(each.stream == COMPUTE_STREAM for each in instructions):
            return
        nodes = graph(program)
        _check_readers(nodes, self.role.stays)
        at: dict[str, int] = {}
        places = []
        for node in nodes:
            stream = node.places[0].instruction.stream
            at[stream] = at.get(stream, 0) + 1
            places.append((stream, at[stream]))
        calls = [call for bound in self._bound for _, call in bound]
        for node, call, (stream, _) in zip(nodes, calls, places, strict=True):
            needs: dict[str, int] = {}
            for other, number in map(places.__getitem__, node.waits):
                if other != stream:
                    needs[other] = max(number, needs.get(other, 0))
            place = node.places[0]
            step = _Step(place.instruction, call, place.frame, tuple(needs.items()))
            self._steps.setdefault(stream, []).append(step)

    def run(self) -> bool:
        """True, once the line was gone through."""
        if len(self._steps) == 1:
            return super().run()
        self._frames.clear()
        for _, frame in self.line:
            self._env(frame)
        going = _Going(self._steps)

        def beside(stream: str) -> None:
            try:
                self._through(stream, going)
            except BaseException as error:
                going.fail(error)

        others = [stream for stream in self._steps if stream != COMPUTE_STREAM]
        threads = [
            threading.Thread(target=beside, args=(stream,), name=stream, daemon=True)
            for stream in others
        ]
        for thread in threads:
            thread.start()
        try:
            self._through(COMPUTE_STREAM, going)
        except BaseException as error:
            going.fail(error)
        for thread in threads:
            thread.join()
        self._frames.clear()
        if going.error is not None:
            raise going.error
        return True

    def _through(self, stream: str, going: "_Going") -> None:
        for each, call, frame, waits in self._steps[stream]:
            if waits:
                begun = time()
                going.wait(waits)
                if stream == COMPUTE_STREAM:
                    self.waited(begun, time())
            try:
                call(self._frames[frame])
            except Exception as error:
                error.add_note(f"in {each!r}")
                raise
            going.one_more(stream)


class _Stopped(Exception):
    """Another stream failed."""


class _Going:
    """How far each stream is."""

    def __init__(self, streams: Mapping[str, Any]) -> None:
        self.done = dict.fromkeys(streams, 0)
        self.error: BaseException | None = None
        self._changed = threading.Condition()

    def wait(self, waits: tuple[tuple[str, int], ...]) -> None:
        done = self.done
        with self._changed:
            while self.error is None and any(done[stream] < n for stream, n in waits):
                self._changed.wait()
            if self.error is not None:
                raise _Stopped

    def one_more(self, stream: str) -> None:
        with self._changed:
            if self.error is not None:
                raise _Stopped
            self.done[stream] += 1
            self._changed.notify_all()

    def fail(self, error: BaseException) -> None:
        """The first error is the line's."""
        with self._changed:
            if self.error is None:
                self.error = error
            self._changed.notify_all()


def _check_readers(nodes: list[Node], stays: Mapping[str, int]) -> None:
    """Refuse what would be let go while another stream still reads it."""
    streams: dict[tuple[str, int], str] = {}
    for node in nodes:
        for place in node.places:
            for name in place.instruction.reads:
                key = name.partition("[")[0], place.frame
                first = streams.setdefault(key, place.instruction.stream)
                if key[0] not in stays and first != place.instruction.stream:
                    raise ProgramError(
                        f"{name} is read on the streams {first} and {place.instruction.stream}, "
                        f"which are gone through side by side: {place}; let it stay"
                    )
