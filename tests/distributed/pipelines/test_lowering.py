"""What Dask is given of a schedule: few tasks, small and flat; and what a dead worker costs.

Holds `tiledask.distributed.pipelines.lowering`.
"""

import pickle
from types import SimpleNamespace

import numpy as np
import pytest

import tiledask as td
from tests.distributed.pipelines.test_pipeline import BATCH, SHAPE, TARGET, kill_soon, small
from tiledask.distributed.pipelines import lowering, paced
from tiledask.distributed.pipelines.job import PipelineJob
from tiledask.distributed.pipelines.kernels import StageOperands
from tiledask.distributed.pipelines.lowering import TaskLine, run_tasks
from tiledask.distributed.pipelines.paced import Pace
from tiledask.distributed.pipelines.stages import Dummy, stack
from tiledask.distributed.transport.meeting import Met
from tiledask.plan.program.making.of_schedule import KERNELS

ACTIONS = {*KERNELS.values(), "overlapped"}
"""Names of the tasks that are actions."""


class Asked(Exception):
    """All was submitted."""


class Asking:
    """In the place of a cluster: remembers what it was asked to do."""

    backend = "numpy"

    def __init__(self):
        self.tasks = []

    def submit(self, slot, function, *args, name="task", beside=False):
        key = f"{name}-{len(self.tasks):032}"  # as long as Dask's
        task = SimpleNamespace(key=key, slot=slot, name=name, args=args, function=function)
        self.tasks.append(task)
        return task

    def keep(self, array):
        return SimpleNamespace(part=lambda device, region: "/a/file.npy", check=lambda region: 7)

    def wait(self, *_args, **_options):
        """Nothing is done: nothing is late."""


def asked_of(schedule, monkeypatch):
    """The tasks that Dask is given of ``schedule``."""

    class Nowhere:
        def __enter__(self):
            return Met((), ())

        def __exit__(self, *error):
            return None

    def begin(*_):
        raise Asked

    monkeypatch.setattr(lowering, "meeting", lambda *_: Nowhere())
    monkeypatch.setattr(PipelineJob, "begin", begin)
    batch, shape = np.zeros((schedule.microbatches, 4)), (4, schedule.stages, 1)
    pace = Pace(np.ones(shape), -np.ones(shape[1:]), np.zeros((2, 1, schedule.stages)))
    stages, cluster = [Dummy(4)] * schedule.stages, Asking()
    job = PipelineJob(schedule, td.program(schedule), stages, batch, batch, cluster, pace, 1.0)
    with pytest.raises(Asked):
        run_tasks(job, None)
    return cluster.tasks


@pytest.mark.long
@pytest.mark.parametrize("name", td.schedules)
@pytest.mark.parametrize("m", [2, 12])
def test_a_task_is_small_and_flat_and_there_are_few(name, m, monkeypatch):
    schedule = small(name, m)
    tasks = asked_of(schedule, monkeypatch)
    backwards = sum(action.kind in "BW" for action in schedule)
    pairs = int(schedule.paired.sum())
    # an action each, of a pair one for both and for either what it hands on; who sums gradients
    # and does more, one more; a loss of each pair's at most; four a device that do not depend on m
    most = len(schedule) + backwards + 2 * pairs + 4 * schedule.devices
    assert len(tasks) <= most
    assert {task.slot for task in tasks} == set(range(schedule.devices))
    actions = [task for task in tasks if task.name in ACTIONS]
    assert len(actions) == len(schedule) - pairs
    visits = schedule.stages // schedule.devices or 1  # of a frame to a device, there and back
    for task in actions:
        received = 2 * visits * (1 + (task.name == "overlapped"))
        refs = [each for each in task.args if isinstance(each, SimpleNamespace)]
        assert len(refs) <= 3 + received  # line, turn before, gradients so far, blocks
        assert all(type(each) is int for each in task.args if each not in refs)  # and no container
        said = pickle.dumps([each.key if each in refs else each for each in task.args])
        assert len(said) <= 50 + 60 * len(refs)


@pytest.mark.parametrize("name", [n for n in td.schedules if not n.startswith("dualpipe")])
def test_nothing_is_done_between_a_block_and_who_waits_for_it(name, monkeypatch):
    schedule = small(name, 6)
    tasks = asked_of(schedule, monkeypatch)
    known = {id(task): task for task in tasks}
    crossing = 0
    for task in tasks:
        if task.name in ACTIONS:
            for each in map(known.get, map(id, task.args)):
                if each is not None and each.slot != task.slot:
                    assert each.name in ACTIONS
                    crossing += 1
    assert crossing or schedule.devices == 1


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
