"""The page on real clusters: what was run and counted is what it shows, and never what fails."""

import json
from contextlib import suppress
from urllib.error import HTTPError
from urllib.request import urlopen

import dask
import numpy as np
import pytest
from distributed import Client, LocalCluster
from oracles.pages import outside
from oracles.waiting import wait_until

import tiledask as td
from tiledask.distributed.cluster.cluster import PAGE
from tiledask.distributed.pipelines.stages import stack
from tiledask.distributed.products import matmul
from tiledask.errors import ConfigError, PlacementError
from tiledask.lab.dashboard import Recorder
from tiledask.lab.dashboard.page import view_of
from tiledask.plan.units import format_bytes

pytestmark = pytest.mark.cluster


def shown(cluster, choice="newest"):
    return cluster.client.run_on_scheduler(
        lambda dask_scheduler: view_of(dask_scheduler.plugins[PAGE], choice)
    )


def last(cluster):
    """The last run, once it is over."""

    def newest(dask_scheduler):
        run = [*dask_scheduler.plugins[PAGE].runs.values()][-1]
        return run.state != "running" and (run.state, run.counted, [*run.spans], run.predicted)

    wait_until(lambda: cluster.client.run_on_scheduler(newest))
    return cluster.client.run_on_scheduler(newest)


def operand(cluster, n: int = 96):
    a = np.random.default_rng(0).standard_normal((n, n))
    return td.distribute(a, td.Mesh(cluster, (2, 2)), (td.Shard(0), td.Shard(1)))


def pipeline(cluster):
    batch = np.random.default_rng(0).standard_normal((8, 12))
    stages, times = stack((0, 1, 2, 3), width=12, hidden=20), {"forward": 0.01, "backward": 0.02}
    return td.run_schedule(td.schedule("1f1b", 3, 4), stages, batch, cluster, target=batch, **times)


def test_a_real_run_is_drawn_as_it_is_measured(cluster, tmp_path):
    run = pipeline(cluster)
    state, _, spans, _ = last(cluster)
    assert state == "done"
    assert len({span[1:4] for span in spans if span[1] != "T"}) == 24
    view = shown(cluster)
    idle, whole = view.charts["idle"], run.timeline.makespan
    ends = [box.at[0] + box.at[2] for box in view.charts["time"].boxes if box.words]
    assert max(ends) == pytest.approx(whole, abs=1e-6)
    assert idle.lanes == [f"{100 * each / whole:.1f} %" for each in run.timeline.idle_per_device]
    assert idle.marks == pytest.approx([100 / 3] * 3)
    assert view.facts["actions done"] == "24 of 24"
    path = str(tmp_path / "new" / "run.html")
    html = td.report(path, cluster, title="<b>1</b>").read_text("utf-8")
    assert outside(html) == []
    assert "default-src 'none'" in html
    assert "<b>1" not in html
    assert "33.3 %" in html


@pytest.mark.few(1)
@pytest.mark.parametrize("algorithm", ["summa", "row_parallel", "gather"])
def test_a_real_product_is_drawn_as_it_is_counted(cluster, algorithm):
    a = operand(cluster)
    td.matmul(a, a)
    predicted = td.explain(a, a)[td.explain(a, a).chosen]
    about = last(cluster)[3]
    assert (about["seconds"], tuple(about["busy"])) == (predicted.seconds, predicted.busy)
    c = td.matmul(a, a, algorithm=algorithm)
    state, counted, spans, about = last(cluster)
    assert state == "done"
    assert [counted[rank]["done"] for rank in range(4)] == about["panels"]
    view = shown(cluster)
    busy = [
        sum(end - start for rank, kind, _, start, end in spans if (rank, kind) == (r, "multiply"))
        for r in range(4)
    ]
    for share, each in zip(view.charts["idle"].lanes, busy, strict=True):
        assert float(share.rstrip("% ")) <= 100 * (1 - each / c.seconds) + 0.1


def test_a_product_fails_by_itself_and_never_by_the_page(cluster, monkeypatch):
    a = operand(cluster)
    expected = td.to_numpy(td.matmul(a, a, algorithm="summa"))

    with monkeypatch.context() as patched:
        patched.setattr(cluster, "given", None)  # there is no way to the page
        c = td.matmul(a, a, algorithm="summa")
    np.testing.assert_array_equal(td.to_numpy(c), expected)

    def fails(*_, **__):
        raise PlacementError("planted")

    monkeypatch.setattr(matmul, "run_stages", fails)
    with pytest.raises(PlacementError, match="planted"):
        td.matmul(a, a, algorithm="summa")
    assert last(cluster)[0] == "failed: PlacementError: planted"


def test_a_real_training_is_drawn_as_it_is_counted(cluster):
    text, mesh = td.load_text("tales"), td.Mesh(cluster, (1, 2, 2))
    model = td.GPT(text.vocabulary, hidden=8, layers=2, heads=2, sequence=8)
    got = td.train(model, text, mesh, steps=3, batch=4, microbatches=2, progress=False)
    last(cluster)
    wait_until(lambda: shown(cluster).facts.get("steps done") == "3 of 3")
    view, frame = shown(cluster), got.to_frame()
    assert view.loss[1] == pytest.approx(got.losses.tolist(), rel=1e-12)
    assert view.facts["bytes"] == f"{format_bytes(frame['bytes_sent'].iloc[0])} a step"


# -- clusters of Dask's own ------------------------------------------------------------------------


HERE = {"host": "127.0.0.1", "protocol": "tcp://", "dashboard_address": "127.0.0.1:0"}


def get(client: Client, page: str) -> str:
    """What the dashboard answers; again where another page was just drawn: then Bokeh fails."""
    url = f"{client.dashboard_link.removesuffix('/status')}/{page}"
    for _ in range(4):
        with suppress(HTTPError), urlopen(url, timeout=240) as answer:
            return answer.read().decode()
    return ""


def has_the_page(client: Client) -> None:
    assert "Bokeh" in get(client, "individual-tiledask")
    assert "navbar" in get(client, "tiledask")
    assert get(client, "status").replace("'", '"').count('href="tiledask"') == 1
    assert json.loads(get(client, "individual-plots.json"))["Individual Tiledask"]


def test_a_cluster_that_runs_already_takes_the_page(tmp_path):
    mine = "distributed.scheduler.dashboard.bokeh-application.allow_websocket_origin"
    with dask.config.set({mine: ["127.0.0.1:8888"]}):
        running = LocalCluster(n_workers=1, processes=False, **HERE)
    with running, Client(running) as client:
        with pytest.raises(ConfigError, match=r"--preload tiledask\.lab\.dashboard"):
            td.report(tmp_path / "run.html", client)
        with pytest.raises(ConfigError, match="got int"):
            td.report(tmp_path / "run.html", 3)
        for _ in range(2):  # the second time changes nothing
            client.register_plugin(Recorder())
        has_the_page(client)
        ours, dasks, *_ = running.scheduler.http_application.applications
        assert ours.websocket_origins == dasks.websocket_origins >= {"127.0.0.1:8888"}


def test_a_scheduler_preloads_the_page():
    with dask.config.set({"distributed.scheduler.preload": ["tiledask.lab.dashboard"]}):
        running = LocalCluster(n_workers=0, processes=False, **HERE)
    with running, Client(running) as client:
        has_the_page(client)
