"""Faulty trainings: what each fault changes, and when it is seen; one that is killed goes on."""

import numpy as np
import pytest

import tiledask as td
from tiledask.errors import ConfigError, PlacementError

TEXT = td.load_text("tales")
MODEL = td.GPT(TEXT.vocabulary, hidden=16, layers=1, heads=2, sequence=8)
USUAL = {"steps": 2, "batch": 7, "dtype": "float64", "progress": False}
USUAL |= {"rule": td.tile.optimizers.SGD(0.1)}


def trained(fault, shape, **options):
    options = USUAL | options
    if fault:
        return td.studies.train_with_fault(fault, MODEL, TEXT, shape, **options)
    return td.train(MODEL, TEXT, shape, **options)


@pytest.mark.parametrize(
    ("fault", "shape", "options", "seen"),
    [
        ("a mean of means", (3, 1, 1), {}, [True, True]),
        ("the last micro-batch", (1, 1, 1), {"microbatches": 2}, [False, True]),
        ("g sums twice", (1, 2, 1), {}, [False, True]),
        ("g sums twice", (2, 1, 1), {}, [False, False]),
    ],
)
def test_the_step_in_which_a_fault_is_seen(fault, shape, options, seen):
    right = trained(None, (1, 1, 1), **options).losses
    wrong = trained(fault, shape, **options).losses
    assert (np.abs(wrong - right) > 1e-10).tolist() == seen
    again = trained(None, shape, **options).losses
    np.testing.assert_allclose(again, right, rtol=1e-12)


@pytest.mark.parametrize(
    ("fault", "shape"), [("f left out", (1, 2, 1)), ("copies not summed", (2, 1, 1))]
)
def test_copies_of_a_weight_that_differ_are_refused(fault, shape):
    with pytest.raises(PlacementError, match="differ"):
        trained(fault, shape)


def test_what_is_no_fault_is_refused():
    with pytest.raises(ConfigError, match=r"faults are 'a mean of means', .*got 'typo'"):
        trained("typo", (1, 1, 1))
    with pytest.raises(ConfigError, match=r"\(1, 2, 1\); got list"):
        trained("f left out", [1, 2, 1])


@pytest.mark.cluster
def test_steps_done_twice_are_those_since_the_last_save(cluster):
    run = td.studies.train_with_failures
    quiet = run(cluster, save_every=4, steps=12)
    assert (quiet.resumed, quiet.redone) == ((), 0)
    for at, every, resumed in (((11, 7), 4, (4, 8)), ((7,), 0, (0,))):
        lost = run(cluster, at, every, steps=12)
        assert (lost.resumed, lost.redone) == (resumed, sum(at) - sum(resumed))
        assert (lost.losses == quiet.losses).all()
    with pytest.raises(ConfigError, match="a step of a failure"):
        run(cluster, at=(20,), steps=20)
