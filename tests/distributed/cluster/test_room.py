"""What a worker may still hold is measured, and what a refusal promises is accepted when taken.

Holds `tiledask.distributed.products.explain` and `tiledask.plan.units`.
"""

import gc
import os
import random
import re
from math import prod

import numpy as np
import pytest
from oracles.waiting import wait_until

import tiledask as td
from tiledask import Replicate, Shard
from tiledask.distributed.cluster import host_memory
from tiledask.distributed.cluster.room import MARGIN, Room, room_of
from tiledask.distributed.products.explain import ProductQuestion, refusal
from tiledask.distributed.products.memory import ledger_of
from tiledask.errors import DoesNotFitError
from tiledask.plan.products.placement import Tiling
from tiledask.plan.products.product_plan import RUNTIME
from tiledask.plan.units import format_bytes, format_up, parse_bytes

ROWS = (Shard(0),)
F8 = np.dtype("f8")


def found(a, b, limit, only=None):
    return ProductQuestion(a, b, F8, algorithm=only).weigh(limit)


def refused(a, b, limit, only=None):
    """The message for what does not fit into ``limit``, on workers that have 10 GB."""
    room = Room(limit, "a worker has 10 GB", 10**10)
    question = ProductQuestion(a, b, F8, algorithm=only)
    error = refusal(question.weigh(limit), room, question)
    assert isinstance(error, DoesNotFitError)
    return str(error)


@pytest.mark.parametrize("placed", [(Shard(0),), (Replicate(),), (Shard(1),)])
def test_each_way_out_that_a_refusal_names_is_accepted(placed):
    a, few = Tiling((512, 512), (2,), placed), 10_000_000
    said = refused(a, a, few)
    (limit,) = re.findall(r"(?:: |or )memory_limit='([^']*)'", said)
    assert found(a, a, parse_bytes(limit)).chosen
    named = re.findall(r"algorithm='([^']*)'", refused(a, a, few, "gather"))
    assert all(found(a, a, few, way).chosen == way for way in named)


def test_what_is_promised_is_rounded_up():
    rng = random.Random(1)
    for n in [0, 1, 999, 1000, 8_388_649, *(int(10 ** rng.uniform(0, 17)) for _ in range(300))]:
        assert n <= parse_bytes(format_up(n)) <= 1.0011 * n + 1
        assert parse_bytes(format_bytes(n)) == pytest.approx(n, rel=1e-3)


@pytest.fixture(scope="module")
def small():
    """Two workers whose nannies kill them at 95 % of 400 MB."""
    with td.start_cluster(2, device="cpu", memory_limit="400MB", quiet=True) as started:
        yield started


def ones(cluster, n):
    """A square matrix that takes two thirds of what a rank needs for its square by columns."""

    def block(index):
        return np.ones([s.stop - s.start for s in index])

    return td.from_function(block, (n, n), "f8", td.Mesh(cluster, (2,)), ROWS)


def blocks_held(dask_worker):
    return sum(isinstance(value, np.ndarray) for value in dask_worker.data.values())


def wait_until_held(cluster, blocks):
    wait_until(
        lambda: sum(cluster.run(blocks_held)) <= blocks, f"workers to hold {blocks} blocks at most"
    )


def largest(cluster):
    """The largest n whose product is planned to fit beside what the workers hold, once they have
    dropped what nobody wants any more."""
    gc.collect()  # errors that were caught hold the arrays of their frames
    wait_until_held(cluster, 0)
    room, n = room_of(cluster).bytes, 256
    while planned(n + 64) < room:
        n += 64
    return n


def planned(n):
    """Bytes that a product of n is planned to take on a rank."""
    return 3 * n**2 // 2 * 8 + 4 * 512 * n * 4 * 1.02 + RUNTIME * 1.04


