"""d2l's LeNet split three ways: one loss, one gradient, and what is published about them."""

import pytest
from oracles.gradients import draw
from oracles.published_cases import load_cases
from test_convolution import check_conv as check_rows

import tiledask as td
from tiledask.distributed import tensor as T
from tiledask.distributed.convolution.lenet import LeNet
from tiledask.lab import claims as lab
from tiledask.plan.collectives.cost import even
from tiledask.plan.program.making.lenet import EACH, NAMES, PARAMETERS, UNITS, Split, need

pytestmark = pytest.mark.usefixtures("one_thread")

CASES = {case["id"]: case for case in load_cases("tensor_parallel.json")}


# -- the table -------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["threads", pytest.param("workers", marks=pytest.mark.cluster)])
def test_the_table(where, request):
    workers = where == "workers"
    mesh = td.Mesh(request.getfixturevalue("cluster"), (4,)) if workers else None
    table = lab.lenet_claims(mesh, images=5, dtype="float64")
    assert table.ok
    assert table.counts["checked"] == len(table.rows) == 22
    assert "layerwise: synchronisations" in table.to_text(120)
    assert "busiest over mean FLOP" in table._repr_html_()


# -- what is published -----------------------------------------------------------------------------


def expected(case_id):
    return CASES[case_id]["expected"]


def test_d2l_says_who_holds_who_works_and_who_sends_how_much():
    by = {"conv1": 200, "conv2": 25_050, "fc1": 102_528, "fc2": 1_290}
    parts = {name: LeNet(Split()).parameters(name).values() for name in NAMES}
    assert {name: sum(p.size for p in each) for name, each in parts.items()} == by
    assert sum(by.values()) == PARAMETERS == expected("d2l_lenet_params")["params"]
    network, layerwise, data = (
        need(n, 256, 4, 4) for n in ("network", "layerwise", "data parallel")
    )
    assert max(network.parameters) == 102_528  # 79 % on one device
    assert round(max(layerwise.parameters) / PARAMETERS, 3) == 0.252
    assert set(data.parameters) == {PARAMETERS}
    assert [round(each.imbalance, 2) for each in (network, layerwise, data)] == [3.67, 1.04, 1.0]
    said = expected("d2l_lenet_network")
    assert [256 * UNITS[n] * EACH[n] * 4 for n in NAMES[:-1]] == said["fwd_bytes"]
    assert sum(network.sent) == said["total_bytes_fwd_bwd"]
    assert (network.transfers, data.barriers) == (said["transfers"], 1)
    assert set(data.sent) == {expected("d2l_lenet_dp")["bytes_per_device"]}
    said = expected("d2l_lenet_layerwise")
    assert sum(layerwise.sent) == said["bytes_all_devices"]
    assert sum(layerwise.sent) / 4 == said["bytes_per_device"]  # on average: 50 channels on 4
    assert layerwise.barriers == said["barriers"]
    assert round(sum(layerwise.sent) / sum(network.sent), 3) == said["vs_network_total_ratio"]


def test_a_padded_convolution_of_a_shard():
    """The shape that is right, where another framework gives half of it; here by rows."""
    case = CASES["dtensor_conv_spatial"]
    x, w, b = draw(case["inputs"]["x"], (8, 8, 3, 3), (8,))
    done = check_rows(x, w, b, even(x.shape[2], 2), padding=1)
    shape = T.whole_of([result[0] for result in done.results]).shape
    assert list(shape) == case["expected"]["correct"] != case["expected"]["dtensor"]
