"""A scheduler keeps the last of what is over, and not all of it.

Holds `tiledask.distributed.recovering.forgets`.
"""

import os
import signal
import time
from itertools import product
from string import ascii_lowercase

import dask
import numpy as np
import pytest
from oracles.waiting import wait_until
from twins.by_hand import dask_by_hand

import tiledask as td
from tiledask.distributed.recovering import forgets
from tiledask.distributed.recovering.forgets import RUNS


@pytest.fixture(scope="module")
def cluster():
    with td.start_cluster(2, device="cpu", quiet=True) as started:
        yield started


def run_some(cluster, runs):
    """The topics of some schedules, all of which have run."""
    batch, stages = np.ones((4, 2)), [td.stages.FeedForward((i,), 2, 2) for i in range(2)]
    for engine in (["loop", "tasks"] * runs)[:runs]:
        td.run_schedule(
            td.schedule("gpipe", 2, 2), stages, batch, cluster, target=batch, engine=engine
        )
    return [said["run"] for said in cluster.events(RUNS)[-runs:]]


def are_kept(scheduler, topics):
    return [topic in scheduler._broker._topics for topic in topics]


@pytest.mark.cluster
def test_events_of_the_last_runs_are_kept(cluster):
    topics = run_some(cluster, forgets._RUNS + 3)
    kept = [False] * 3 + [True] * forgets._RUNS
    wait_until(lambda: are_kept(cluster.given.scheduler, topics) == kept, "old runs to go")
    assert cluster.events(topics[-1])
    topics = cluster.given.scheduler._broker._topics
    kept = {name: topics[name].events.maxlen for name in ("all", "scheduler", RUNS)}
    assert kept == {"all": forgets._EVENTS, "scheduler": forgets._EVENTS, RUNS: forgets._ANNOUNCED}
    assert topics[cluster.client.id].events.maxlen == forgets._EVENTS


@pytest.mark.cluster
def test_a_training_is_over_too(cluster):
    text = td.load_text("tales")
    model = td.GPT(text.vocabulary, hidden=4, layers=1, heads=1, sequence=4)
    td.train(model, text, td.Mesh(cluster, (2, 1, 1)), steps=1, batch=2, progress=False)
    (topic,) = [said["run"] for said in cluster.events(RUNS)[-1:]]
    assert topic.startswith("tiledask-training")
    run_some(cluster, forgets._RUNS)
    wait_until(lambda: are_kept(cluster.given.scheduler, [topic]) == [False], "it to go")


@pytest.mark.cluster
def test_a_worker_that_is_gone_leaves_nothing(cluster):
    scheduler, address = cluster.given.scheduler, cluster.address(0)
    assert address in scheduler._broker._topics
    cluster.gather([cluster.submit(0, float)], "a task", 240)
    read = cluster.client.rpc.available
    assert address in read
    os.kill(cluster.run(os.getpid)[0], signal.SIGKILL)
    wait_until(lambda: cluster.address(0) != address, "another worker")
    assert address not in scheduler._broker._topics
    wait_until(lambda: address not in read, "its connection to go")
    cluster.gather([cluster.submit(slot, float) for slot in range(2)], "tasks", 240)
    streams = [*scheduler.stream_comms.values(), *scheduler.client_comms.values()]
    streams += [each.bcomm for each in scheduler.plugins.values() if hasattr(each, "bcomm")]
    assert len(streams) >= 4  # two workers, a client, the cluster itself
    assert not any(stream.recent_message_log for stream in streams)
    # Dask has a task on the loop for each worker that is gone, until it forgets it
    assert dask.config.get("distributed.scheduler.events-cleanup-delay") == "1 minute"


@pytest.mark.cluster
def test_ten_minutes_are_monitored_by_those_too_that_come_later(cluster):
    (old,) = [nanny for slot, nanny in cluster.given.workers.items() if slot == 1]
    cluster.given.sync(old.close)
    wait_until(lambda: cluster.given.workers.get(1) not in (None, old), "another nanny")
    cluster.gather([cluster.submit(slot, float) for slot in range(2)], "tasks", 240)
    servers = [cluster.given.scheduler, *cluster.given.workers.values()]
    assert [server.monitor.maxlen for server in servers] == [1200] * 3
    assert cluster.run(lambda dask_worker: dask_worker.monitor.maxlen) == [1200] * 2


@pytest.mark.cluster
def test_spans_of_tasks_that_are_forgotten_go_but_for_the_last(cluster):
    spans = cluster.given.scheduler.extensions["spans"]
    kept = cluster.submit(0, float, name="kept")
    cluster.wait([kept], "it", 240)
    (own,) = [s for s in spans.root_spans if any(g.name.startswith("kept") for g in s.groups)]
    for first, second in list(product(ascii_lowercase, repeat=2))[: forgets._SPANS + 20]:
        # of another name each: Dask may put those of one into a span that is there
        cluster.gather([cluster.submit(1, float, name=f"short{first}{second}")], "it", 240)
    time.sleep(1.5)  # workers tell of spans with their heartbeats, of those that are gone too
    assert len(spans.root_spans) <= forgets._SPANS + 2
    assert own in spans.root_spans
    assert {*spans.spans.values()} == {*spans.root_spans}
    assert cluster.gather([kept], "it", 240) == [0.0]


@pytest.mark.cluster
@pytest.mark.slow
def test_events_of_runs_go_from_a_scheduler_that_was_connected_to(tmp_path):
    with (
        dask_by_hand(tmp_path, 2) as dask_there,
        td.connect(dask_there.address, workers=2) as cluster,
    ):
        topics = run_some(cluster, forgets._RUNS + 2)
        there = cluster.client.get_events()
    assert [topic in there for topic in topics] == [False] * 2 + [True] * forgets._RUNS
