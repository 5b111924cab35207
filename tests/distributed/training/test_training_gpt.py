"""A small GPT under every (dp, tp, pp): the losses and weights of a single device, step by step.

Holds `tiledask.distributed.training.config`, `tiledask.distributed.training.run`,
`tiledask.distributed.training.trainer` and `tiledask.tile.layers.by_name`.
"""

from dataclasses import replace
from functools import cache
from itertools import product

import numpy as np
import pytest
from oracles.planted_trainings import in_collectives
from oracles.single_gpt import TEXT, assert_single

import tiledask as td
from tiledask.distributed.training import GPT, config, train
from tiledask.errors import CheckpointError, PlacementError, ProgramError, ScheduleError
from tiledask.plan.pipelines.schedule import Schedule
from tiledask.plan.pipelines.schedules import V_SHAPED, is_looped
from tiledask.tile.optimizers import SGD

pytestmark = pytest.mark.usefixtures("one_thread")

SMALL = GPT(59, hidden=16, layers=3, heads=4, sequence=8)
TIED = GPT(59, hidden=16, layers=3, heads=4, sequence=8, tied=True)
BATCH, MICROBATCHES = 7, 4
RULE = SGD(0.1, momentum=0.9)


def factorisations(n):
    return [(a, b, n // a // b) for a, b in product(range(1, n + 1), repeat=2) if n % (a * b) == 0]


EVERY = [shape for n in (1, 2, 4, 8) for shape in factorisations(n)]
"""All 20 layouts of 1, 2, 4 and 8 ranks."""


def check(shape, model=SMALL, steps=2, batch=BATCH, rule=RULE, **options):
    """A training that has the single device's losses and weights, and the predicted traffic."""
    options = {"microbatches": MICROBATCHES, "dtype": "float64", "timeout": 240} | options
    got = train(model, TEXT, shape, steps=steps, batch=batch, rule=rule, **options)
    assert len(got.losses) == steps - got.first
    assert list(got.weights) == [f"{u}.{n}" for u in model.units for n in model.parameters(u)]
    assert {w.dtype for w in got.weights.values()} == {np.dtype(options["dtype"])}
    assert_single(got, batch, rule)
    return got


# -- every layout ----------------------------------------------------------------------------------


@pytest.mark.few(4)
@pytest.mark.parametrize("shape", EVERY, ids=str)
def test_every_layout_is_the_single_device(shape):
    """Without a pipeline two micro-batches are as many as any: their gradients are added up."""
    options = {"sequence_parallel": shape[1] in (2, 8), "schedule": ("1f1b", "gpipe")[shape[0] % 2]}
    check(shape, microbatches=MICROBATCHES if shape[2] > 1 else 2, **options)


@pytest.mark.parametrize("gated", [True, False])
def test_norms_and_angles_are_those_that_are_asked_for(gated, tmp_path):
    """And a checkpoint is of a training with them."""
    model = replace(SMALL, gated=gated, eps=0.5, base=20.0)
    usual = check((1, 1, 1), replace(model, eps=None, base=10_000.0))
    told = {"folder": tmp_path, "recompute": True}
    got = check((1, 2, 2), model, **told)
    assert abs(got.losses - usual.losses).min() > 1e-3
    with pytest.raises(CheckpointError, match=r"eps is 0\.5 there and none here"):
        check((1, 1, 1), replace(model, eps=None), steps=3, **told)
    check((1, 1, 1), model, steps=3, **told)


# -- every schedule --------------------------------------------------------------------------------

DEEP = {
    "GPT-2": GPT(59, hidden=16, layers=4, heads=4, sequence=8),
    "Llama tied": GPT(59, 16, 4, 4, 8, kv_heads=1, gated=True, tied=True),
}


@cache
def single(name):
    options = {"steps": 3, "batch": 8, "dtype": "float64", "progress": False}
    return train(DEEP[name], TEXT, (1, 1, 1), rule=RULE, **options)


@pytest.mark.few(3)
@pytest.mark.parametrize("model", DEEP)
@pytest.mark.parametrize("name", [*td.schedules])
@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ((1, 1), {}),
        ((2, 2), {"zero": 3, "sequence_parallel": True, "recompute": True}),
        ((1, 4), {"zero": 1, "recompute": True}),
    ],
    ids=str,
)
def test_every_schedule_trains_what_one_device_does(name, shape, options, model):
    """Those that split backwards too, and with blocks' forwards done again; those that have a stage
    on several ranks, which sum its gradients."""
    schedule = made(name, 2, 4)
    shape = (*shape[:2], schedule.devices)
    options |= {"steps": 3, "batch": 8, "dtype": "float64", "progress": False}
    got = train(DEEP[model], TEXT, shape, schedule=schedule, rule=RULE, **options)
    alone = single(model)
    np.testing.assert_allclose(got.losses, alone.losses, rtol=1e-13)
    for weight, w in got.weights.items():
        np.testing.assert_allclose(w, alone.weights[weight], rtol=1e-9, atol=1e-13)


def made(name, devices, microbatches):
    if name in (*V_SHAPED, "dualpipe"):
        return td.schedule(name, 2 * devices, microbatches)
    if is_looped(name):
        return td.schedule(name, 2 * devices, microbatches, devices=devices)
    return td.schedule(name, devices, microbatches)


# -- what comes back -------------------------------------------------------------------------------


def test_the_result_says_what_it_is():
    got = train(SMALL, TEXT, (1, 2, 2), steps=2, batch=4, microbatches=2)
    assert repr(got).startswith("Trained(2 steps on 4 ranks (dp=1, tp=2, pp=2), loss 4.")
    frame = got.to_frame()
    assert list(frame.columns) == ["loss", "bytes_sent", "messages", "barriers"]
    assert frame.bytes_sent.tolist() == [frame.bytes_sent[0]] * 2
    assert frame.bytes_sent[0] == sum(r.sent for r in got.records if r.step == 0) > 0
    assert "bytes_sent" in got._repr_html_()


# -- copies that came apart, and orders that cannot be -------------------------------------------


@pytest.mark.parametrize(
    ("label", "shape", "words"),
    [
        ("/gradients", (2, 1, 2), "copies 0 and 1 of the model have diff"),
        ("embedding/gradients", (2, 1, 1), "what was summed over dp was not the same"),
        ("tied table", (1, 1, 2), "embedding.table is on several pipeline ranks, and differs"),
    ],
    ids=["copies", "embedding", "tied table"],
)
def test_weights_that_came_apart_are_refused(monkeypatch, label, shape, words):
    """Planted: what a rank has brought is taken for the sum."""
    in_collectives(monkeypatch, label, lambda runner, mine, total: mine)
    with pytest.raises(PlacementError, match=words):
        check(shape, TIED if "pipeline ranks" in words else SMALL)


def test_an_order_that_waits_for_itself_is_refused(monkeypatch):
    """By its order; and where nobody looked, by its program: nothing runs."""
    stuck = Schedule.from_text("0F0,0B0,0F1,0B1; 1F1,1B1,1F0,1B0")
    with pytest.raises(ScheduleError, match="deadlock"):
        train(SMALL, TEXT, (1, 1, 2), steps=1, batch=2, schedule=stuck)
    monkeypatch.setattr(config, "validate", lambda schedule: schedule)
    with pytest.raises(ProgramError, match=r"deadlock: .* 0B.0: .*waits for rank 1"):
        train(SMALL, TEXT, (1, 1, 2), steps=1, batch=2, schedule=stuck)
