"""`td.connect` to a scheduler and workers that were started by hand."""

import asyncio
import os
import signal
from contextlib import nullcontext
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import numpy as np
import pytest
from distributed import Client, Event, LocalCluster, default_client
from oracles.apart import apart
from oracles.waiting import wait_until
from twins.by_hand import dask_by_hand

import tiledask as td
from tiledask.distributed.cluster.cluster import RUNNING
from tiledask.errors import (
    ClusterLostError,
    ConfigError,
    DeadlineError,
    DoesNotFitError,
    PlacementError,
)

pytestmark = pytest.mark.cluster
RNG = np.random.default_rng(0)


@pytest.fixture(scope="module")
def dask(tmp_path_factory):
    """A scheduler and two workers under nannies, each with a resource of the user's."""
    options = ("--nanny", "--resources", "own=1")
    with dask_by_hand(tmp_path_factory.mktemp("dask"), 2, *options) as started:
        yield started


@pytest.fixture(scope="module")
def client(dask):
    """A user's client, which is not the default."""
    with Client(dask.address, set_as_default=False) as client:
        client.wait_for_workers(2, timeout=240)
        yield client


def the_default():
    """Dask's default client, or None."""
    try:
        return default_client()
    except ValueError:
        return None


def of_user(client):
    """By worker, what there is of the user's resources and what is in use, as both sides see it."""

    def known(dask_scheduler):
        return {
            address: (w.resources["own"], w.used_resources["own"])
            for address, w in dask_scheduler.workers.items()
        }

    def held(dask_worker):
        state = dask_worker.state
        return state.total_resources["own"], state.available_resources["own"]

    return client.run_on_scheduler(known), client.run(held)


def slots_of(client):
    """The resources of workers that are not the user's, in order."""
    held = client.run(lambda dask_worker: {*dask_worker.state.total_resources} - {"own"})
    return sorted(map(sorted, held.values()))


def test_products_schedules_trainings_claims_files_and_rank_functions_run(client, tmp_path):
    attached = td.connect(client, workers=2, timeout=240)
    a, b = RNG.standard_normal((70, 33)), RNG.standard_normal((33, 41))
    for mesh, algorithm in (((2,), "gather"), ((1, 2), "summa"), ((2, 1), None)):
        placed = [td.Shard(dim) for dim in range(len(mesh))]
        A, B = (td.distribute(x, td.Mesh(attached, mesh), placed) for x in (a, b))
        C = td.matmul(A, B, algorithm=algorithm)
        assert C.traffic.predicted == C.traffic.measured
        np.testing.assert_allclose(td.to_numpy(C), a @ b, atol=1e-12)
    assert "summa" in td.report(tmp_path / "page.html", attached).read_text()
    schedule = td.schedule("1f1b", 2, 4)
    run = td.run_schedule(schedule, forward=0.01, backward=0.02, cluster=client)
    assert run.traffic.predicted == run.traffic.measured
    assert len(run.timeline.to_frame()) >= len(schedule)
    text = td.load_text("tales")
    model = td.GPT(text.vocabulary, hidden=16, layers=2, heads=4, sequence=8)
    there = td.train(model, text, td.Mesh(client, (1, 2, 1)), steps=2, batch=4)
    here = td.train(model, text, (1, 2, 1), steps=2, batch=4)
    np.testing.assert_array_equal(there.losses, here.losses)
    claim = td.run_claim(1_000_000, td.Layout(dp=2), "80GB", client)
    assert claim.predicted is not None
    assert claim.predicted_verdict == claim.executed_verdict == "fits"
    summed = td.run_ranks(lambda rank: rank.group().all_reduce(1.0), td.Mesh(client, (2,)))
    assert summed.results == [2.0, 2.0]
    np.save(tmp_path / "a.npy", a := RNG.standard_normal((50, 50)))
    A = td.open_array(tmp_path / "a.npy")
    C = td.matmul(A, A, out=tmp_path / "c.npy", cluster=client)
    np.testing.assert_allclose(np.load(C.path), a @ a, atol=1e-12)
    attached.close()


