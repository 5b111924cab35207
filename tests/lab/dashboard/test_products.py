"""Products on the page: what is drawn is what was planned, reported and counted."""

import math

import numpy as np
import pytest
from oracles.pages import outside
from oracles.waiting import wait_until

import tiledask as td
from tiledask.distributed.cluster.progress import RUNS, TOPIC
from tiledask.distributed.products import matmul
from tiledask.errors import PlacementError
from tiledask.lab.dashboard import Recorder, recorder
from tiledask.lab.dashboard.product_board import ProductBoard
from tiledask.lab.dashboard.products import ProductActivity, of_product
from tiledask.lab.dashboard.saved import _record
from tiledask.lab.dashboard.tasks import shown
from tiledask.lab.plots.style import colour_named
from tiledask.plan.units import format_bytes

ABOUT = {
    "run": "exchange-a",
    "algorithm": "summa",
    "options": "panel 2",
    "shapes": [[4, 4], [4, 4]],
    "panels": [2, 2],
    "received": [100, 300],
    "memory": [1000, 2000],
    "seconds": 8.0,
    "busy": [6.0, 4.0],
    "held": [5000, 6000],
    "resident": [400, 500],
}


@pytest.fixture
def made(monkeypatch) -> Recorder:
    monkeypatch.setattr(recorder, "time", lambda: 100.0)
    return Recorder()


def reports(made: Recorder, rank: int, **said) -> None:
    said = {"done": 0, "of": 2, "received": 0, "peak": 0, "spans": [], **said}
    made.log_event(TOPIC, {"run": "exchange-a", "rank": rank, **said})


def begins(made: Recorder) -> None:
    """Rank 0 multiplies from second 1 to 3, waits, and to 6; rank 1 from 2 to 4."""
    made.log_event(RUNS, ABOUT)
    spans = [["read", 101, 102], ["multiply", 101, 103], ["wait", 103, 104], ["multiply", 104, 106]]
    reports(made, 0, done=2, received=100, peak=5500, spans=spans)
    reports(made, 1, done=1, received=40, peak=6100, spans=[["multiply", 102, 104]])


def ends(made: Recorder, **more) -> None:
    counted = {"received": [100, 300], "memory": [950, 1800], "seconds": 10.0} | more
    made.log_event(TOPIC, {"run": "exchange-a", "ended": counted})


def facts(made: Recorder) -> dict[str, str]:
    return dict(shown(made.record()).facts)


def test_a_product_under_way_shows_what_its_ranks_have_reported_beside_the_plan(made):
    made.log_event(RUNS, ABOUT)
    drawn = shown(made.record())
    assert (drawn.makespan, drawn.boxes) == (0.0, ())
    assert all(map(math.isnan, drawn.idle))
    assert "idle measured so far" not in facts(made)
    ProductBoard(drawn)
    begins(made)
    drawn = shown(made.record())
    assert type(drawn) is ProductActivity
    assert drawn.title.endswith(", running")
    assert drawn.rows == ("rank 0", "rank 1")
    boxes = [(b.row, b.start, b.end, b.text, b.colour) for b in drawn.boxes]
    blue, wait = colour_named("multiply"), colour_named("wait")
    assert boxes == [
        (0, 1, 3, "0", blue),
        (0, 3, 4, "", wait),
        (0, 4, 6, "1", blue),
        (1, 2, 4, "0", blue),
    ]
    # rank 1 has told of 4 seconds: rank 0 multiplied in 2 of them, and so did rank 1
    assert drawn.idle == (0.5, 0.5)
    assert drawn.predicted == (0.25, 0.5)
    assert [b.end for b in drawn.received] == [100, 40]
    assert [b.end for b in drawn.memory] == [400 + 500, 500 + 100]
    assert drawn.limits == {"received": (100, 300), "memory": (1000, 2000)}
    assert " | ".join(map(": ".join, drawn.facts)) == (
        "product: 4x4 @ 4x4 | algorithm: summa panel 2 | panels done: 3 of 4 | "
        "bytes between workers so far: 140 B, predicted 400 B | "
        "memory of the fullest worker so far: 900 B, predicted at most 2 kB | time so far: 6 s | "
        "time predicted: 8 s | idle measured so far: 50.0 % | idle predicted: 37.5 %"
    )


