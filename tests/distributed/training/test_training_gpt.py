"""A small GPT under every (dp, tp, pp): the losses and weights of a single device, step by step.

Holds `tiledask.distributed.training.validate`.
"""

import time
from itertools import product

import numpy as np
import pytest
from oracles.single_gpt import TEXT, assert_single, reference

import tiledask as td
from tiledask.distributed.data_parallel.zero import Zero
from tiledask.distributed.training import GPT, stages, train, validate
from tiledask.distributed.training.states import States
from tiledask.distributed.transport import transport
from tiledask.errors import (
    CollectiveError,
    ConfigError,
    PartitionError,
    PlacementError,
    ScheduleError,
)
from tiledask.plan.pipelines.schedule import Schedule
from tiledask.tile.optimizers import SGD, Adam

pytestmark = pytest.mark.usefixtures("one_thread")

SMALL = GPT(59, hidden=16, layers=3, heads=4, sequence=8)
LLAMA = GPT(59, hidden=16, layers=2, heads=4, sequence=8, kv_heads=2, ffn=27, gated=True)
FIFTY = GPT(59, hidden=16, layers=2, heads=4, sequence=8)
BATCH, MICROBATCHES = 7, 4
RULE = SGD(0.1, momentum=0.9)


def factorisations(n):
    return [(a, b, n // a // b) for a, b in product(range(1, n + 1), repeat=2) if n % (a * b) == 0]


EVERY = [shape for n in (1, 2, 4, 8) for shape in factorisations(n)]
"""All 20 layouts of 1, 2, 4 and 8 ranks."""


def check(shape, model=SMALL, steps=2, batch=BATCH, rule=RULE, **options):
    """A training that has the single device's losses and weights, and the predicted traffic."""
    options = {"microbatches": MICROBATCHES, "dtype": "float64", "timeout": 120.0} | options
    cluster = options.pop("cluster", None)
    ranks = td.Mesh(cluster, shape) if cluster else shape
    got = train(model, TEXT, ranks, steps=steps, batch=batch, rule=rule, **options)
    assert len(got.losses) == steps - got.first
    assert list(got.weights) == [f"{u}.{n}" for u in model.units for n in model.parameters(u)]
    assert {w.dtype for w in got.weights.values()} == {np.dtype(options["dtype"])}
    assert_single(got, batch, rule)
    return got


# -- every layout ----------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.few(6)
@pytest.mark.parametrize("shape", EVERY, ids=str)
def test_every_layout_is_the_single_device(shape):
    """Without a pipeline two micro-batches are as many as any: their gradients are added up."""
    options = {"sequence_parallel": shape[1] in (2, 8), "schedule": ("1f1b", "gpipe")[shape[0] % 2]}
    check(shape, microbatches=MICROBATCHES if shape[2] > 1 else 2, **options)


@pytest.mark.long
def test_many_steps():
    """Fifty, and in every layout: make soak."""
    got = check((2, 1, 2), FIFTY, steps=20, microbatches=2)
    assert got.losses[-5:].mean() < got.losses[:5].mean() - 0.3


@pytest.mark.slow
@pytest.mark.parametrize("shape", EVERY, ids=str)
def test_fifty_steps_of_every_layout(shape, capsys):
    began, order = time.perf_counter(), ("1f1b", "gpipe")[shape[0] % 2]
    options = {"sequence_parallel": shape[1] in (2, 8), "schedule": order}
    got = check(shape, FIFTY, steps=50, timeout=270.0, **options)
    assert got.losses[-5:].mean() < got.losses[:5].mean() - 0.5
    off = np.abs(got.losses / reference(FIFTY, 50, BATCH, RULE)[0] - 1).max()
    with capsys.disabled():
        print(
            f"\n(dp, tp, pp) = {shape}, {order}: loss {got.losses[0]:.3f} -> {got.losses[-1]:.3f}, "
            f"at most {off:.0e} from one device, {time.perf_counter() - began:.0f} s",
            end=" ",
        )


@pytest.mark.long
@pytest.mark.few(3)
@pytest.mark.parametrize("shape", [(2, 1, 2), (3, 2, 1)], ids=str)
@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
@pytest.mark.parametrize("zero", [1, 2, 3])
def test_zero_in_a_pipeline(zero, schedule, shape):
    check(shape, zero=zero, schedule=schedule, rule=Adam(1e-2), microbatches=2 * shape[2])


@pytest.mark.long
@pytest.mark.few(2)
@pytest.mark.parametrize("sequence_parallel", [False, True])
@pytest.mark.parametrize("shape", [(1, 3, 1), (1, 8, 1), (2, 3, 2)], ids=str)
def test_rotary_and_shared_kv_heads_that_do_not_divide(shape, sequence_parallel):
    options = {"sequence_parallel": sequence_parallel, "zero": shape[0] - 1}
    check(shape, LLAMA, microbatches=2, **options)


@pytest.mark.long
@pytest.mark.few(2)
@pytest.mark.parametrize("zero", [0, 3])
@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 2, 1), (2, 1, 3), (2, 2, 2)], ids=str)
def test_a_tied_embedding(shape, zero):
    check(shape, GPT(59, 16, 3, 4, 8, tied=True), zero=zero)


