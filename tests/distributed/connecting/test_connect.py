"""`td.connect` to a scheduler and workers that were started by hand.

Holds `tiledask.distributed.connecting.gpus`,
`tiledask.distributed.connecting.slots` and `tiledask.distributed.connecting.versions`.
"""

import asyncio
import os
import re
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import numpy as np
import pytest
from distributed import Client, Event, LocalCluster, default_client
from oracles.apart import apart
from oracles.waiting import wait_until
from twins.by_hand import ByHand, dask_by_hand

import tiledask as td
from tiledask.distributed.cluster.cluster import RUNNING
from tiledask.distributed.connecting import versions
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


@pytest.fixture
def attached(client):
    with td.connect(client, workers=2, timeout=240) as cluster:
        yield cluster


def resources(dask_worker):
    held = dask_worker.state
    return dict(held.total_resources), dict(held.available_resources)


def the_default():
    """Dask's default client, or None."""
    try:
        return default_client()
    except ValueError:
        return None


def of_scheduler(dask_scheduler):
    workers = [(dict(w.resources), dict(w.used_resources)) for w in dask_scheduler.workers.values()]
    plugins = sorted(re.sub("-.{36}$", "", name) for name in dask_scheduler.plugins)
    known = {name: sorted(where) for name, where in dask_scheduler.resources.items()}
    return workers, plugins, known, sorted(dask_scheduler.handlers)


@pytest.mark.parametrize("mesh", [(2,), (1, 2), (2, 1)])
def test_a_product_moves_what_was_predicted(attached, mesh):
    a, b = RNG.standard_normal((70, 33)), RNG.standard_normal((33, 41))
    on = td.Mesh(attached, mesh)
    placed = [td.Shard(0)] if len(mesh) == 1 else [td.Shard(0), td.Shard(1)]
    A, B = (td.distribute(x, on, placed) for x in (a, b))
    for algorithm in (None, "summa" if len(mesh) == 2 else "gather"):
        C = td.matmul(A, B, algorithm=algorithm)
        assert C.traffic.predicted == C.traffic.measured
        np.testing.assert_allclose(td.to_numpy(C), a @ b, atol=1e-12)
    assert "rocess" in str(td.explain(A, B).moved) or "memory" in td.explain(A, B).moved


def test_schedules_trainings_claims_and_rank_functions_run(attached, client):
    schedule = td.schedule("1f1b", 2, 4)
    for engine in ("tasks", "loop"):
        run = td.run_schedule(schedule, forward=0.01, backward=0.02, cluster=client, engine=engine)
        assert run.traffic.predicted == run.traffic.measured
        assert len(run.timeline.to_frame()) >= len(schedule)
    text = td.load_text("tales")
    model = td.GPT(text.vocabulary, hidden=16, layers=2, heads=4, sequence=8)
    there = td.train(model, text, td.Mesh(client, (1, 2, 1)), steps=2, batch=4)
    here = td.train(model, text, (1, 2, 1), steps=2, batch=4)
    np.testing.assert_array_equal(there.losses, here.losses)
    claim = td.run_claim(1_000_000, td.Layout(dp=2), "80GB", client)
    assert claim.predicted is not None
    assert len(claim.devices) == 2
    summed = td.run_ranks(lambda rank: rank.group().all_reduce(1.0), td.Mesh(client, (2,)))
    assert summed.results == [2.0, 2.0]


def test_files_are_multiplied_where_workers_see_them(attached, tmp_path):
    a = RNG.standard_normal((50, 30))
    np.save(tmp_path / "a.npy", a)
    np.save(tmp_path / "b.npy", a.T)
    A, B = (td.open_array(tmp_path / f"{name}.npy") for name in "ab")
    C = td.matmul(A, B, out=tmp_path / "c.npy", cluster=attached.client)
    np.testing.assert_allclose(C[:, :], a @ a.T, atol=1e-12)
    names = ["a.npy", "b.npy", "c.npy"]
    assert sorted(p.name for p in tmp_path.iterdir()) == names


