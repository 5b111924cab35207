"""A training that is killed where it was told: what it does twice is counted, its losses stay."""

import pytest

import tiledask as td
from tiledask.errors import ConfigError

pytestmark = pytest.mark.cluster


def test_steps_done_twice_are_those_since_the_last_save(cluster):
    run = td.studies.train_with_failures
    quiet = run(cluster, save_every=4, steps=12)
    assert (quiet.resumed, quiet.redone) == ((), 0)
    assert quiet.cost > 0
    for at, every, resumed in (((11, 7), 4, (4, 8)), ((7,), 0, (0,))):
        lost = run(cluster, at, every, steps=12)
        assert (lost.resumed, lost.redone) == (resumed, sum(at) - sum(resumed))
        assert (lost.losses == quiet.losses).all()
    with pytest.raises(ConfigError, match="a step of a failure"):
        run(cluster, at=(20,), steps=20)