@pytest.mark.long
@pytest.mark.parametrize("cut", [(3, 0, 0), (0, 1, 2), (1, 1, 1), (0, 0, 3)])
def test_uneven_layers(cut):
    check((1, 1, 3), cut=cut)


@pytest.mark.long
@pytest.mark.parametrize("batch", [1, 5, 13])
def test_rows_that_do_not_divide(batch):
    """Some copies, and some micro-batches, have more rows than others, or none."""
    check((3, 1, 2), batch=batch, microbatches=2)


@pytest.mark.long
def test_float32_is_as_near_to_float64_as_a_single_device_is():
    losses, weights = reference(SMALL, 2, BATCH, RULE)

    def errors(shape):
        options = {"batch": BATCH, "microbatches": MICROBATCHES, "rule": RULE}
        got = train(SMALL, TEXT, shape, steps=2, **options)
        assert got.weights["head.w_head"].dtype == np.float32
        far = [np.abs(got.weights[n] - w).max() / np.abs(w).max() for n, w in weights.items()]
        return np.abs(got.losses / losses - 1).max(), max(far)

    alone, split = errors((1, 1, 1)), errors((2, 2, 2))
    assert 0 < split[0] < max(4 * alone[0], 1e-6)
    assert 0 < split[1] < 4 * alone[1] < 1e-4


@pytest.mark.long
@pytest.mark.cluster
def test_on_eight_workers():
    with td.start_cluster(workers=8, device="cpu", quiet=True) as cluster:
        got = check(
            (2, 2, 2), cluster=cluster, steps=3, microbatches=2, sequence_parallel=True, zero=1
        )
        assert got.shape == (2, 2, 2)


# -- what comes back -------------------------------------------------------------------------------


@pytest.mark.long
def test_the_result_says_what_it_is():
    got = train(SMALL, TEXT, (1, 2, 2), steps=2, batch=4, microbatches=2)
    assert repr(got).startswith("Trained(2 steps on 4 ranks (dp=1, tp=2, pp=2), loss 4.")
    frame = got.to_frame()
    assert list(frame.columns) == ["loss", "bytes_sent", "messages", "barriers"]
    assert frame.bytes_sent.tolist() == [frame.bytes_sent[0]] * 2
    assert frame.bytes_sent[0] == sum(r.sent for r in got.records if r.step == 0) > 0
    assert "bytes_sent" in got._repr_html_()


@pytest.mark.long
def test_messages_between_stages_are_the_activations():
    for sequence_parallel, each in ((False, 8), (True, 4)):
        got = train(
            SMALL,
            TEXT,
            (1, 2, 3),
            steps=1,
            batch=6,
            microbatches=3,
            dtype="float64",
            sequence_parallel=sequence_parallel,
        )
        sends = [r for r in got.records if r.kind == "send"]
        assert len(sends) == 2 * 2 * 3 * 2  # tensor ranks, links, micro-batches, ways
        assert {r.sent for r in sends} == {2 * each * 16 * 8}  # rows, tokens, hidden, bytes


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_bytes_held(zero):
    """Momentum is sharded from ZeRO-1 on, gradients from 2, weights from 3."""
    got = train(SMALL, TEXT, (4, 1, 1), steps=1, batch=4, rule=RULE, zero=zero)
    for tensor, dealt in (("momentum", 1), ("gradients", 2), ("weights", 3)):
        held = [h[tensor] for h in got.held]
        if zero >= dealt:
            assert sum(held) == 4 * SMALL.size
            assert max(held) - min(held) <= 4
        else:
            assert held == [4 * SMALL.size] * 4


def test_refusals():
    def go(shape=(1, 1, 2), model=SMALL, **options):
        train(model, TEXT, shape, **{"steps": 1, "batch": 2, "microbatches": 2} | options)

    with pytest.raises(ConfigError, match=r"a mesh \(dp, tp, pp\), three numbers; got \(2, 2\)"):
        go((2, 2))
    with pytest.raises(ConfigError, match=r"three numbers; got \(8,\)"):
        go(8)
    with pytest.raises(ConfigError, match="50 different tokens, the model 49"):
        go(model=GPT(49, 16, 2, 4, 8))
    with pytest.raises(PartitionError, match="stages of 2, 2 layers are 4 together, the model has"):
        go(cut=(2, 2))
    with pytest.raises(ConfigError, match=r"has 2 stages, the cut \(3,\) has 1"):
        go(cut=(3,))
    with pytest.raises(ConfigError, match="splits its backwards"):
        go(schedule="zb-h1")
    with pytest.raises(ConfigError, match="takes a schedule of 2 devices"):
        go(schedule=td.schedule("gpipe", 3, 2))
    with pytest.raises(ConfigError, match="ZeRO has stages 1, 2 and 3, and 0 for none; got 4"):
        go(zero=4)
    with pytest.raises(ConfigError, match="a width that its heads share: got hidden=15, heads=4"):
        GPT(59, 15, 2, 4, 8)


