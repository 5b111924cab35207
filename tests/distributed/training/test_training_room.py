"""Trainings that their workers have no room for, and what those hold that they have.

Holds `tiledask.distributed.training.run`.
"""

import os
import re

import pytest
from twins.process_memory import SAYS, most, reset

import tiledask as td
from tiledask.distributed.cluster.room import MARGIN, SLACK
from tiledask.errors import DoesNotFitError

TEXT = td.load_text("tales")
MODEL = td.GPT(TEXT.vocabulary, hidden=512, layers=4, heads=4, sequence=64)
OPTIONS = {"batch": 8, "microbatches": 2}
pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def cluster():
    with td.start_cluster(workers=2, device="cpu", memory_limit="400MB", quiet=True) as started:
        yield started


def train(cluster, shape, **options):
    return td.train(MODEL, TEXT, td.Mesh(cluster, shape), **{"steps": 2} | OPTIONS | options)


def test_a_training_that_does_not_fit_is_refused_before_anything_runs_and_what_is_named_fits(
    cluster,
):
    before = cluster.run(os.getpid)
    with pytest.raises(DoesNotFitError) as refused:
        train(cluster, (2, 1, 1))
    said = re.fullmatch(
        r"this training, most of it \S+, takes ([\d.]+ MB) on rank \d, and slot \d leaves "
        r"([\d.]+ MB) \(slot \d: Dask pauses the worker from 320 MB on, .* held already\)\. What "
        r"would fit: zero=(\d); or workers of td.start_cluster\(memory_limit='([\d.]+ MB)'\)",
        str(refused.value),
    )
    assert said, str(refused.value)
    assert len(train(cluster, (2, 1, 1), steps=1, zero=int(said[3])).losses) == 1
    assert cluster.run(os.getpid) == before
    with td.start_cluster(workers=2, device="cpu", memory_limit=said[4], quiet=True) as larger:
        assert len(train(larger, (2, 1, 1), steps=1).losses) == 1


@pytest.mark.slow
@pytest.mark.skipif(not SAYS, reason="a kernel that says what a process held at most")
@pytest.mark.parametrize(
    ("shape", "options"),
    [((2, 1, 1), {}), ((2, 1, 1), {"zero": 1}), ((2, 1, 1), {"zero": 2}), ((2, 1, 1), {"zero": 3}),
     ((1, 2, 1), {}), ((1, 1, 2), {}), ((1, 1, 2), {"dtype": "float64", "recompute": True})],
)  # fmt: skip
def test_no_rank_holds_more_than_was_allowed_for(shape, options):
    with td.start_cluster(workers=2, device="cpu", memory_limit="3GB", quiet=True) as cluster:
        small = td.GPT(TEXT.vocabulary, hidden=16, layers=4, heads=4, sequence=64)
        td.train(small, TEXT, td.Mesh(cluster, shape), steps=2, **OPTIONS, **options)
        before = cluster.run(reset)
        train(cluster, shape, **options)
        after = cluster.run(most)
        ledgers = [
            td.training_program(MODEL, shape, checkpoint=ends, **OPTIONS, **options).memory
            for ends in (False, True)
        ]
    for rank, (start, end) in enumerate(zip(before, after, strict=True)):
        bound = SLACK * max(each.per_place[rank] for each in ledgers) + MARGIN
        assert 0.5 * bound < end - start <= bound
