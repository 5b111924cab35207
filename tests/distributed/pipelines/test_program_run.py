"""Programs of schedules are run: one device's gradients, counted bytes, threads as workers.

Holds `tiledask.distributed.pipelines.program_run`.
"""

from dataclasses import replace

import numpy as np
import pytest

import tiledask as td
from tiledask.distributed.pipelines.pipeline import run_program
from tiledask.errors import PlacementError, ProgramError
from tiledask.plan.pipelines.schedules import V_SHAPED, is_looped
from tiledask.plan.program.count import label_of

WIDTH, ROWS = 6, 3


def made(name, devices=4):
    """A schedule, its stages, and a batch of ROWS a micro-batch."""
    stages = devices * (2 if name in V_SHAPED or is_looped(name) else 1)
    options = {"devices": devices} if is_looped(name) else {}
    schedule = td.schedule(name, stages, 8, **options)
    layers = td.stages.stack(range(stages + 1), width=WIDTH, hidden=8, dtype="float64")
    x, y = np.random.default_rng(3).normal(size=(2, 8 * ROWS, WIDTH))
    return schedule, layers, x, y


def alone(layers, x, y):
    """(outputs, loss, gradients by stage), of the whole batch at once on one device."""
    weights, kept, here = [layer.init("numpy") for layer in layers], [], x
    for layer, w in zip(layers, weights, strict=True):
        here, saved = layer.forward(w, here)
        kept.append(saved)
    dy, gradients = (here - y) * (2 / x.size), []
    for layer, w, saved in zip(layers[::-1], weights[::-1], kept[::-1], strict=True):
        dy, of_weights = layer.backward_input(w, saved, dy)
        gradients.append(layer.backward_weight(of_weights))
    return here, float(((here - y) ** 2).mean()), gradients[::-1]


def numbers(gradients):
    return [g for stage in gradients for layer in stage for g in layer.values()]


@pytest.mark.parametrize("name", td.schedules)
def test_every_schedule_gives_one_devices_gradients_and_the_bytes_that_were_counted(name):
    """Where stages are on several devices, their gradients are summed by who brings them back."""
    schedule, layers, x, y = made(name)
    program = td.program(schedule, block_bytes=ROWS * WIDTH * 8)
    done = run_program(program, layers, x, target=y)
    outputs, loss, gradients = alone(layers, x, y)
    np.testing.assert_allclose(done.outputs, outputs, rtol=1e-12)
    assert done.loss == pytest.approx(loss, rel=1e-12)
    for mine, wanted in zip(numbers(done.gradients), numbers(gradients), strict=True):
        np.testing.assert_allclose(mine, wanted, rtol=1e-10, atol=1e-14)
    assert done.traffic.measured == done.traffic.predicted
    assert {r.label for r in done.records if r.kind == "send"} <= {
        label_of(step.block, step.microbatch) for order in program.orders for step in order
    }


class WithoutInput(td.stages.FeedForward):
    """A stage of one layer that makes no gradient of its input."""

    def backward_input(self, weights, saved, dy):
        assert not weights, "nobody needs dx of the first layer"
        return dy, []


@pytest.mark.parametrize("name", ["1f1b", "zb-h1"])
def test_the_gradient_of_the_first_input_is_not_made(name):
    """And the others are those that they are with it, to the bit."""
    schedule, layers, x, y = made(name, devices=2)
    first = WithoutInput(**vars(layers[0]))
    without, whole = (
        run_program(td.program(schedule), stages, x, target=y)
        for stages in ([first, *layers[1:]], layers)
    )
    for mine, theirs in zip(numbers(without.gradients), numbers(whole.gradients), strict=True):
        assert mine.tobytes() == theirs.tobytes()
    with pytest.raises(Exception, match="nobody needs dx"):
        run_program(td.program(schedule), [layers[0], WithoutInput(**vars(layers[1]))], x, target=y)


def test_a_program_of_another_order_is_run():
    """Forwards only, the second rank takes what comes late first."""
    made = td.program(td.schedule("gpipe", 2, 2, forward_only=True), block_bytes=48)
    program = replace(made, orders=(made.orders[0], made.orders[1][::-1]))
    layers, x = td.stages.stack((0, 1, 2), width=WIDTH, hidden=8), np.ones((4, WIDTH), np.float32)
    done = run_program(program, layers, x)
    assert done.traffic.measured == done.traffic.predicted
    np.testing.assert_allclose(done.outputs, alone(layers, x, x)[0], rtol=1e-5)
    assert done.loss is None
    assert done.gradients == ()


def changed(program, change, name, *reads):
    """With ops of a name, of these buffers, changed."""
    roles = [
        replace(
            role,
            blocks={
                block: tuple(
                    change(op) if op.name == name and op.reads[: len(reads)] == reads else op
                    for op in ops
                )
                for block, ops in role.blocks.items()
            },
        )
        for role in program.roles
    ]
    return replace(program, roles=tuple(roles))


def test_nothing_runs_that_is_wrong():
    schedule, layers, x, y = made("1f1b")
    program = td.program(schedule)
    wrong = changed(program, lambda op: replace(op, args=(("peer", 3),)), "send", "x2")
    with pytest.raises(ProgramError, match="waits for rank 1, which never sends it"):
        run_program(wrong, layers, x, target=y)
    other = changed(program, lambda op: replace(op, name="sideways"), "forward")
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
@pytest.mark.parametrize("name", ["1f1b", "zb-h1", "zb-v"])
def test_workers_do_what_threads_do_to_the_bit_and_what_the_engines_of_schedules_do(name, cluster):
    schedule, layers, x, y = made(name)
    program = td.program(schedule, block_bytes=ROWS * WIDTH * 8)
    here = run_program(program, layers, x, target=y)
    there = run_program(program, layers, x, td.Mesh(cluster, (4,)), target=y)
    assert there.traffic.measured == here.traffic.measured == program.traffic
    run = td.run_schedule(schedule, layers, x, cluster, target=y, engine="loop")
    assert run.traffic.measured == program.traffic
    for each in zip(*map(numbers, (here.gradients, there.gradients, run.gradients)), strict=True):
        assert np.array_equal(each[0], each[1])
        assert np.array_equal(each[0], each[2])
    assert here.loss == there.loss == run.loss


@pytest.mark.cluster
def test_a_mesh_of_another_size_is_refused(cluster):
    schedule, layers, x, y = made("1f1b")
    with pytest.raises(PlacementError, match=r"the mesh 2; td\.Mesh\(cluster, \(4,\)\)"):
        run_program(td.program(schedule), layers, x, td.Mesh(cluster, (2,)), target=y)
