"""d2l's LeNet trained under every split: one device's losses and weights; what is published."""

from functools import cache
from itertools import product
from math import prod
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles.planned_calls import assert_planned
from oracles.published_cases import load_cases

import tiledask as td
from tiledask.distributed.convolution.lenet import LeNet, train_lenet
from tiledask.distributed.training.trainer import Trainer, unpacked
from tiledask.errors import ConfigError, PlacementError
from tiledask.lab import claims as lab
from tiledask.plan.program.count import calls
from tiledask.plan.program.making.lenet import EACH, NAMES, PARAMETERS, UNITS, Split, need
from tiledask.tile.datasets import load_images
from tiledask.tile.optimizers import SGD, Adam

pytestmark = pytest.mark.usefixtures("one_thread")

DIGITS = load_images("digits")
BATCH = 7
RULE = SGD(0.1, momentum=0.9)
TOLERANCE = 1e-10
"""Of a loss, and of the largest number of a weight, in float64."""
WIDE = td.tile.datasets.Images("wide", np.zeros((2, 28, 30), np.uint8), np.zeros(2), 2)


WAYS = [
    {name: n for name, n in zip(("data parallel", "network", inner), each, strict=True) if n > 1}
    for inner in ("by output units", "space")
    for each in product((1, 2, 4), repeat=3)
    if prod(each) <= 4 and (each[2] > 1 or inner == "space")
]
"""Every split over 1, 2 and 4 ranks."""


def label(ways):
    return str(Split.of(ways))


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
        near = {"rtol": 0, "atol": TOLERANCE * np.abs(w).max(), "strict": True}
        np.testing.assert_allclose(got.weights[name], w, **near, err_msg=name)
    assert_as_needed(got, ways, batch)
    return got


def assert_as_needed(got, ways, batch=BATCH):
    """Every rank called, held and worked what was planned for it."""
    assert_planned(got)
    itemsize, frame = got.weights["fc1.w"].itemsize, got.to_frame()
    planned = need(Split.of(ways), batch, 1, itemsize)
    assert [calls(got.program, r) for r in range(got.program.ranks)] == [
        [*c] for c in planned.calls
    ]
    assert [held["weights"] for held in got.held] == [itemsize * n for n in planned.parameters]
    assert set(frame.bytes_sent) == {sum(planned.sent)}
    assert set(frame.barriers) == {planned.barriers}


@pytest.mark.few(9)
@pytest.mark.parametrize("ways", WAYS, ids=label)
def test_every_split_is_the_single_device(ways):
    rule = Adam(1e-3) if len(ways) == 2 else RULE
    for held in check(ways, rule=rule).held:
        assert all(held[kept] == held["weights"] for kept in rule.keeps)


@pytest.mark.parametrize("batch", [1, 2, 5])
def test_some_copies_and_some_parts_have_more_images_than_others_or_none(batch):
    check({"data parallel": 3}, batch=batch)
    check({"data parallel": 2, "space": 2}, batch=batch)


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


def test_the_result_says_what_it_is_in_single_precision():
    got = train_lenet(DIGITS, {"data parallel": 2}, steps=2, batch=4)
    assert_as_needed(got, {"data parallel": 2}, 4)
    assert {w.dtype for w in got.weights.values()} == {np.dtype("f4")}
    assert repr(got).startswith("Trained(2 steps on data parallel 2, loss 2.")
    frame = got.to_frame()
    assert list(frame.columns) == ["loss", "bytes_sent", "messages", "barriers"]
    assert [*{*frame.bytes_sent}] == [2 * 4 * PARAMETERS]
    assert got.traffic.predicted == got.traffic.measured
    none = train_lenet(DIGITS, {}, steps=0, batch=4)
    assert repr(none) == "Trained(0 steps on a single device, no loss, 129,068 parameters)"


@pytest.mark.parametrize("where", ["threads", pytest.param("workers", marks=pytest.mark.cluster)])
def test_the_table(where, request):
    workers = where == "workers"
    mesh = td.Mesh(request.getfixturevalue("cluster"), (4,)) if workers else None
    table = lab.lenet_claims(mesh, images=5, dtype="float64")
    assert table.ok
    assert table.counts["checked"] == len(table.rows) == 19
    assert "layerwise: synchronisations" in table.to_text(120)
    assert "most weights on a device" in table._repr_html_()


def test_d2l_says_who_holds_who_works_and_who_sends_how_much():
    case = {each["id"]: each["expected"] for each in load_cases("tensor_parallel.json")}
    parts = {name: LeNet(Split()).parameters(name).values() for name in NAMES}
    by = {name: sum(p.size for p in each) for name, each in parts.items()}
    assert by == {"conv1": 200, "conv2": 25_050, "fc1": 102_528, "fc2": 1_290}
    assert sum(by.values()) == PARAMETERS == case["d2l_lenet_params"]["params"]
    ways = "network", "layerwise", "data parallel"
    network, layerwise, data = (need(n, 256, 4, 4) for n in ways)
    assert max(network.parameters) == 102_528  # 79 % on one device
    assert round(max(layerwise.parameters) / PARAMETERS, 3) == 0.252
    assert set(data.parameters) == {PARAMETERS}
    assert [round(each.imbalance, 2) for each in (network, layerwise, data)] == [3.67, 1.04, 1.0]
    said = case["d2l_lenet_network"]
    assert [256 * UNITS[n] * EACH[n] * 4 for n in NAMES[:-1]] == said["fwd_bytes"]
    assert sum(network.sent) == said["total_bytes_fwd_bwd"]
    assert (network.transfers, data.barriers) == (said["transfers"], 1)
    assert set(data.sent) == {case["d2l_lenet_dp"]["bytes_per_device"]}
    said = case["d2l_lenet_layerwise"]
    assert sum(layerwise.sent) == said["bytes_all_devices"]
    assert sum(layerwise.sent) / 4 == said["bytes_per_device"]  # on average: 50 channels on 4
    assert layerwise.barriers == said["barriers"]
    assert round(sum(layerwise.sent) / sum(network.sent), 3) == said["vs_network_total_ratio"]


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


@pytest.mark.parametrize("ways", [{"space": 2}, {"data parallel": 2}], ids=label)
def test_biases_that_are_not_added_up_are_refused(monkeypatch, ways):
    """Planted: the gradients of w only are summed, and each rank steps its own copy of b."""
    honest = Trainer._step

    def only_w(self, updates, gradients, weights, *reads, **told):
        unit = next(u for u in self.units if self.arrays["weights"][u] is weights)
        mixed, own, of = gradients.copy(), self.arrays["gradients"][unit], self.shapes[unit]
        unpacked(mixed, of)["b"][...] = unpacked(own, of)["b"]
        return honest(self, updates, mixed, weights, *reads, **told)

    monkeypatch.setattr(Trainer, "_step", only_w)
    with pytest.raises(PlacementError, match=r"0 and 1.*(both hold|have different weights)"):
        check(ways)