@pytest.mark.cluster
def test_what_is_accepted_near_the_limit_runs_and_what_would_pass_it_is_refused(small):
    """With numbers and before any task; no worker is killed."""
    pids, most = small.run(os.getpid), 0.75 * 400e6
    n = largest(small)
    a, b = ones(small, n), ones(small, n)
    for _ in range(2):  # what products leave behind takes the place of what the next ones need
        c = td.matmul(a, b, timeout=240)
        assert c.memory.measured.peak <= c.memory.predicted.peak
        room = room_of(small, [a.blocks, b.blocks])
        assert c.memory.predicted.peak <= room.bytes + prod(c.shape) // 2 * 8 + MARGIN
        del c
        wait_until_held(small, len(a.blocks) + len(b.blocks))
    # Dask's own share for blocks, and what it takes to make them
    assert max(small.run(host_memory._status, "VmHWM")) <= most
    del a, b
    n = int(1.35 * largest(small))
    a, b = ones(small, n), ones(small, n)
    idle = r"What would fit: workers with more memory"
    for limit in (None, "2GB"):  # the call's own cannot lift what the workers have
        with pytest.raises(DoesNotFitError, match=idle) as caught:
            td.matmul(a, b, memory_limit=limit)
        needs = r"needs least, \d.*MB on a rank, allowed are \d.*MB \(slot \d: of 400 MB"
        assert re.search(needs, str(caught.value))
    assert not td.explain(a, b).chosen
    assert small.run(os.getpid) == pids
    with pytest.raises(DoesNotFitError, match=r"a worker may hold .*slot \d: of 400 MB"):
        ones(small, 8200)


@pytest.mark.cluster
def test_what_others_left_on_a_worker_counts(small):
    """Operands and ballast stay below where Dask would move one of them to disk; with the rest of
    the product, which alone would fit, they would not."""
    n = int(0.88 * largest(small))
    size = int(room_of(small).bytes - 0.68 * planned(n)) // 8
    ballast = small.submit(1, np.ones, size, name="ballast")
    small.wait([ballast], "the ballast")
    a, b = ones(small, n), ones(small, n)
    with pytest.raises(DoesNotFitError, match=r"MB are held already"):
        td.matmul(a, b)
    del ballast
    wait_until_held(small, 4)
    assert td.matmul(a, b).shape == (n, n)


@pytest.mark.cluster
def test_files_are_cut_for_what_workers_leave(small, tmp_path):
    for name in "ab":
        np.save(tmp_path / f"{name}.npy", np.ones((300, 300)))
    a, b = (td.open_array(tmp_path / f"{name}.npy") for name in "ab")
    c = td.matmul(a, b, out=tmp_path / "c.npy", cluster=small)
    assert c.memory.measured.peak <= c.memory.predicted.peak <= room_of(small).bytes


@pytest.mark.cluster
def test_under_a_cap_what_blocks_take_already_counts():
    with td.start_cluster(1, device="cpu", memory_cap="60MB", quiet=True) as capped:
        before = room_of(capped)
        assert "of 60 MB" in str(before)
        a = td.from_function(
            lambda index: np.ones((1000, 1000)), (1000, 1000), "f8", td.Mesh(capped, (1,)), ROWS
        )
        room, mine = room_of(capped), room_of(capped, [a.blocks])
        assert before.bytes - room.bytes == pytest.approx(8e6, abs=2e6)
        assert mine.bytes - room.bytes == 8_000_000
        td.matmul(a, a)


@pytest.mark.parametrize(
    ("kernel", "ranks", "wide"), [("cublas", 1, 2), ("blas", 1, 4), ("cublas", 2, 4)]
)
def test_one_panel_of_halves_is_rounded_as_it_is_written_on_a_gpu(kernel, ranks, wide):
    """Several panels, and NumPy's, are summed in float32 and rounded then."""
    tiling, half = Tiling((64, 64), (ranks,), ROWS), np.dtype("f2")
    plan = ProductQuestion(tiling, tiling, half, kernel).weigh(10**9)["gather"].plan
    held = ledger_of(plan, half, kernel).by_tensor(0)
    assert held["C"] == 64 // ranks * 64 * wide
    assert held.get("rounded C", 0) == (64 // ranks * 64 * 2 if wide == 4 else 0)
