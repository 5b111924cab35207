"""Published numbers on tensor parallelism, from data/published/tensor_parallel.json.

A number that is a consequence of what is executed here is compared with what was counted; one that
belongs to sizes no test can run is compared with the plan, which test_tensor_layers compares with
what is counted. What others do wrong is refused in test_tensor_placed, or right in
test_tensor_layers; convolutions, pipelines, memory and collectives are in the tests of those.
"""

from math import log

import numpy as np
import pytest
from oracles import closed_layers as plan
from oracles.closed_layers import Stream, bytes_by_rank
from oracles.published_cases import load_cases

from tiledask.distributed import tensor as T
from tiledask.distributed.ranks.threads import run_threads
from tiledask.plan.collectives.cost import cost, even
from tiledask.tile import layers as tile

PUBLISHED = load_cases("tensor_parallel.json")
CASES = {case["id"]: (case["inputs"], case["expected"]) for case in PUBLISHED}


def per_rank(calls, ranks, itemsize=1):
    """What each rank sends and receives, where all do the same."""
    sent, received = bytes_by_rank(calls, ranks, itemsize)
    (value,) = {*sent, *received}
    return value


def layer(t, b=1, s=7, h=8, sequence=False, regather=False, fused=True, gated=False):
    """What is planned of a block of which no kv head is on two ranks."""
    stream = Stream(b, s, h, t, sequence, regather)
    return plan.decoder_block(stream, 96, 96, 128, fused=fused, gated=gated)


def assert_sums(calls, forward, backward):
    assert {call.kind for call in calls.calls} == {"all_reduce"}
    assert (len(calls.forward), len(calls.backward)) == (forward, backward)


def test_sums_of_a_layer_whose_q_k_and_v_are_in_one_matrix_or_apart():
    i, e = CASES["picotron_layer_counts"]
    for t, elements, fused in zip(i["tp"], e["ring_elements_over_bsh"], e["SC21"], strict=True):
        one = CASES["m19_counts"][1]
        assert_sums(layer(t), one["fwd"], one["bwd"])
        assert_sums(layer(t, fused=False, gated=True), e["fwd"], e["bwd"])
        for matrix, wanted in ((False, elements), (True, fused)):
            sent = per_rank(layer(t, s=t, fused=matrix, gated=True).calls, t) / (t * 8)
            assert sent == pytest.approx(wanted, rel=1e-14)


def test_volume_of_a_layer_and_of_one_with_sharded_tokens():
    """The norms' weights are not in the paper's count."""
    i, e = CASES["sc21_tp_volume"]
    calls = layer(i["t"], i["b"], i["s"], i["h"]).calls
    assert per_rank(calls, i["t"]) == e["elements"]
    assert per_rank(calls, i["t"], itemsize=2) == e["bytes_fp16"]
    for name in ("kor_sp_same", "kor_sp_extra_ag"):
        t, (elements,) = CASES[name][0]["t"], CASES[name][1].values()
        calls = layer(t, s=t, sequence=True, regather=name == "kor_sp_extra_ag").calls
        counted = per_rank([call for call in calls if "norm" not in call.label], t)
        assert counted / (t * 8) == pytest.approx(elements, rel=1e-14)


def test_sums_of_whole_transformers():
    """PyTorch's: q, k, v and w1 of both layers and the output projection sum dx: 9; 2 embeddings
    and 2 x 2 row-parallel layers sum y: 6. Alpa's: 4 L, and one less where nobody asks for the
    gradient of the first layer's input."""
    e, x = CASES["pytorch_transformer_counts"][1], Stream(1, 7, 8, 2)
    ends = plan.embedding(x), plan.embedding(x), plan.column_linear(x, "output")
    calls = layer(2, fused=False).then(layer(2, fused=False), *ends)
    assert_sums(calls, e["fwd_ar"], e["bwd_ar"])
    (i, e), each = CASES["alpa_counts_bert"], layer(4).calls
    for_nobody = [call for call in each if call.label == "attention/wqkv/backward"]
    assert i["L"] * len(each) - len(for_nobody) == e["all_reduce"]


@pytest.mark.parametrize("size", ["1.2B", "2.5B", "8.3B"])
def test_parameters(size):
    i, e = CASES[f"m19_params_{size}"]
    h = i["h"]
    layer = tile.self_attention_parameters(h, tile.Heads(16, 16, h // 16), fused=True, bias=True)
    layer |= tile.mlp_parameters(h, 4 * h)
    of_layers = i["l"] * (sum(p.size for p in layer.values()) + 2 * 2 * h)  # and two norms
    assert (of_layers + (i["V"] + i["s"]) * h) / 1e9 == pytest.approx(e["params_e9"], abs=5e-4)


def test_padded_classes_shift_the_loss():
    """All logits equal, as they nearly are at the start: ln of the classes, those of pads too."""
    i, e = CASES["vocab_pad_shift"]

    def loss(rank, classes):
        logits = T.shard(rank.group(), np.zeros((1, 1, classes)), -1)
        return float(T.cross_entropy(rank.group(), logits, np.zeros((1, 1), int))[0])

    right, *padded = (run_threads(loss, 2, classes).results[0] for classes in (i["V"], *i["Vp"]))
    assert right == pytest.approx(log(i["V"]), rel=1e-14)
    assert [each - right for each in padded] == pytest.approx(e["shift"], abs=5e-6)


def test_logits_are_not_gathered():
    i, e = CASES["m19_logits"]
    t, calls = i["t"], plan.cross_entropy(Stream(i["b"], i["s"], 1, i["t"])).calls
    logits = i["b"] * i["s"] * i["v"]
    assert logits == e["elements_gather"]
    assert sum(sum(call.counts) for call in calls) == e["elements_ce_3AR"]
    gathered = cost("all_gather", "ring", even(logits, t), 1).sent[0]
    assert gathered / per_rank(calls, t) == pytest.approx(e["ring_ratio"], rel=1e-5)