def test_the_dashboard_has_the_page_and_the_report_shows_it(attached, tmp_path):
    A = td.distribute(np.eye(8), td.Mesh(attached, (2,)), [td.Shard(0)])
    A @ A
    page = td.report(tmp_path / "page.html", attached).read_text()
    assert "gather" in page


def test_a_client_has_one_cluster_and_keeps_everything_of_its_own(client, dask):
    before = client.run(resources), client.run_on_scheduler(of_scheduler)
    default = the_default()
    mesh = td.Mesh(client, (2,))
    cluster = mesh.cluster
    try:
        assert td.Mesh(client, 2).cluster is cluster is td.connect(client)
        assert td.connect(dask.address) is cluster
        assert cluster.slots == 2
        assert {frozenset(has) for has, _ in client.run(resources).values()} == {
            frozenset({"own", "slot0", "beside0"}),
            frozenset({"own", "slot1", "beside1"}),
        }
        assert the_default() is default
    finally:
        cluster.close()
    cluster.close()
    after = client.run(resources), client.run_on_scheduler(of_scheduler)
    assert after == before
    assert client.submit(sum, [1, 2], pure=False).result(240) == 3
    with pytest.raises(ClusterLostError, match=r"closed.*td\.connect"):
        td.distribute(np.eye(4), mesh, [td.Shard(0)])


def test_what_of_the_users_resources_is_in_use_stays_so(client):
    def used(dask_scheduler):
        return sorted(ws.used_resources["own"] for ws in dask_scheduler.workers.values())

    waits = lambda: __import__("distributed").Event("go on").wait(240)  # noqa: E731
    busy = client.submit(waits, resources={"own": 1}, pure=False)
    wait_until(lambda: client.run_on_scheduler(used) == [0, 1])
    with td.connect(client):
        assert client.run_on_scheduler(used) == [0, 1]
    assert client.run_on_scheduler(used) == [0, 1]
    Event("go on", client=client).set()
    busy.result(240)
    wait_until(lambda: client.run_on_scheduler(used) == [0, 0])


def test_a_killed_worker_comes_back_to_its_slot_and_its_blocks_too(attached):
    a = RNG.standard_normal((64, 64))
    A = td.distribute(a, td.Mesh(attached, (2,)), [td.Shard(0)])
    at = attached.address(1)
    attached.client.run(os._exit, 1, workers=[at], on_error="ignore")
    wait_until(lambda: attached._workers().get(1, {}).get("address", at) != at)
    np.testing.assert_array_equal(td.to_numpy(A), a)
    C = A @ A
    assert C.traffic.predicted == C.traffic.measured
    np.testing.assert_allclose(td.to_numpy(C), a @ a, atol=1e-12)


def test_fewer_workers_than_asked_and_one_that_comes_late(dask):
    with Client(dask.address, set_as_default=False) as client:
        with pytest.raises(DeadlineError, match=r"3 workers were asked for, 2 run .* 0\.3 s"):
            td.connect(client, workers=3, timeout=0.3)
        assert client.status == "running"
        cluster = td.connect(client)
        with pytest.raises(PlacementError, match=r"3 ranks.* 2 slots.*td\.connect.*workers=3"):
            td.Mesh(cluster, (3,))
        late = dask.worker("--no-nanny")
        try:
            cluster = td.connect(client, workers=3, timeout=240)
            a = RNG.standard_normal((9, 9))
            A = td.distribute(a, td.Mesh(client, (3,)), [td.Shard(0)])
            np.testing.assert_allclose(td.to_numpy(A @ A), a @ a, atol=1e-12)
        finally:
            cluster.close()
            late.terminate()
            late.wait(240)
        client.sync(client._wait_for_workers, 2, timeout=240)


@pytest.mark.slow
def test_a_worker_beyond_those_asked_for_takes_the_slot_of_one_that_goes(dask, client):
    with td.connect(client, workers=1) as cluster:
        assert cluster.slots == 1
        spare = {w["address"] for w in cluster._workers().values()}
        others = set(client.scheduler_info()["workers"]) - spare
        (gone,) = spare
        client.run(os._exit, 1, workers=[gone], on_error="ignore")
        wait_until(lambda: cluster._workers().get(0, {}).get("address") in others)
        A = td.distribute(np.eye(4), td.Mesh(cluster, (1,)), [td.Shard(0)])
        assert td.to_numpy(A).trace() == 4
    client.wait_for_workers(2, timeout=240)


