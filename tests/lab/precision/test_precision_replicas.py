"""NaN of summed fp16 gradients, made and taken away; suspects named by what helps.

Holds `tiledask.lab.precision.replicas` and `tiledask.lab.precision.blame`.
"""

import math
from functools import partial

import pytest

from tiledask.distributed.ranks.threads import run_threads
from tiledask.errors import ConfigError
from tiledask.lab.precision import (
    REMEDIES,
    Reduction,
    TrainingSetting,
    acceptable,
    blame,
    sum_error,
    train_replicas,
)

EDGE = 2.0**18
"""A loss scale with which each of two replicas is finite, and their sum is not."""


def trained(reduction, scale, dtype="float16", ranks=2):
    return run_threads(partial(train_replicas, dtype=dtype), ranks, reduction, scale).results[0]


def test_the_sum_overflows_where_no_replica_does_and_each_remedy_helps():
    runs = {name: trained(how, EDGE) for name, how in REMEDIES.items()}
    assert {name: run.finite for name, run in runs.items()} == {
        "as it was": False,
        "divided before the sum": True,
        "summed in fp32": True,
        "dynamic loss scale": True,
    }
    assert runs["as it was"].largest < 65504  # of a replica, before any sum
    assert math.isnan(runs["as it was"].losses[1])
    assert runs["dynamic loss scale"].skipped == 1
    single = trained(Reduction("float32"), 1.0, "float32")
    for name in ("divided before the sum", "summed in fp32"):
        ends = single.losses[-1], runs[name].losses[-1]
        assert acceptable(*ends, len(single.losses), "float16", 2, 2)


def test_half_the_scale_overflows_nowhere():
    assert all(trained(how, EDGE / 2).finite for how in REMEDIES.values())


def test_replicas_share_a_batch_evenly():
    with pytest.raises(ConfigError, match="32 rows on 3"):
        trained(Reduction(), 1.0, ranks=3)


def test_errors_of_sums_grow_with_the_ranks_and_shrink_with_the_format():
    errors = {
        (dtype, d): run_threads(sum_error, d, dtype).results[0][0]
        for dtype in ("float16", "float32", "bfloat16")
        for d in (2, 4, 16)
    }
    for dtype in ("float16", "float32", "bfloat16"):
        assert errors[dtype, 2] < errors[dtype, 4] < errors[dtype, 16]
    assert errors["float16", 4] / errors["float32", 4] == pytest.approx(2**13, rel=0.1)


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("setting", "cause"),
    [
        ({}, "nothing"),
        ({"dtype": "float32"}, "nothing"),
        ({"scale": 2.0**-22}, "the loss scale is too low"),
        ({"scale": 2.0**24}, "the loss scale is too high"),
        ({"dtype": "bfloat16", "rate": 0.002, "master": False}, "no master weights"),
        ({"rate": 1.0}, "the rate is too high"),
        ({"dtype": "float32", "rate": 1.0}, "the rate is too high"),
    ],
)
def test_the_experiment_that_helps_names_the_suspect(setting, cause):
    assert blame(TrainingSetting(**setting)).cause == cause
