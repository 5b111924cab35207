"""d2l's LeNet trained under every split: losses and weights of a single device, step by step.

Holds `tiledask.distributed.convolution.lenet`, `tiledask.plan.program.making.lenet`,
`tiledask.distributed.ranks.rank` and `tiledask.lab.exercises.convolutions`.
"""

from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tiledask as td
from tiledask.distributed.convolution.lenet import LeNetTrainer, train_lenet
from tiledask.distributed.training.trainer import unpacked
from tiledask.errors import ConfigError, PlacementError
from tiledask.plan.program.making.lenet import PARAMETERS, Split, need
from tiledask.tile.datasets import load_images
from tiledask.tile.optimizers import SGD, Adam

pytestmark = pytest.mark.usefixtures("one_thread")

DIGITS = load_images("digits")
BATCH = 7
RULE = SGD(0.1, momentum=0.9)
TOLERANCE = 1e-10
"""Of a loss, and of the largest number of a weight, in float64."""
WIDE = td.tile.datasets.Images("wide", np.zeros((2, 28, 30), np.uint8), np.zeros(2), 2)
PURE = ("data parallel", "network", "by output units", "space")


def splits(ranks):
    """Every way to split over so many ranks."""
    found = []
    for copies in range(1, ranks + 1):
        for stages in (n for n in range(1, 5) if ranks % (copies * n) == 0):
            outer, parts = (copies, stages), ranks // copies // stages
            inner = ("by output units", "space") if parts > 1 else ("by output units",)
            sizes = [dict(zip(PURE, outer, strict=False)) | {name: parts} for name in inner]
            found += [{name: n for name, n in each.items() if n > 1} for each in sizes]
    return found


def label(ways):
    return str(Split.of(ways))


# -- a training, beside that of a single device -------------------------------------------------


@cache
def alone(steps, batch=BATCH, rule=RULE):
    """Of a single device in float64, whose layers are tile's; golden values hold its losses."""
    return train_lenet(DIGITS, {}, steps=steps, batch=batch, rule=rule, dtype="float64")


def check(ways, steps=2, batch=BATCH, rule=RULE, mesh=None):
    """A training with the single device's losses and weights, and the predicted traffic."""
    options = {"steps": steps, "batch": batch, "rule": rule, "dtype": "float64", "timeout": 240}
    got = train_lenet(DIGITS, ways, mesh, **options)
    one = alone(steps, batch, rule)
    np.testing.assert_allclose(got.losses, one.losses, rtol=TOLERANCE)
    assert list(got.weights) == list(one.weights)
    for name, w in one.weights.items():
        assert got.weights[name].dtype == np.float64
        far = np.abs(got.weights[name] - w).max() / np.abs(w).max()
        assert far <= TOLERANCE, f"{name}: {far:.2g}"
    assert_planned(got, ways, batch)
    return got


def assert_planned(got, ways, batch=BATCH):
    """Every rank called in every step what was planned for it, in that order, to the byte; it
    holds and works what was planned."""
    itemsize, ran = got.weights["fc1.w"].itemsize, {}
    planned = need(Split.of(ways), batch, 1, itemsize)
    for r in got.records:
        ran.setdefault((r.rank, r.step), []).append((r.label, r.kind, *r.counted))
    for rank, calls in enumerate(planned.calls):
        for step in range(len(got.losses)):
            said = [tuple(call) for call in calls]
            assert ran.get((rank, step), []) == said, f"rank {rank}, step {step}"
    assert not len(got.records.mismatches)
    assert got.flops == list(planned.flops)
    assert [held["weights"] for held in got.held] == [itemsize * n for n in planned.parameters]
    frame = got.to_frame()
    assert set(frame.bytes_sent) == {sum(planned.sent)}
    assert set(frame.messages) == {sum(c.messages for mine in planned.calls for c in mine)}
    assert set(frame.barriers) == {planned.barriers}


# -- every split -----------------------------------------------------------------------------------


@pytest.mark.few(9)
@pytest.mark.parametrize("ways", [w for n in (1, 2, 4) for w in splits(n)], ids=label)
def test_every_split_is_the_single_device(ways):
    rule = Adam(1e-3) if len(ways) == 2 else RULE
    got = check(ways, rule=rule)
    for held in got.held:
        assert all(held[kept] == held["weights"] for kept in rule.keeps)


@pytest.mark.parametrize("batch", [1, 2, 5])
@pytest.mark.parametrize("ways", [{"data parallel": 3}, {"data parallel": 2, "space": 2}], ids=str)
def test_some_copies_and_some_parts_have_more_images_than_others_or_none(ways, batch):
    check(ways, batch=batch)