def test_slots_go_with_a_client_that_does_not_say_goodbye(dask, client):
    before = client.run_on_scheduler(of_scheduler)
    other = Client(dask.address, set_as_default=False)
    mesh = td.Mesh(other, (2,))
    assert client.run_on_scheduler(of_scheduler) != before
    other.close()
    wait_until(lambda: client.run_on_scheduler(of_scheduler) == before)
    with pytest.raises(ClusterLostError, match="closed"):
        mesh.cluster.check_alive()
    with td.connect(client) as cluster:  # whoever is gone is in nobody's way
        assert cluster.slots == 2
    mesh.cluster.close()


def test_workers_of_start_cluster_keep_their_slots_and_all_they_have(cluster):
    before = cluster.client.run(resources), cluster.run(equipment)
    with Client(cluster.client.scheduler.address, set_as_default=False) as second:
        with td.connect(second) as attached:
            assert attached.slots == cluster.slots
            assert [attached.address(s) for s in range(4)] == [cluster.address(s) for s in range(4)]
            A = td.distribute(np.eye(8), td.Mesh(attached, (2, 2)), [td.Shard(0), td.Shard(1)])
            assert td.to_numpy(A @ A).trace() == 8
        assert td.connect(cluster.client) is cluster
        assert td.connect(cluster.dask_cluster) is cluster
    assert (cluster.client.run(resources), cluster.run(equipment)) == before


def equipment(dask_worker):
    kept = "tiledask-kept" in dask_worker.periodic_callbacks
    return "tiledask_read" in dask_worker.handlers, kept, dask_worker.transfer_incoming_log.maxlen


def test_errors_name_what_helps_there(attached):
    with pytest.raises(DoesNotFitError, match=r"worker may hold"):
        td.from_function(np.zeros, (10**6, 10**6), "f8", td.Mesh(attached, (2,)), [td.Shard(0)])
    A = td.distribute(np.ones((8, 8)), td.Mesh(attached, (2,)), [td.Shard(0)])
    with pytest.raises(DoesNotFitError, match=r"8 B"):
        td.matmul(A, A, memory_limit=8)
    with pytest.raises(ConfigError, match=r"slot 7 .*td\.connect\(client, workers="):
        attached.submit(7, abs, -1)


def process(dask_worker):
    return os.getpid(), dask_worker.name


def test_what_cannot_be_connected_to_is_refused():
    with pytest.raises(TypeError, match=r"a mesh is made of .* got int; .*td\.connect\(client\)"):
        td.Mesh(3, (2,))
    with pytest.raises(ClusterLostError, match=r"no scheduler answers at tcp://127\.0\.0\.1:9 "):
        td.connect("tcp://127.0.0.1:9")
    for wrong in ("127.0.0.1", "tcp://127.0.0.1:port"):
        with pytest.raises(ConfigError, match="is no address of a scheduler"):
            td.connect(wrong)
    with HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as other:
        Thread(target=other.serve_forever, daemon=True).start()
        with pytest.raises(ClusterLostError, match="no scheduler answers at"):
            td.connect(f"tcp://127.0.0.1:{other.server_port}", timeout=1.0)
        other.shutdown()
    with pytest.raises(ConfigError, match="workers"):
        td.connect("tcp://127.0.0.1:9", workers=0)


def test_an_asynchronous_client_is_told_what_to_do(dask):
    async def ask():
        async with Client(dask.address, asynchronous=True, set_as_default=False) as client:
            with pytest.raises(ConfigError, match=r"asynchronous.*asyncio\.to_thread"):
                td.Mesh(client, (2,))
            found = await asyncio.to_thread(td.connect, client.scheduler.address)
            await asyncio.to_thread(found.close)

    asyncio.run(ask())