def test_a_client_has_one_cluster_and_keeps_everything_of_its_own(client, dask):
    waits = lambda: __import__("distributed").Event("go on").wait(240)  # noqa: E731
    busy = client.submit(waits, resources={"own": 1}, pure=False)
    wait_until(lambda: any(used for _, used in of_user(client)[0].values()))
    before, default = of_user(client), the_default()
    mesh = td.Mesh(client, (2,))
    cluster = mesh.cluster
    try:
        assert td.Mesh(client, 2).cluster is cluster is td.connect(client)
        assert td.connect(dask.address) is cluster
        assert cluster.slots == 2
        assert slots_of(client) == [["slot0"], ["slot1"]]
        assert the_default() is default
        assert of_user(client) == before
    finally:
        cluster.close()
    cluster.close()
    assert of_user(client) == before
    Event("go on", client=client).set()
    busy.result(240)
    wait_until(lambda: not any(used for _, used in of_user(client)[0].values()))
    assert client.submit(sum, [1, 2], pure=False).result(240) == 3
    with pytest.raises(ClusterLostError, match=r"closed.*td\.connect"):
        td.distribute(np.eye(4), mesh, [td.Shard(0)])


def ones(cluster, slots, m, n):
    mesh = td.Mesh(cluster, (len(slots),), slots=slots)
    make = lambda at: np.ones((-(-m // len(slots)), n), "f4")  # noqa: E731
    return td.from_function(make, (m, n), "f4", mesh, [td.Shard(0)])


def test_fewer_workers_than_asked_and_a_late_one_with_less_memory(dask, client):
    """Which is named with both numbers where it is too small."""
    with pytest.raises(DeadlineError, match="2/3 workers"):
        td.connect(client, workers=3, timeout=0.3)
    assert client.status == "running"
    with td.connect(client) as cluster:
        with pytest.raises(PlacementError, match=r"3 ranks.* 2 slots.*td\.connect.*workers=3"):
            td.Mesh(cluster, (3,))
        with pytest.raises(ConfigError, match=r"connected to already.* close it first"):
            td.connect(client, workers=3)
    late = dask.worker("--no-nanny", "--memory-limit", "300MB")
    try:
        with td.connect(client, workers=3, timeout=240) as cluster:
            assert sorted(cluster.memory_limits) == [300_000_000, 2_000_000_000, 2_000_000_000]
            assert cluster.memory_limit == 300_000_000
            small = cluster.memory_limits.index(300_000_000)
            large = tuple(slot for slot in range(3) if slot != small)

            def operands(*slots):
                """Of a product that is much larger than they are, and soon done."""
                return ones(cluster, slots, 9000, 50), ones(cluster, slots, 50, 9000)

            A, B = operands(small, large[0])
            with pytest.raises(DoesNotFitError) as refused:
                A @ B
            for word in (f"(slot {small}: ", "needs least", "workers with more memory"):
                assert word in str(refused.value)
            A, B = operands(*large)
            C = A @ B
            assert C.traffic.predicted == C.traffic.measured
            with pytest.raises(DoesNotFitError, match=rf"a worker may hold .*slot {small}: "):
                ones(cluster, (small,), 9000, 9000)
            assert ones(cluster, large[:1], 9000, 9000).block_bytes == (324_000_000,)
    finally:
        late.terminate()
        late.wait(240)
    wait_until(lambda: len(client.scheduler_info(n_workers=-1)["workers"]) == 2)


def test_slots_of_a_client_that_has_gone_are_the_next_ones(tmp_path):
    """Without gaps where the first worker is gone, also while a task of the old one still runs."""
    waits = lambda: __import__("distributed").Event("end").wait(240)  # noqa: E731
    with dask_by_hand(tmp_path, 3) as dask:
        other = Client(dask.address, set_as_default=False)
        left = td.connect(other, workers=3, timeout=240)
        busy = [left.submit(slot, waits) for slot in range(3)]
        wait_until(lambda: len([*filter(None, other.processing().values())]) == 3)
        os.kill(left.run(os.getpid)[0], signal.SIGKILL)
        wait_until(lambda: len(left.workers()) == 2)
        other.close()
        with pytest.raises(ClusterLostError, match="closed"):
            left.check_alive()
        with td.connect(dask.address, timeout=240) as cluster:
            assert cluster.slots == 2
            assert slots_of(cluster.client) == [["slot0"], ["slot1"]]
            Event("end", client=cluster.client).set()
            A = td.distribute(np.eye(4), td.Mesh(cluster, (2,)), [td.Shard(0)])
            assert td.to_numpy(A @ A).trace() == 4
        left.close()
        del busy


def test_workers_of_start_cluster_keep_their_slots_and_all_they_have(cluster):
    before = slots_of(cluster.client), cluster.run(equipment)
    with Client(cluster.client.scheduler.address, set_as_default=False) as second:
        with td.connect(second) as attached:
            assert attached.slots == cluster.slots
            there, here = attached.workers(), cluster.workers()
            assert [there[s]["address"] for s in range(4)] == [here[s]["address"] for s in range(4)]
            A = td.distribute(np.eye(8), td.Mesh(attached, (2, 2)), [td.Shard(0), td.Shard(1)])
            assert td.to_numpy(A @ A).trace() == 8
        assert td.connect(cluster.client) is cluster
        assert td.connect(cluster.given) is cluster
    assert (slots_of(cluster.client), cluster.run(equipment)) == before


def equipment(dask_worker):
    kept = "tiledask-kept" in dask_worker.periodic_callbacks
    return "tiledask_read" in dask_worker.handlers, kept, dask_worker.transfer_incoming_log.maxlen


def test_what_cannot_be_connected_to_is_refused(dask, client, monkeypatch):
    with pytest.raises(TypeError, match=r"needs a cluster, got int; .*td\.connect\(client\)"):
        td.Mesh(3, (2,))
    with pytest.raises(ClusterLostError, match=r"no scheduler answers at tcp://127\.0\.0\.1:9 "):
        td.connect("tcp://127.0.0.1:9")
    for wrong in ("127.0.0.1", "tcp://127.0.0.1:port"):
        with pytest.raises(ClusterLostError, match="give the address that it prints"):
            td.connect(wrong)
    with HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as other:
        Thread(target=other.serve_forever, daemon=True).start()
        with pytest.raises(ClusterLostError, match="no scheduler answers at"):
            td.connect(f"tcp://127.0.0.1:{other.server_port}", timeout=1.0)
        other.shutdown()
    with pytest.raises(ConfigError, match="workers"):
        td.connect("tcp://127.0.0.1:9", workers=0)
    refused = pytest.raises(ConfigError, match=r"2 workers have 0 processes.*processes=True")
    with LocalCluster(n_workers=2, processes=False, dashboard_address=":0") as local, refused:
        td.connect(local)
    assert all(cluster.given is not local for cluster in RUNNING)
    with monkeypatch.context() as patch:
        patch.setattr(td, "__version__", "9")
        with pytest.raises(ConfigError, match=r"has tiledask \d.*, here is 9"):
            td.connect(client)

    async def connected():
        async with Client(dask.address, asynchronous=True, set_as_default=False) as client:
            with pytest.raises(TypeError, match=r"asynchronous.*asyncio\.to_thread"):
                td.Mesh(client, (2,))
            (await asyncio.to_thread(td.connect, client.scheduler.address)).close()

    asyncio.run(connected())


def scaled(local, client, workers):
    local.scale(workers)
    wait_until(lambda: len(client.scheduler_info(n_workers=-1)["workers"]) == workers)


def test_workers_that_come_and_go_between_products():
    """Of Dask's own cluster; its scheduler is in this process."""
    a, one = RNG.standard_normal((48, 48)), {"threads_per_worker": 1, "dashboard_address": ":0"}
    with (
        LocalCluster(n_workers=2, **one) as local,
        Client(local, set_as_default=False) as client,
        td.connect(client, workers=2) as cluster,
    ):
        A = td.distribute(a, td.Mesh(cluster, (2,)), [td.Shard(0)])
        scaled(local, client, 3)  # one stands by
        assert cluster.slots == 2
        np.testing.assert_allclose(td.to_numpy(A @ A), a @ a)
        scaled(local, client, 1)
        with pytest.raises(DeadlineError, match="slot "):
            td.matmul(A, A, timeout=3)
        scaled(local, client, 3)  # as many come back, and what they had is made again
        np.testing.assert_allclose(td.to_numpy(A @ A), a @ a)


def test_tls_is_taken_as_dask_takes_it():
    pytest.importorskip("cryptography")
    with LocalCluster(n_workers=2, security=True, dashboard_address=":0") as local:
        address = local.scheduler_address
        with pytest.raises(ClusterLostError, match=r"tls://.* encrypts, .*security="):
            td.connect(address, timeout=3)
        with td.connect(address, security=local.security, timeout=240) as cluster:
            A = td.distribute(np.eye(6), td.Mesh(cluster, (2,)), [td.Shard(0)])
            for way in (nullcontext(), apart(cluster)):  # and as between hosts
                with way:
                    C = A @ A
                    assert C.traffic.predicted == C.traffic.measured
                    add = td.run_ranks(lambda r: r.group().all_reduce(1.0), td.Mesh(cluster, (2,)))
                    assert add.results == [2.0, 2.0]