def test_it_learns_in_single_precision():
    ways = {"network": 2, "by output units": 2}
    got = train_lenet(DIGITS, ways, steps=30, batch=32, rule=Adam(3e-3))
    assert_planned(got, ways, batch=32)
    assert got.losses[-5:].mean() < 0.7 < 2.2 < got.losses[0]
    assert got.weights["conv1.w"].dtype == np.float32
    in_double = alone(3, 32, Adam(3e-3)).losses
    assert 0 < np.abs(got.losses[:3] / in_double - 1).max() < 1e-5


@pytest.mark.cluster
@pytest.mark.parametrize(
    "ways", [{"data parallel": 2, "by output units": 2}, {"network": 2, "space": 2}], ids=label
)
def test_on_workers(cluster, ways):
    check(ways, steps=3, mesh=td.Mesh(cluster, (4,)))


# -- what is planned -------------------------------------------------------------------------------


@settings(deadline=None, max_examples=25)
@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 8), st.booleans(), st.integers(1, 40))
def test_all_that_is_sent_is_received_and_no_split_does_more_or_less_work(
    copies, stages, parts, in_space, images
):
    said = need(Split(copies, stages, parts, in_space), images, 1, 4)
    calls = [call for mine in said.calls for call in mine]
    assert sum(said.sent) == sum(call.received for call in calls)
    assert said.transfers == sum(call.kind == "recv" for call in calls)
    # 2 for each weight at each place: forward, for dw, and for dx, which the first has not
    places = {"conv1": 26 * 26 * 180, "conv2": 9 * 9 * 25_000, "fc1": 102_400, "fc2": 1_280}
    times = {name: 2 * images * n * (2 if name == "conv1" else 3) for name, n in places.items()}
    assert sum(said.flops) == sum(times.values())
    assert sum(said.parameters) == PARAMETERS * copies * (parts if in_space else 1)


def test_the_result_says_what_it_is():
    got = train_lenet(DIGITS, {"data parallel": 2}, steps=2, batch=4)
    assert repr(got).startswith("Trained(2 steps on data parallel 2, loss 2.")
    frame = got.to_frame()
    assert list(frame.columns) == ["loss", "bytes_sent", "messages", "barriers"]
    assert frame.bytes_sent.tolist() == [2 * 4 * PARAMETERS] * 2
    assert got.traffic.predicted == got.traffic.measured
    assert got.layers().bytes.tolist() == [2 * 4 * PARAMETERS]
    assert "bytes_sent" in got._repr_html_()
    none = train_lenet(DIGITS, {}, steps=0, batch=4)
    assert repr(none) == "Trained(0 steps on a single device, no loss, 129,068 parameters)"
    assert none.losses.shape == (0,)


REFUSED = [
    ({"tensor": 2}, {}, ConfigError, "'space', got 'tensor'"),
    ({"network": 0}, {}, ConfigError, "network must be .* 1 or more ranks, got 0"),
    ({"by output units": 2, "space": 2}, {}, ConfigError, "in space, got .*; keep one"),
    ({"network": 5}, {}, PlacementError, "LeNet has 4: got 5"),
    ("by output units", {}, ConfigError, r"how many ranks each has: \{'by output units': 4\}"),
    ({}, {"data": WIDE}, ConfigError, "images of 28 x 28 and up to 10 classes, got Images"),
    ({}, {"batch": 0}, ConfigError, "batch must be a whole number of 1 or more images, got 0"),
    ({}, {"dtype": "float16"}, ConfigError, "'float32' or 'float64', got 'float16'"),
    ({}, {"mesh": SimpleNamespace(ranks=4)}, PlacementError, "takes 1 ranks, and the mesh has 4"),
]


@pytest.mark.parametrize(("ways", "options", "error", "words"), REFUSED, ids=str)
def test_refusals(ways, options, error, words):
    with pytest.raises(error, match=words):
        train_lenet(**{"data": DIGITS, "ways": ways, "steps": 1, "batch": 2} | options)


# -- copies of the weights that came apart ---------------------------------------------------------


@pytest.mark.parametrize("ways", [{"space": 2}, {"data parallel": 2}], ids=label)
def test_biases_that_are_not_added_up_are_refused(monkeypatch, ways):
    """Planted: the gradients of w only are summed, and each rank steps its own copy of b."""
    honest = LeNetTrainer._step

    def only_w(self, updates, gradients, weights, *reads, **told):
        unit = next(u for u in self.units if self.arrays["weights"][u] is weights)
        mixed, own = gradients.copy(), self.arrays["gradients"][unit]
        of = self.shapes[unit]
        unpacked(mixed, of)["b"][...] = unpacked(own, of)["b"]
        return honest(self, updates, mixed, weights, *reads, **told)

    monkeypatch.setattr(LeNetTrainer, "_step", only_w)
    with pytest.raises(PlacementError, match=r"0 and 1.*(both hold|have different weights)"):
        check(ways)