def test_workers_in_one_process_are_refused():
    refused = pytest.raises(ConfigError, match=r"2 workers have 0 processes.*processes=True")
    with LocalCluster(n_workers=2, processes=False, dashboard_address=":0") as local, refused:
        td.connect(local)
    assert all(cluster.given is not local for cluster in RUNNING)


@pytest.mark.slow
def test_a_cluster_of_dasks_own_is_connected_to():
    with (
        LocalCluster(n_workers=2, threads_per_worker=2, dashboard_address=":0") as local,
        td.connect(local) as cluster,
    ):
        A = td.distribute(np.eye(6), td.Mesh(cluster, (2,)), [td.Shard(0)])
        assert td.to_numpy(A @ A).trace() == 6
        assert td.connect(local) is cluster


def test_versions_that_do_not_go_together_are_all_named():
    packages = {"python": "3.11.7", "dask": "2026.7.1", "distributed": "2026.7.1", "numpy": "2.4.6"}
    right = {"packages": packages | {"tiledask": td.__version__}}
    here = versions.get_versions(packages=["tiledask"])["packages"]
    right["packages"] |= {name: here[name] for name in packages}
    old = {"packages": right["packages"] | {"numpy": "1.26.4", "tiledask": "0.0.9"}}
    bare = {"packages": right["packages"] | {"tiledask": None}}

    def said(**workers):
        return {"scheduler": right, "workers": workers}

    versions.check_versions(said(a=right))
    with pytest.raises(ConfigError) as lacking:
        versions.check_versions(said(a=right, b=bare))
    assert f"worker b has no tiledask (here {td.__version__})" in str(lacking.value)
    assert "1 of 3" in str(lacking.value)
    with pytest.raises(ConfigError, match=r"tiledask 0\.0\.9 .*numpy 1\.26\.4 .*equal environ"):
        versions.check_versions(said(a=old, b=bare))


@pytest.mark.slow
def test_tls_is_taken_as_dask_takes_it(tmp_path, monkeypatch):
    pytest.importorskip("cryptography")
    from distributed.security import Security

    temporary = Security.temporary()
    ca, cert, key = (tmp_path / f"{name}.pem" for name in ("ca", "cert", "key"))
    ca.write_text(temporary.tls_ca_file)
    cert.write_text(temporary.tls_scheduler_cert)
    key.write_text(temporary.tls_scheduler_key)
    files = ("--tls-ca-file", str(ca), "--tls-cert", str(cert), "--tls-key", str(key))
    there = ByHand(tmp_path)
    with there._ending:
        there.scheduler("--protocol", "tls", *files)
        for _ in range(2):
            there.worker("--no-nanny", *files)
        with pytest.raises(ConfigError, match=r"tls://.* encrypts, .*security="):
            td.connect(there.address, timeout=3)
        security = Security(
            tls_ca_file=str(ca),
            tls_client_cert=str(cert),
            tls_client_key=str(key),
            require_encryption=True,
        )
        with td.connect(there.address, workers=2, security=security, timeout=240) as cluster:
            assert there.address.startswith("tls://")
            A = td.distribute(np.eye(6), td.Mesh(cluster, (2,)), [td.Shard(0)])
            C = A @ A
            assert C.traffic.predicted == C.traffic.measured
            summed = td.run_ranks(lambda r: r.group().all_reduce(1.0), td.Mesh(cluster, (2,)))
            assert summed.results == [2.0, 2.0]
            with apart(cluster, "comm"):  # as between hosts
                assert "go as messages" in td.explain(A, A).moved
                C = A @ A
                assert C.traffic.predicted == C.traffic.measured
                monkeypatch.setattr(cluster, "near", lambda: frozenset({0}))
                with pytest.raises(ConfigError, match=r"transport='posts'"):
                    td.run_ranks(abs, td.Mesh(cluster, (2,)), transport="sockets")
                summed = td.run_ranks(lambda r: r.group().all_reduce(1.0), td.Mesh(cluster, (2,)))
                assert summed.results == [2.0, 2.0]
