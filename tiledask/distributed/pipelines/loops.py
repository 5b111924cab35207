"""Each device one task that goes through its line; blocks are posted from worker to worker.

device 0   [F0]post[F1]post.........take[B0]      no message to the scheduler, and none
device 1       take[F0][B0]post take[F1][B1]      from it, between two actions
"""

import time
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

from distributed import get_worker

from tiledask.distributed.pipelines.job import Done, PipelineJob
from tiledask.distributed.pipelines.kernels import StageKernels, StageRunner, StagesMade
from tiledask.distributed.pipelines.paced import Arrival, Pace, action_of, perform
from tiledask.distributed.transport.meeting import meeting, of_run
from tiledask.plan.pipelines.schedule import Action
from tiledask.plan.pipelines.timeline import Timeline
from tiledask.plan.program.instructions import Do, Recv, Send
from tiledask.plan.program.program import Program
from tiledask.tile.backend import aligned

__all__ = ["run_loops"]


def run_loops(job: PipelineJob, simulated: Timeline | None) -> Done:
    """What the actions of ``job`` made, each device's in a loop of its own."""
    with meeting(job.cluster, job.topic, job.peers, job.patience) as addresses:
        operands, loops = job.prepare(), []
        limit = job.patience + job.timeout  # the client's own comes first
        for device, frames in enumerate(job.frames):
            stages = {s: operands(s, device, mine) for s, mine in frames.items()}
            given = job.topic, device, job.program, job.pace, limit, stages
            loops.append(job.cluster.submit(device, _loop, *given, name="pipeline_loop"))
        job.begin(addresses, simulated)
        parts = job.cluster.gather(loops, f"{job.schedule!r}", job.timeout, cancel=True)
    moves = [
        (source, device, size) for device, (_, came) in enumerate(parts) for source, size in came
    ]
    return Done([each for made, _ in parts for each in made], *job.heard(), moves)


# -- on the workers -------------------------------------------------------------------------------


def _loop(
    topic: str,
    device: int,
    program: Program,
    pace: Pace,
    seconds: float,
    stages: dict[int, tuple[Any, ...]],
) -> tuple[list[StagesMade], list[tuple[int, int]]]:
    """(what each of a device's stages made, what came from others)."""
    deadline = time.monotonic() + seconds
    kernels = {s: StageKernels(*operands) for s, operands in stages.items()}
    runner = _PacedRunner(topic, device, program, pace, deadline, kernels)
    runner.here.wait_for_start(deadline)
    return runner.made(), runner.here.moves


class _PacedRunner(StageRunner):
    """All actions of a device, in their order and their time."""

    def __init__(
        self,
        topic: str,
        device: int,
        program: Program,
        pace: Pace,
        deadline: float,
        kernels: dict[int, StageKernels],
    ) -> None:
        self.here, self.worker = of_run(topic, device), get_worker()
        self.pace, self.deadline = pace, deadline
        self.turn, self.end = 0, 0.0
        """The turn under way; the end of what was done last."""
        self.arrivals: list[Arrival | None] = []
        """Of the blocks that what is under way uses."""
        super().__init__(SimpleNamespace(index=device), program, kernels)

    def run(self) -> bool:
        here = self.here
        for turns in self.program.lines[here.device].at_once:
            here.check()
            actions, self.arrivals = [self._action(turn) for turn in turns], []
            for turn in turns:
                self.arrivals.append(None)
                self._some(Recv, turn)
            paced, work = self.pace.of(*actions), partial(self._some, Do, *turns)
            self.end = perform(here.run, here.device, paced, self.arrivals, work)
            self._some(Send, *turns)
            for turn in turns:
                self._leave(turn)
        return True

    def _action(self, turn: int) -> Action:
        number, frame = self.line[turn]
        return action_of(self.role.parts[number], frame)

    def _some(self, kind: type, *turns: int) -> None:
        """Do the instructions of a kind."""
        for self.turn in turns:
            calls = self._bound[self.turn]
            self._go(self.turn, [(each, call) for each, call in calls if isinstance(each, kind)])

    def _message(self, each: Send | Recv, x: int) -> Callable[[list[Any]], None]:
        here, peer, name = self.here, each.peer, each.buffer
        if isinstance(each, Send):
            return lambda env: here.post(
                self.worker, peer, self._action(self.turn), env[x], self.end
            )
        makers = {
            frame: action_of(part, frame)
            for part, buffer, frame in self._sends(peer)
            if buffer == name
        }

        def take(env: list[Any]) -> None:
            parcel = here.take(makers[self.frame], self.deadline)
            self.arrivals[-1] = Arrival(parcel.made, (parcel.sent, parcel.there))
            env[x] = aligned(parcel.block)

        return take
