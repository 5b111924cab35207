"""Trainings that their workers have no room for, and what those hold that they have.

Holds `tiledask.distributed.training.run`.
"""

import os
import re

import pytest

import tiledask as td
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
