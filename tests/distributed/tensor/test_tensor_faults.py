"""Faults planted in tensor-parallel layers: each is caught by the checks that the layers pass."""

import sys
from dataclasses import replace

import numpy as np
import pytest
from oracles.tensor_cases import check
from test_tensor_layers import check_attention, check_far_logits, check_feed_forward, check_loss
from test_tensor_layers import test_embedding as check_embedding
from test_tensor_layers import test_norms as check_norms

from tiledask.distributed import tensor as T
from tiledask.distributed.ranks.group import Group
from tiledask.errors import PlacementError
from tiledask.plan.collectives import layers as plan
from tiledask.plan.collectives.shards import even_shards
from tiledask.tile import layers as tile

FEED = lambda: check_feed_forward(4, "gelu", 16, False, False)  # noqa: E731
GQA = lambda: check_attention(4, tile.Heads(10, 5, 2), True)  # noqa: E731


def module(name):
    """The file, where a function of the same name hides it."""
    return sys.modules[f"tiledask.distributed.tensor.{name}"]


def first_kv_head_only(heads, group):
    return (0,) * even_shards(heads.query, group.size).counts[group.rank]


def of_a_shard(sums, targets, rule, count, right=tile.loss_of_sums):
    return right(sums, targets, replace(rule, vocabulary=rule.vocabulary // 4), count)


def dealt_without_a_sum(group, y, dim, shards=None):
    return T.shard(group, y.local, dim, shards)


FAULTS = {
    "a missing f": ("linear", "enter_grad", lambda group, dx, x: T.replicate(dx.local), FEED),
    "a missing g": ("linear", "leave", lambda group, y, to, shards: T.replicate(y.local), FEED),
    "a doubled all_reduce": (
        "linear",
        "leave_grad",
        lambda group, dy: T.replicate(group.all_reduce(dy.local)),
        FEED,
    ),
    "a bias t times": (
        "linear",
        "add_bias",
        lambda group, y, b: y.like(y.local + group.size * b.local),
        FEED,
    ),
    "a sum of tokens left out": (
        "f_g",
        "scattered",
        dealt_without_a_sum,
        lambda: check_feed_forward(4, "fused", 17, True, False),
    ),
    "a norm's weight not summed": (
        "norms",
        "_over_all_tokens",
        lambda group, dy, grads, name: grads,
        lambda: check_norms(4, True),
    ),
    "shared kv heads not summed": ("attention", "_sum_shared", lambda *_: None, GQA),
    "the kv head of others' queries": ("attention", "_kv_of", first_kv_head_only, GQA),
    "rows counted from 0 on every rank": (
        "embedding",
        "first_of",
        lambda *_: 0,
        lambda: check_embedding(4, False),
    ),
    "classes counted from 0 on every rank": (
        "cross_entropy",
        "first_of",
        lambda *_: 0,
        lambda: check_loss(4, 17),
    ),
}
"""Where it is planted, what is done instead, and the check that must see it."""


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_caught(fault, monkeypatch):
    where, name, wrong, check = FAULTS[fault]
    check()
    monkeypatch.setattr(module(where), name, wrong)
    with pytest.raises((AssertionError, PlacementError)):
        check()


def test_smoothing_over_a_rank_s_own_classes_is_caught(monkeypatch):
    """Megatron-LM's issue 7452: right on one rank, wrong on two."""
    check_loss(4, 17, 0.1)
    monkeypatch.setattr(tile, "loss_of_sums", of_a_shard)
    with pytest.raises(AssertionError, match="loss"):
        check_loss(4, 17, 0.1)


@pytest.mark.filterwarnings("ignore:overflow", "ignore:invalid")
def test_a_maximum_of_a_rank_s_own_classes_is_caught(monkeypatch):
    right = Group.all_reduce

    def wrong(group, x, op="sum"):
        return x if op == "max" else right(group, x, op)

    monkeypatch.setattr(Group, "all_reduce", wrong)
    with pytest.raises(AssertionError):
        check_far_logits()


@pytest.mark.parametrize(
    "planned",
    [
        plan.column_linear(plan.Stream(2, 7, 5, 4, sequence=True)),
        plan.column_linear(plan.Stream(2, 7, 6, 4)),
        plan.column_linear(plan.Stream(2, 7, 5, 4), name="other"),
        plan.LayerCalls(),
    ],
)
def test_collectives_that_are_not_those_planned_are_noticed(planned):
    """Another kind, other bytes, another label, one too many."""

    def program(group):
        w = T.shard(group, np.ones((5, 4)), 1)
        y, kept = T.column_linear(group, T.replicate(np.ones((2, 7, 5))), w)
        return {"dx": T.column_linear_grad(group, y, kept, w)[0]}

    expected = {"dx": np.full((2, 7, 5), 20.0)}
    check(4, program, expected, plan.column_linear(plan.Stream(2, 7, 5, 4)))
    with pytest.raises(AssertionError, match="planned"):
        check(4, program, expected, planned)