def test_at_its_end_a_product_shows_what_the_client_has_counted(made):
    begins(made)
    ends(made)
    drawn, said = shown(made.record()), facts(made)
    assert drawn.title.endswith(", done")
    assert (drawn.makespan, drawn.idle) == (10.0, pytest.approx((0.6, 0.8)))
    assert said["bytes between workers"] == "400 B, predicted 400 B"
    assert said["memory of the fullest worker"] == "1.8 kB, predicted at most 2 kB"
    board = ProductBoard(drawn)
    assert board.received.boxes.data["right"].tolist() == [100, 300]
    assert board.memory.predicted.data["x"] == [1000, 2000]
    ends(made, received=None, memory=None)
    assert facts(made)["bytes between workers"] == "not counted, predicted 400 B"
    assert "did not say" in shown(made.record()).note


# -- on a cluster ------------------------------------------------------------------------------


def operand(cluster, n: int = 96):
    a = np.random.default_rng(0).standard_normal((n, n))
    return td.distribute(a, td.Mesh(cluster, (2, 2)), (td.Shard(0), td.Shard(1)))


@pytest.mark.few(1)
@pytest.mark.cluster
@pytest.mark.parametrize("algorithm", ["summa", "row_parallel", "gather"])
def test_a_real_product_is_drawn_as_it_is_counted(cluster, tmp_path, algorithm):
    a = operand(cluster)
    c = td.matmul(a, a, algorithm=algorithm)
    wait_until(lambda: cluster.client.run_on_scheduler(_record).products[-1].is_over)
    record = cluster.client.run_on_scheduler(_record)
    product = record.products[-1]
    received = c.traffic.measured.received
    assert tuple(product.counted["received"]) == received
    assert tuple(rank.received for rank in product.ranks) == received  # by the workers' reports
    assert tuple(product.about["received"]) == c.traffic.predicted.received == received
    assert product.counted["memory"] == list(c.memory.measured.per_place.values())
    assert product.about["memory"] == list(c.memory.predicted.per_place.values())
    assert product.counted["seconds"] == c.seconds
    assert [rank.done for rank in product.ranks] == product.about["panels"]
    assert product.count == sum(len(spent.spans) for spent in c.spent)
    drawn = of_product(product, record.now)
    total = format_bytes(c.traffic.measured.total)
    assert dict(drawn.facts)["bytes between workers"] == f"{total}, predicted {total}"
    assert type(shown(record)) is ProductActivity
    busy = [s.multiply + s.sum for s in c.spent]
    assert drawn.idle == pytest.approx([1 - b / drawn.makespan for b in busy])
    html = td.report(tmp_path / "run.html", cluster).read_text("utf-8")
    assert outside(html) == []
    assert f"{total}, predicted {total}" in html


@pytest.mark.cluster
def test_a_chosen_product_has_a_predicted_time(cluster):
    a = operand(cluster)
    td.matmul(a, a)
    wait_until(lambda: cluster.client.run_on_scheduler(_record).products[-1].is_over)
    about = cluster.client.run_on_scheduler(_record).products[-1].about
    predicted = td.explain(a, a)[about["algorithm"]].cost
    assert (about["seconds"], tuple(about["busy"])) == (predicted.total, predicted.busy)
    assert 0 < max(about["busy"]) <= about["seconds"]


@pytest.mark.cluster
def test_a_product_fails_by_itself_and_never_by_the_page(cluster, monkeypatch):
    a = operand(cluster)
    expected = td.to_numpy(td.matmul(a, a, algorithm="summa"))

    def broken(*_):
        raise OSError("no page")

    with monkeypatch.context() as patched:
        patched.setattr(type(cluster), "tell_page", broken)
        c = td.matmul(a, a, algorithm="summa")
    np.testing.assert_array_equal(td.to_numpy(c), expected)

    def fails(*_):
        raise PlacementError("planted")

    monkeypatch.setattr(matmul._Run, "_result", fails)
    with pytest.raises(PlacementError, match="planted"):
        td.matmul(a, a, algorithm="summa")
    wait_until(lambda: cluster.client.run_on_scheduler(_record).products[-1].is_over)
    product = cluster.client.run_on_scheduler(_record).products[-1]
    assert product.failed == "PlacementError: planted"
