"""What Dask is given of a schedule: few tasks, small and flat; and what a dead worker costs.

Holds `tiledask.distributed.pipelines.lowering`.
"""

import pickle

import numpy as np
import pytest

import tiledask as td
from tests.distributed.pipelines.test_pipeline import BATCH, SHAPE, TARGET, kill_soon, small
from tiledask.distributed.pipelines import lowering, paced
from tiledask.distributed.pipelines.kernels import StageOperands
from tiledask.distributed.pipelines.lowering import TaskLine
from tiledask.distributed.pipelines.stages import stack


def test_a_frame_whose_earlier_turns_were_elsewhere_is_gone_through_again():
    schedule = td.schedule("gpipe", 2, 2)
    program, pace = td.program(schedule), None
    (stage,) = stack((0, 1), **SHAPE)
    operands = {0: StageOperands(stage, stage.init("numpy"), {0: BATCH, 1: BATCH}, {}, 1)}
    here = TaskLine(0, operands, "run", program.alone(0), pace)
    block = lowering.StageBlock(np.ones_like(BATCH), 0.0)
    here.ready(0)
    here.go(0)
    here.blocks = {2: block}
    here.ready(2)
    here.go(2)
    fresh = pickle.loads(pickle.dumps(here))  # as it comes back from a disk, or on another worker
    made, again = here.beside[2].gradients[0], fresh.again(2, {2: block}).gradients[0]
    assert not fresh.beside
    for mine, theirs in zip(made, again, strict=True):
        assert all(mine[name].tobytes() == theirs[name].tobytes() for name in theirs)


def _reports_late():
    paced.REPORT_AFTER = 1.0


@pytest.mark.cluster
@pytest.mark.few(2)
@pytest.mark.parametrize("name", ["1f1b", "zb-v", "dualpipev", "chimera"])
def test_what_a_dead_worker_had_done_is_the_same_to_the_bit_when_it_is_done_again(cluster, name):
    schedule = small(name, 6)
    stages = stack(range(schedule.stages + 1), **SHAPE)
    given = {"target": TARGET, "cluster": cluster, "timeout": 240}
    times = {"forward": 0.05, "backward": 0.05, "backward_input": 0.05, "backward_weight": 0.05}
    alive = td.run_schedule(schedule, stages, BATCH, engine="loop", **given)
    # what the one that dies would have said is lost
    cluster.gather([cluster.submit(1, _reports_late)], "a setting", 240)
    killing = kill_soon(cluster, 1, 0.5)  # of a second that it takes at least
    run = td.run_schedule(schedule, stages, BATCH, **given, **times)
    killing.join()
    assert run.simulated.makespan > 0.6
    assert run.outputs.tobytes() == alive.outputs.tobytes()
    assert run.loss == alive.loss
    for a, b in zip(run.gradients, alive.gradients, strict=True):
        for mine, theirs in zip(a, b, strict=True):
            assert all(mine[name].tobytes() == theirs[name].tobytes() for name in theirs)
