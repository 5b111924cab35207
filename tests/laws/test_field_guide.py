"""The field guide names what is entered, in the order in which it is."""

import re
import sys
import threading
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from oracles.single_gpt import TEXT

import tiledask as td

PACKAGE = Path(td.__file__).parent
_STEP = re.compile(r"^\d+\. `([\w.]+)`\s+\[([\w/]+\.py)\]\(([\w/]+\.py)\)(, on a worker)?:", re.M)


def steps(title):
    """[(function, file, whether on a worker)] of a section of the page."""
    page = (PACKAGE / "FIELD_GUIDE.md").read_text()
    (section,) = (part for part in page.split("\n## ") if part.startswith(title))
    found = _STEP.findall(section)
    assert len(found) == len(re.findall(r"^\d+\. ", section, re.M))
    assert all(said == link for _, said, link, _ in found)
    return [(function, file, bool(worker)) for function, file, _, worker in found]


class Followed:
    """Functions of the package by when they were first entered, on this and new threads."""

    def __init__(self):
        self.first = {}

    def __enter__(self):
        threading.setprofile(self.heard)
        sys.setprofile(self.heard)
        return self

    def __exit__(self, *error):
        sys.setprofile(None)
        threading.setprofile(None)

    def heard(self, frame, event, arg):
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(str(PACKAGE)):
            file = Path(code.co_filename).relative_to(PACKAGE).as_posix()
            self.first.setdefault((code.co_qualname, file), len(self.first))


def out_of_order(wanted, first):
    """What was not entered, or before what the page has before it."""
    missing = [step for step in wanted if step not in first]
    there = [step for step in wanted if step in first]
    return missing or [b for a, b in pairwise(there) if first[b] < first[a]]


def follow(title, call):
    with Followed() as followed:
        call()
    here = [(function, file) for function, file, worker in steps(title) if not worker]
    assert out_of_order(here, followed.first) == []
    return followed.first


def fitting():
    td.fits(td.load_model("gpt2"), td.Layout(dp=2), td.load_cluster("2xA100-40GB"))


def training():
    td.train(td.GPT(TEXT.vocabulary, 16, 1, 2, 8), TEXT, (1, 1, 1), steps=1, batch=2)


@pytest.mark.long
@pytest.mark.usefixtures("one_thread")
def test_a_model_and_a_batch_go_where_the_page_says():
    follow("A model", fitting)
    follow("A batch", training)


def test_what_is_not_entered_or_comes_later_is_seen():
    first = follow("A model", fitting)
    named = [(function, file) for function, file, _ in steps("A model")]
    assert out_of_order([*named, ("search", "plan/choosing/search.py")], first)
    assert out_of_order(named[::-1], first)


def traced():
    """On a worker: what its product enters from now on is kept."""
    from tiledask.distributed.products import multiply as room

    honest, followed = room.run_line, Followed()

    def run_line(*args):
        with followed:
            return honest(*args)

    run_line.__module__, run_line.honest, run_line.followed = honest.__module__, honest, followed
    room.run_line = run_line


def heard():
    """On a worker: what was entered; things are as before."""
    from tiledask.distributed.products import multiply as room

    traced, room.run_line = room.run_line, room.run_line.honest
    return traced.followed.first


@pytest.mark.cluster
def test_an_array_and_a_schedule_go_where_the_page_says(cluster):
    mesh, a = (
        td.Mesh(cluster, (4,)),
        np.ones((67, 67)),
    )  # a shape of its own: equal products are planned once

    def multiply():
        x, y = (td.distribute(a, mesh, (td.Shard(0),)) for _ in range(2))
        td.to_numpy(td.matmul(x, y, algorithm="column_parallel"))

    cluster.run(traced)
    try:
        follow("An array", multiply)
    finally:
        entered = cluster.run(heard)
    there = [(function, file) for function, file, worker in steps("An array") if worker]
    assert there[0] == ("run_line", "distributed/products/multiply.py")
    for first in entered:
        assert out_of_order(there, first) == []

    def run():
        s = td.schedule("1f1b", 2, 4)
        td.simulate(s, forward=1.0, backward=2.0)
        td.run_schedule(s, cluster=cluster)

    follow("A schedule", run)