# -- planted faults --------------------------------------------------------------------------------


@pytest.mark.long
def test_a_sum_over_copies_left_out_is_noticed(monkeypatch):
    monkeypatch.setattr(Zero, "_add_up", lambda self, name: None)
    with pytest.raises(PlacementError, match="copies 0 and 1 of the model have different weights"):
        check((2, 1, 2))


@pytest.mark.long
def test_an_embedding_that_is_not_summed_is_noticed(monkeypatch):
    honest = Zero._add_up
    skip = lambda self, name: None if name == "embedding" else honest(self, name)  # noqa: E731
    monkeypatch.setattr(Zero, "_add_up", skip)
    with pytest.raises(PlacementError, match="what was summed over dp was not the same"):
        check((2, 1, 1))


@pytest.mark.long
def test_a_mean_of_means_is_noticed(monkeypatch):
    """Every micro-batch counts the same, however many rows it has."""
    honest = stages.head

    def of_its_own(flow, weights, x, targets, count):
        return honest(flow, weights, x, targets, targets.size * MICROBATCHES)

    monkeypatch.setattr(stages, "head", of_its_own)
    check((1, 1, 2), batch=8)  # where all have as many rows it makes no difference
    with pytest.raises(AssertionError, match="step 0"):
        check((1, 1, 2), batch=7)


@pytest.mark.long
def test_gradients_of_the_last_micro_batch_alone_are_noticed(monkeypatch):
    def replaced(self, name, grads):
        self.arrays["gradients"][name] = self._packings[name].pack(grads)

    monkeypatch.setattr(States, "add", replaced)
    with pytest.raises(AssertionError, match="step 1"):
        check((1, 1, 1))


@pytest.mark.long
def test_a_tied_table_that_is_not_summed_is_noticed(monkeypatch):
    monkeypatch.setattr(stages.Stages, "_sum_tied", lambda self, gradients: None)
    with pytest.raises(PlacementError, match=r"embedding.table is on two stages, and differs"):
        check((1, 1, 2), GPT(59, 16, 3, 4, 8, tied=True))


@pytest.mark.long
def test_gradients_that_are_not_dealt_out_are_noticed(monkeypatch):
    """Planted: ZeRO-2 that keeps all gradients; its weights are right, its traffic is not."""
    honest = Zero._made

    def all_of_it(self, tensor, weights):
        self._sharded[tensor] &= tensor != "gradients"
        return honest(self, tensor, weights)

    monkeypatch.setattr(Zero, "_made", all_of_it)
    with pytest.raises(AssertionError, match="rank 0, step 0"):
        check((2, 1, 1), zero=2)


@pytest.mark.long
def test_a_wrong_order_of_stages_is_noticed(monkeypatch):
    """Planted: the layers of the stages are the other way round."""
    honest = GPT.stage_units

    def swapped(self, stage, cut):
        mine, other = (honest(self, s, cut) for s in (stage, 1 - stage))
        blocks = iter(u for u in other if u.startswith("layer"))
        return tuple(next(blocks) if u.startswith("layer") else u for u in mine)

    monkeypatch.setattr(GPT, "stage_units", swapped)
    with pytest.raises(AssertionError, match="step 0"):
        check((1, 1, 2), GPT(59, 16, 4, 4, 8))


@pytest.mark.long
def test_an_order_that_waits_for_itself_is_refused(monkeypatch):
    """Before it runs; and where nobody looked, the ranks find the circle and do not hang."""
    stuck = Schedule.from_text("0F0,0B0,0F1,0B1; 1F1,1B1,1F0,1B0")
    with pytest.raises(ScheduleError, match="deadlock"):
        train(SMALL, TEXT, (1, 1, 2), steps=1, batch=2, schedule=stuck)
    monkeypatch.setattr(validate, "validate", lambda schedule: schedule)
    monkeypatch.setattr(transport, "LOOK", 0.1)
    with pytest.raises(CollectiveError, match="they wait for each other"):
        train(SMALL, TEXT, (1, 1, 2), steps=1, batch=2, schedule=stuck, timeout=30.0)
