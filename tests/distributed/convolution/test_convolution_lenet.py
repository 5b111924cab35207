"""d2l's LeNet split three ways: one loss, one gradient, and d2l's claims about them.

Holds `tiledask.distributed.convolution.lenet`, `tiledask.distributed.convolution.lenet_runs`,
`tiledask.distributed.convolution.lenet_step`, `tiledask.distributed.ranks.group`,
`tiledask.distributed.ranks.halos`, `tiledask.distributed.ranks.nccl_own` and `tiledask.lab.lenet`.
"""

from dataclasses import replace

import numpy as np
import pytest
from oracles.calls import assert_close

import tiledask as td
from tiledask.distributed.convolution import lenet_runs as R
from tiledask.distributed.convolution import lenet_step as step
from tiledask.distributed.convolution.lenet import LENET, flops, samples
from tiledask.distributed.convolution.lenet_plan import need
from tiledask.distributed.data_parallel.chain import gradients, initial_weights, sizes
from tiledask.distributed.ranks.group import Group
from tiledask.distributed.ranks.threads import run_threads
from tiledask.errors import PlacementError
from tiledask.lab.lenet import lenet_claims

pytestmark = pytest.mark.usefixtures("one_thread")

PARAMETERS = 129_068


def check(name, images, ranks, run=run_threads, dtype="float64", tolerance=2e-14):
    weights = initial_weights(LENET, seed=1, dtype=dtype)
    x, classes = samples(images, dtype=dtype)
    loss, grads = gradients(LENET, weights, x, classes)
    done = run(R.PARTITIONINGS[name], ranks, weights, x, classes)
    found, ours = R.put_together(name, done.results)
    assert abs(found - loss) <= tolerance * loss
    assert list(ours) == list(grads)
    for layer, each in grads.items():
        for kind, g in each.items():
            assert_close(ours[layer][kind], g, tolerance)
    if name == "data parallel":  # every replica has them all
        for share in done.results[1:]:
            for layer, each in share.grads.items():
                for kind, g in each.items():
                    np.testing.assert_array_equal(g, ours[layer][kind])
    said = need(name, images, ranks, np.dtype(dtype).itemsize)
    for rank, calls in enumerate(said.calls):
        ran = [(r.label, r.kind, *r.counted) for r in done.records.where(rank=rank)]
        assert ran == [tuple(call) for call in calls], f"rank {rank}"
    assert len(done.records.mismatches) == 0
    return done


@pytest.mark.parametrize("name", R.PARTITIONINGS)
@pytest.mark.parametrize(("images", "ranks"), [(8, 4), (7, 3), (3, 4), (2, 1)])
def test_the_loss_and_all_gradients_are_those_of_one_device(name, images, ranks):
    done = check(name, images, ranks)
    said, share = need(name, images, ranks, 8), done.results
    assert [s.weight_bytes for s in share] == [8 * n for n in said.parameters]
    assert [s.flops for s in share] == list(said.flops)
    assert sum(said.parameters) == PARAMETERS * (ranks if name == "data parallel" else 1)


@pytest.mark.long
@pytest.mark.parametrize("ranks", [11, 24])
def test_more_ranks_than_classes_and_than_channels(ranks):
    check("layerwise", 2, ranks)


def test_layers_and_parameters():
    assert sizes(LENET) == {"conv1": 200, "conv2": 25_050, "fc1": 102_528, "fc2": 1_290}
    assert sum(sizes(LENET).values()) == PARAMETERS


def test_no_split_does_more_or_less_work():
    for name in R.PARTITIONINGS:
        total = sum(need(name, 10, 4, 4).flops)
        assert total == sum(flops(layer.name, 10) for layer in LENET)
    # 2 x 256 images x 9x9 places x 50 channels x 20x5x5 weights, 3 times
    assert flops("conv2", 256) == 3 * 2 * 256 * 81 * 50 * 500


def test_what_d2l_says_in_words():
    """Of 4 devices: who holds how much, and who works how much."""
    network, layerwise, data = (
        need(n, 256, 4, 4) for n in ("network", "layerwise", "data parallel")
    )
    assert max(network.parameters) == 102_528  # 79 % on one device
    assert round(max(layerwise.parameters) / PARAMETERS, 3) == 0.252
    assert set(data.parameters) == {PARAMETERS}
    assert round(network.imbalance, 2) == 3.67
    assert round(layerwise.imbalance, 2) == 1.04
    assert data.imbalance == 1.0
    assert (layerwise.barriers, network.transfers, data.barriers) == (7, 6, 1)


