"""Published, executed and derived numbers about convolutions and data parallelism, case by case.

Holds `tiledask.distributed.convolution.local`.
"""

import json
from pathlib import Path

import numpy as np
import pytest
from oracles import placed_convolution as placed
from oracles.gradients import draw

from tiledask.distributed.convolution import channels as C
from tiledask.distributed.convolution import lenet_plan
from tiledask.distributed.convolution.lenet import BOUNDARIES
from tiledask.distributed.ranks.threads import run_threads
from tiledask.distributed.tensor.placed import replicate, shard
from tiledask.plan.collectives import convolution as P
from tiledask.tile import layers as L

pytestmark = pytest.mark.usefixtures("one_thread")

FILE = Path(__file__).parents[3] / "data" / "published" / "tensor_parallel.json"
CASES = {case["id"]: case for case in json.loads(FILE.read_text("utf-8"))}


def expected(case_id):
    return CASES[case_id]["expected"]


def test_d2l_lenet():
    assert expected("d2l_lenet_params")["params"] == lenet_plan.PARAMETERS
    network = lenet_plan.need("network", 256, 4, 4)
    said = expected("d2l_lenet_network")
    assert [256 * b.units * b.each * 4 for b in BOUNDARIES[:-1]] == said["fwd_bytes"]
    assert sum(network.sent) == said["total_bytes_fwd_bwd"]
    assert network.transfers == said["transfers"]
    data = lenet_plan.need("data parallel", 256, 4, 4)
    assert set(data.sent) == {expected("d2l_lenet_dp")["bytes_per_device"]}
    layerwise, said = lenet_plan.need("layerwise", 256, 4, 4), expected("d2l_lenet_layerwise")
    assert sum(layerwise.sent) == said["bytes_all_devices"]
    assert sum(layerwise.sent) / 4 == said["bytes_per_device"]  # on average: 50 channels on 4
    assert layerwise.barriers == said["barriers"]
    assert round(sum(layerwise.sent) / sum(network.sent), 3) == said["vs_network_total_ratio"]


def test_64_channels_on_4():
    case = CASES["d2l_64ch"]
    slices = run_threads(lambda rank: C.own(rank.group(), case["inputs"]["C"]), 4).results
    assert {s.stop - s.start for s in slices} == {case["expected"]["per_gpu"]}


def test_alternating_convolutions():
    """Alpa's 4 layers: those of two pairs, without the gradient of the images."""
    conv = P.Convolution(2, 8, 8, (6, 6), (3, 3), padding=((1, 1), (1, 1)))
    calls = P.in_pairs(conv, conv, 4, 8, dx=False) + P.in_pairs(conv, conv, 4, 8)
    assert len(calls) == expected("alpa_counts_conv")["all_reduce"]
    assert {call.kind for call in calls} == {"all_reduce"}


def test_a_padded_convolution_of_a_shard():
    """The shape that is right, where another framework gives half of it; here by rows."""
    case = CASES["dtensor_conv_spatial"]
    x, w, b = draw(case["inputs"]["x"], (8, 8, 3, 3), (8,))

    def program(rank):
        group = rank.group()
        return placed.conv2d(group, shard(group, x, 2), replicate(w), replicate(b), padding=1)[0]

    y = run_threads(program, 2).results
    assert list(y[0].shape) == case["expected"]["correct"] != case["expected"]["dtensor"]
    whole = L.conv2d(x, w, b, padding=1)[0]
    np.testing.assert_allclose(np.concatenate([p.local for p in y], axis=2), whole, atol=1e-13)


@pytest.mark.parametrize("way", ["out", "in", "spatial"])
def test_uneven_splits_in_double_precision(way):
    """10 filters, 6 channels and 11 rows on 4 ranks: as far from one device as was measured."""
    x, w = draw((4, 6, 11, 11), (10, 6, 3, 3))
    y, _ = L.conv2d(x, w, padding=1)
    w_dim, x_dim = {"out": (0, None), "in": (1, 1), "spatial": (None, 2)}[way]

    def program(rank):
        group = rank.group()
        lay = lambda a, dim: replicate(a) if dim is None else shard(group, a, dim)  # noqa: E731
        return placed.conv2d(group, lay(x, x_dim), lay(w, w_dim), padding=1)[0]

    parts = [p.local for p in run_threads(program, 4).results]
    dim = {"out": 1, "in": None, "spatial": 2}[way]
    found = parts[0] if dim is None else np.concatenate(parts, axis=dim)
    assert np.abs(found - y).max() <= 1e-13
    assert expected("conv_channel_equal")[way] <= 1e-13
