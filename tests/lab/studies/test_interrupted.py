"""A training that is killed where it was told: what it does twice is counted, its losses stay."""

import pytest

import tiledask as td
from tiledask.errors import ConfigError


@pytest.fixture(scope="module")
def cluster():
    with td.start_cluster(workers=2, device="cpu", quiet=True) as running:
        yield running


@pytest.mark.cluster
def test_steps_done_twice_are_those_since_the_last_save(cluster):
    run = td.studies.train_with_failures
    quiet = run(cluster, save_every=5, steps=20)
    assert (quiet.resumed, quiet.redone) == ((), 0)
    assert quiet.cost > 0
    for every, resumed in ((5, (5, 10)), (0, (0, 0))):
        lost = run(cluster, (13, 7), every, steps=20)
        assert (lost.resumed, lost.redone) == (resumed, 20 - sum(resumed))
        assert (lost.losses == quiet.losses).all()


@pytest.mark.cluster
def test_a_step_that_never_comes_is_refused(cluster):
    with pytest.raises(ConfigError, match="a step of a failure"):
        td.studies.train_with_failures(cluster, at=(20,), steps=20)