def test_the_table():
    table = lenet_claims(images=5, dtype="float64")
    assert table.ok
    assert table.checked == len(table.rows) == 22
    text = table.to_text(120)
    assert "layerwise: synchronisations" in text
    assert "busiest over mean FLOP" in table._repr_html_()


def test_a_table_notices_a_wrong_prediction(monkeypatch):
    """Planted: for each rank a call less is predicted."""
    from tiledask.lab import lenet

    def wrong(name, *args):
        found = need(name, *args)
        return replace(found, calls=tuple(calls[1:] for calls in found.calls))

    monkeypatch.setattr(lenet, "need", wrong)
    failed = {row.quantity for row in lenet_claims(images=5, dtype="float64").failures}
    assert "layerwise: synchronisations" in failed
    assert "network: transfers" in failed
    assert "data parallel: bytes, all devices" in failed


@pytest.mark.slow
@pytest.mark.long
def test_d2l_claims_at_batch_256():
    """Bytes and barriers as published/tensor_parallel.json has them, in float32 as d2l's."""
    sent = {}
    for name in R.PARTITIONINGS:
        done = check(name, 256, 4, dtype="float32", tolerance=2e-5)
        sent[name] = [sum(r.sent for r in done.records.where(rank=i)) for i in range(4)]
        barriers = done.records.barriers
        if name == "layerwise":
            assert barriers == {None: 7}
            ways = done.records.where(rank=0).totals("kind")
            assert (ways["all_gather"].calls, ways["reduce_scatter"].calls) == (4, 3)
        elif name == "network":
            assert barriers == {}
            transfers = [r.sent for r in done.records.where(kind="send")]
            assert sorted(transfers) == sorted(2 * [3_461_120, 819_200, 131_072])
        else:
            assert barriers == {None: 1}
    assert sum(sent["layerwise"]) == 26_499_072
    assert sum(sent["network"]) == 8_822_784
    assert sent["data parallel"] == [774_408] * 4


@pytest.mark.cluster
@pytest.mark.parametrize("name", R.PARTITIONINGS)
def test_on_workers(cluster, name):
    def run(program, ranks, *args):
        return td.run_ranks(program, td.Mesh(cluster, (ranks,)), *args, timeout=60.0)

    check(name, 6, 4, run)


@pytest.mark.cluster
def test_the_table_on_workers(cluster):
    assert lenet_claims(td.Mesh(cluster, (4,)), images=5).ok


# -- refusals and planted faults -------------------------------------------------------------------


def test_more_stages_than_layers_are_refused():
    with pytest.raises(PlacementError, match="LeNet has 4: got 5 ranks; use 4 or fewer"):
        run_threads(R.PARTITIONINGS["network"], 5, initial_weights(LENET), *samples(2))


def test_a_mean_of_means_is_noticed(monkeypatch):
    """Planted: ranks with 2, 2 and 3 images count the same."""
    honest = step._ByUnits.loss
    by_rank = lambda way, y, classes, batch: honest(way, y, classes, 3 * len(classes))  # noqa: E731
    monkeypatch.setattr(step._ByUnits, "loss", by_rank)
    with pytest.raises(AssertionError):
        check("data parallel", 7, 3)


def test_a_partial_gradient_that_is_not_summed_is_noticed(monkeypatch):
    """Planted: each rank goes on with its own part of dh."""

    def own_part(self, x, dim, extents):
        start = sum(extents[: self.rank])
        return x[:, start : start + extents[self.rank]]

    monkeypatch.setattr(Group, "reduce_scatter", own_part)
    with pytest.raises(AssertionError, match="of the largest element"):
        check("layerwise", 4, 4)


def test_gradients_added_in_many_pieces_are_noticed(monkeypatch):
    """Planted: an all_reduce for each tensor, which d2l's own code does: 8 synchronisations."""

    def by_tensor(group, grads):
        with group.label("gradients"):
            return {
                layer: {name: group.all_reduce(g) for name, g in each.items()}
                for layer, each in grads.items()
            }

    monkeypatch.setattr(step, "_added", by_tensor)
    with pytest.raises(AssertionError, match="rank 0"):
        check("data parallel", 4, 4)
