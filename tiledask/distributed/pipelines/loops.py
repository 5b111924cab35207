"""Each device one task that goes through its line; blocks are posted from worker to worker.

rank 0     [F0]post[F1]post.........take[B0]      no message to the scheduler, and none
rank 1         take[F0][B0]post take[F1][B1]      from it, between two actions
"""

import time
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

from distributed import get_worker

from tiledask.distributed.pipelines.job import Done, PipelineJob
from tiledask.distributed.pipelines.kernels import StageOperands, StageRunner, StagesMade, at_once
from tiledask.distributed.pipelines.paced import Arrival, Pace, perform
from tiledask.distributed.transport.meeting import Meeting, meeting, of_run
from tiledask.plan.pipelines.schedule import Action
from tiledask.plan.pipelines.timeline import Timeline
from tiledask.plan.program.ops import Op
from tiledask.plan.program.program import Program
from tiledask.tile.backend import aligned

__all__ = ["run_loops"]


def run_loops(job: PipelineJob, simulated: Timeline | None) -> Done:
    """What the actions of ``job`` made, each device's in a loop of its own."""
    with meeting(job.cluster, job.topic, job.peers, job.patience) as (addresses, _):
        limit = job.patience + job.timeout  # the client's own comes first
        given = job.topic, job.program, job.pace, limit
        loops = [
            job.cluster.submit(device, _loop, device, operands, *given, name="pipeline_loop")
            for device, operands in enumerate(job.prepare())
        ]
        with job.begun(addresses, simulated):
            parts = job.cluster.gather(loops, f"{job.schedule!r}", job.timeout, cancel=True)
    moves = [
        (source, device, size) for device, (_, came) in enumerate(parts) for source, size in came
    ]
    return Done([each for made, _ in parts for each in made], *job.heard(), moves)


# -- on the workers -------------------------------------------------------------------------------


def _loop(
    device: int,
    operands: dict[int, StageOperands],
    topic: str,
    program: Program,
    pace: Pace,
    seconds: float,
) -> tuple[list[StagesMade], list[tuple[int, int]]]:
    """(what each of a device's stages made, what came from others)."""
    runner = _PacedRunner(of_run(topic, device), program, pace, seconds, operands)
    runner.here.wait_for_start(runner.deadline)
    return runner.made(), runner.here.moves


class _PacedRunner(StageRunner):
    """All actions of a device, in their order and their time."""

    def __init__(
        self,
        here: Meeting,
        program: Program,
        pace: Pace,
        seconds: float,
        operands: dict[int, StageOperands],
    ) -> None:
        self.here, self.worker, self.pace = here, get_worker(), pace
        self.deadline = time.monotonic() + seconds
        self.turn, self.end = 0, 0.0
        """The turn under way; the end of what was done last."""
        self.arrivals: list[Arrival | None] = []
        """Of the blocks that what is under way uses."""
        super().__init__(SimpleNamespace(index=here.device), program, operands)

    def run(self) -> bool:
        here = self.here
        for turns in at_once(self.order):
            here.check()
            actions, self.arrivals = [self.action(turn) for turn in turns], []
            for turn in turns:
                self.arrivals.append(None)
                self._some(turn, kind="recv")
            work = partial(self._some, *turns, kind="")
            self.end, _ = perform(here.run, here.device, self.pace, actions, self.arrivals, work)
            self._some(*turns, kind="send")
            for turn in turns:
                self._leave(turn)
        return True

    def _some(self, *turns: int, kind: str) -> None:
        """Do the messages of a kind; "": the kernels."""
        for self.turn in turns:
            calls = self._bound[self.turn]
            some = [each for each in calls if kind == ("" if each[0].is_kernel else each[0].name)]
            self._go(self.turn, some)

    def _message(self, op: Op, x: int) -> Callable[[list[Any]], None]:
        here, peer, name = self.here, op["peer"], op.buffer
        if op.name == "send":
            return lambda env: here.post(
                self.worker, peer, self.action(self.turn), env[x], self.end
            )
        makers = {
            frame: Action(part.kind, part.stage, frame)
            for part, buffer, frame in self._sends(peer)
            if buffer == name
        }

        def take(env: list[Any]) -> None:
            block, made, sent, there = here.take(makers[self.microbatch], self.deadline)
            self.arrivals[-1] = Arrival(made, (sent, there))
            env[x] = aligned(block)

        return take
