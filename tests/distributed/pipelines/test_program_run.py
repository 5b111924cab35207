"""Stages and programs of them, run: one device's gradients, counted bytes, threads as workers."""

from dataclasses import replace

import numpy as np
import pytest
from oracles.gradients import assert_gradients, draw
from oracles.one_stack import one_device

import tiledask as td
from tiledask.distributed.pipelines.pipeline import run_program
from tiledask.distributed.pipelines.stages import flat
from tiledask.errors import PlacementError, ProgramError
from tiledask.lab.sweep import schedule_on
from tiledask.tile import gelu, to_numpy

WIDTH, ROWS = 6, 3


def made(name, devices=4):
    """A schedule, its stages, and a batch of ROWS a micro-batch."""
    schedule = schedule_on(name, devices, 8)
    layers = td.stages.stack(range(schedule.stages + 1), width=WIDTH, hidden=8, dtype="float64")
    x, y = np.random.default_rng(3).normal(size=(2, 8 * ROWS, WIDTH))
    return schedule, layers, x, y


@pytest.mark.parametrize("tokens", [1, 7])
def test_blocks_and_gradients(xp, tokens):
    stage = td.stages.FeedForward((3, 4), width=4, hidden=10, dtype="float64")
    weights = stage.init(xp.__name__)
    x, dy = (xp.asarray(each) for each in draw((tokens, 4), (tokens, 4)))
    operands = [x, *(w for layer in weights for w in layer.values())]
    given = [to_numpy(array).copy() for array in (dy, *operands)]

    def forward(x, *flat):
        arrays = iter(flat)
        return stage.forward([{name: next(arrays) for name in layer} for layer in weights], x)[0]

    y, saved = stage.forward(weights, x)
    expected = x
    for layer in weights:
        h = gelu(expected @ layer["w1"] + layer["b1"])
        expected = expected + h @ layer["w2"] + layer["b2"]
    np.testing.assert_allclose(to_numpy(y), to_numpy(expected))
    dx, kept = stage.backward_input(weights, saved, dy)
    grads = stage.backward_weight(kept)
    assert [[*layer] for layer in grads] == [[*layer] for layer in weights]
    grads = [dx, *(grad for layer in grads for grad in layer.values())]
    assert_gradients(forward, operands, dy, grads)
    for old, new in zip(given, (dy, *operands), strict=True):
        np.testing.assert_array_equal(old, to_numpy(new))


@pytest.mark.parametrize("name", td.schedules)
def test_every_schedule_gives_one_devices_gradients_and_the_bytes_that_were_counted(name):
    """Where stages are on several devices, their gradients are summed by who brings them back."""
    schedule, layers, x, y = made(name)
    program = td.program(schedule, block_bytes=ROWS * WIDTH * 8)
    done = run_program(program, layers, x, target=y)
    outputs, loss, gradients = one_device(layers, x, y)
    np.testing.assert_allclose(done.outputs, outputs, rtol=1e-12)
    np.testing.assert_allclose(flat(done.gradients), gradients, rtol=1e-10, atol=1e-14)
    assert done.loss == pytest.approx(loss, rel=1e-12)
    assert done.traffic.measured == done.traffic.predicted


def test_a_program_of_another_order_is_run():
    """Forwards only, the second rank takes what comes late first."""
    made = td.program(td.schedule("gpipe", 2, 2, forward_only=True), block_bytes=48)
    program = replace(made, orders=(made.orders[0], made.orders[1][::-1]))
    layers, x = td.stages.stack((0, 1, 2), width=WIDTH, hidden=8), np.ones((4, WIDTH), np.float32)
    done = run_program(program, layers, x)
    assert done.traffic.measured == done.traffic.predicted
    np.testing.assert_allclose(done.outputs, one_device(layers, x, x)[0], rtol=1e-5)
    assert done.loss is None
    assert done.gradients == ()


def test_nothing_runs_that_is_wrong():
    schedule, layers, x, y = made("1f1b")
    program = td.program(schedule)
    wrong = td.Program.from_text(f"{program}".replace("send x2 to 2", "send x2 to 3"))
    with pytest.raises(ProgramError, match="waits for rank 1, which never sends it"):
        run_program(wrong, layers, x, target=y)
    other = td.Program.from_text(f"{program}".replace("do forward", "do sideways"))
    with pytest.raises(ProgramError, match="no kernel 'sideways'; there are forward, backward"):
        run_program(other, layers, x, target=y)
    for given, options, words in (
        ((layers[:-1], x), {"target": y}, "4 stages of one width .* got 3 stages"),
        ((layers, x), {}, "a target of None"),
        ((layers, x[:3]), {"target": y[:3]}, "least 8 tokens"),
    ):
        with pytest.raises(PlacementError, match=words):
            run_program(program, *given, **options)


@pytest.mark.cluster
@pytest.mark.parametrize("name", ["1f1b", "zb-h1", "zb-v", "dualpipev"])
def test_workers_do_what_threads_do_to_the_bit_and_what_the_engines_of_schedules_do(name, cluster):
    schedule, layers, x, y = made(name)
    program = td.program(schedule, block_bytes=ROWS * WIDTH * 8)
    here = run_program(program, layers, x, target=y)
    there = run_program(program, layers, x, td.Mesh(cluster, (4,)), target=y)
    with pytest.raises(PlacementError, match=r"the mesh 2; td\.Mesh\(cluster, \(4,\)\)"):
        run_program(program, layers, x, td.Mesh(cluster, (2,)), target=y)
    given = schedule, layers, x, cluster
    runs = [td.run_schedule(*given, target=y, engine=engine) for engine in ("loop", "tasks")]
    for run in (here, there, *runs):
        assert run.traffic.measured == program.traffic
        assert flat(run.gradients).tobytes() == flat(here.gradients).tobytes()
        assert run.loss == here.loss
