"""Premises of questions, worked out: the faulty ones are caught, with the numbers that say so.

Holds `tiledask.plan.choosing.question_check`.
"""

import json
import re

import pytest

import tiledask as td
from tiledask.errors import ConfigError
from tiledask.plan.choosing.question_check import check_premise, premises
from tiledask.plan.collectives.data_parallel import zero_step
from tiledask.plan.fitting.overhead import CUDA_CONTEXT
from tiledask.plan.inputs.recipes import load_recipe
from tiledask.plan.judged import BARELY, FAILS, HOLDS
from tiledask.plan.units import format_bytes

# per premise and claim: the verdict, and a number that must stand in its working
KNOWN = """
layer-of-26-gb: holds 104 GB | holds 11 GB left | fails of 24 GB: 2.988 GB too much | holds 13 GB
    | barely 19.5 GB
200b-on-40-gb: holds 3.2 TB | fails 987.8 MB too much | fails 320 GB | fails / 80 = 40 GB
    | fails = 40 GB
70b-on-8: fails 140 GB | fails 140 GB | holds 17.5 GB
70b-on-8-of-141-gb: holds 159.7 GB | barely needs 138.5 GB
fp16-postmortem: fails more than 9.753 billion parameters | holds 9.753 billion to 15.6 billion
    | holds 25.0 % | fails 57.1 %
scaling-regression: fails 120 GB | holds 41.25 GB | fails 1.07 times
two-clusters: fails 480 GB | fails 120 GB | fails 0 on 8 x 40 GB | holds tp 8 x pp 2
hardware-refresh: holds 480 GB | fails 60 GB a device | holds 57.1 %
memory-bound-30b: holds 480 GB | fails 120 GB | holds 25.0 % | fails 120 GB | barely 75 GB
    | holds 60 GB
"""
KNOWN = dict(line.split(": ", 1) for line in KNOWN.replace("\n    |", " |").strip().splitlines())


@pytest.mark.parametrize("name", premises())
def test_shipped_premises(name):
    critique = check_premise(name)
    for finding, known in zip(critique.findings, KNOWN[name].split(" | "), strict=True):
        verdict, number = known.split(" ", 1)
        assert finding.verdict == {"holds": HOLDS, "fails": FAILS, "barely": BARELY}[verdict]
        assert number in finding.why, finding
    assert bool(critique) == all(f.verdict != FAILS for f in critique.findings)
    assert all(f.way_out for f in critique.findings if f.verdict == FAILS)


def test_the_ways_out_are_true():
    way = check_premise("hardware-refresh").findings[1].way_out
    assert "ZeRO-2 would do: 20.62 GB" in way
    assert "21 slices" in way
    held = sum(td.plan.inputs.recipes.state_bytes(3_750_000_000, "mixed-adam-16", 2, 4).values())
    assert round(held / 1e9, 2) == 20.62
    assert 16 * 30 / 21 <= 24 - CUDA_CONTEXT / 1e9 < 16 * 30 / 20
    assert "27 micro-batches" in check_premise("fp16-postmortem").findings[3].way_out
    assert 27 / 30 >= 0.9 > 26 / 29


def test_the_sentences_can_be_read_as_text_html_and_json():
    critique = check_premise("hardware-refresh")
    assert "fails: B, pp 4 x tp 2 x dp 4, starts." in str(critique)
    assert critique._repr_html_().count("<tr>") == 4
    assert json.loads(json.dumps(critique.to_dict()))["holds"] is False
    assert "1 of 3 claims fail" in repr(critique)


@pytest.mark.parametrize(
    ("share", "way"),
    [(1, "All of it is out of reach."), (0.5, "It is busier: 72.7 %, not 50.0 %.")],
)
def test_a_share_out_of_reach(share, way):
    finding = check_premise(one(kind="used", stages=4, microbatches=8, share=share)).findings[0]
    assert (finding.verdict, finding.way_out) == (FAILS, way)


PREMISE = {
    "question": "Which?",
    "parameters": 10**10,
    "memory": "40GB",
    "devices": 8,
    "plans": {"A": {"dp": 4, "tp": 2}},
    "claims": [{"claim": "A runs", "kind": "fits", "plan": "A"}],
}


def changed(**changes):
    return {**PREMISE, **changes}


def test_a_premise_of_ones_own(tmp_path):
    assert not check_premise(PREMISE)
    file = tmp_path / "mine.json"
    file.write_text(json.dumps(changed(plans={"A": {"dp": 4, "tp": 2, "zero": 3}})))
    assert check_premise(file)
    by_model = {k: v for k, v in PREMISE.items() if k != "parameters"} | {"model": "llama-3.1-8b"}
    assert "llama-3.1-8b, 8,030,261,248 parameters" in check_premise(by_model).convention


def one(**claim):
    return changed(claims=[{"claim": "c", **claim}])


@pytest.mark.parametrize(
    ("premise", "words"),
    [
        (changed(memory="much"), "cannot read 'much' as a size"),
        (changed(parameters=True), "key 'parameters' must be a whole number of 1 or more"),
        (changed(plans={"A": {"dp": 16}}), "makes 16 devices, the premise has 8"),
        (changed(plans={"A": {"dp": 2, "zero": 4}}), "zero must be at most 3, got 4"),
        (changed(plans={"A": {"recompute": "full"}}), "changes what only a model tells"),
        (changed(model="gpt2"), "is 10,000,000,000, and gpt2 has 124,439,808; leave it out"),
        (changed(plans={"A": {"pd": 2}}), "'pd' is not known here"),
        (changed(memroy="40GB"), "'memroy' is not known here"),
        (one(kind="flies"), "is 'flies'; there are fits, too large"),
        (one(kind="fits", plan="Z"), "names 'Z'; the plans are one device, A"),
        (one(kind="fits", plan="A", wrong=1), "'wrong' is not known here"),
        (
            {k: v for k, v in PREMISE.items() if k != "parameters"},
            "'parameters' is missing; this claim needs it",
        ),
        ("no-such-premise", "no premise description is called"),
        (5, "a premise is a name, a path or a mapping, got 5"),
        (changed(memory="80"), "is 80 bytes; write the unit too, such as '80GB'"),
        (one(kind="used", stages=4, microbatches=8, share=90), "is a part of 1"),
        (one(kind="fits all", clusters={}), "is empty; name one or more"),
        (
            one(kind="traffic grows", times=2, **{"from": "one device", "to": "A"}),
            "names a plan with dp 1 and mixed-adam-16, which sends no gradients",
        ),
    ],
)
def test_what_cannot_be_read_is_said(premise, words):
    with pytest.raises(ConfigError, match=re.escape(words)):
        check_premise(premise)


@pytest.mark.parametrize("recipe", ["mixed-adam-16", "mixed-adam-18", "fp32-adam"])
@pytest.mark.parametrize("zero", range(4))
def test_traffic_is_that_of_the_collectives_of_every_micro_batch(recipe, zero):
    """30 B in 4 slices and 8 copies: mixed-adam-18 sends 52.5 GB under ZeRO-3, its gradients being
    wider than the weights that are gathered."""
    plan = {"tp": 4, "dp": 8, "zero": zero}
    given = changed(parameters=30 * 10**9, devices=32, recipe=recipe, memory="80GB")
    widths = load_recipe(recipe).weight_bytes, load_recipe(recipe).gradient_bytes
    calls = zero_step({"slice": 75 * 10**8}, 8, zero, *widths)
    again = {0: (), 1: (), 2: ("gradients",), 3: ("gradients", "forward", "backward")}[zero]
    for m in (1, 5):
        sent = sum(c.cost.sent[0] * (m if c.label.split("/")[1] in again else 1) for c in calls)
        plans = {"plain": {"tp": 4, "dp": 8}, "A": {**plan, "microbatches": m}}
        claim = {"claim": "c", "kind": "traffic grows", "from": "plain", "to": "A", "times": 1}
        why = check_premise(given | {"plans": plans, "claims": [claim]}).findings[0].why
        assert f", {format_bytes(sent)} with d = 8 (" in why
        if (recipe, zero, m) == ("mixed-adam-18", 3, 1):
            assert sent == 52.5e9


@pytest.mark.long
def test_one_layout_for_several_clusters_is_looked_for_by_fits_where_the_model_is_known():
    clusters = {
        "8": {"devices": 8, "memory": "40GB"},
        "16": {"devices": 16, "memory": "80GB", "devices_per_node": 8},
    }
    claim = {"claim": "c", "kind": "fits all", "clusters": clusters}
    premise = one(**claim) | {"model": "llama-3.1-8b", "plans": {}}
    del premise["parameters"]
    why = check_premise(premise).findings[0].why
    model, counts = td.load_model("llama-3.1-8b"), []
    for devices, memory in ((8, 40), (16, 80)):
        fleet = td.load_cluster(f"{devices}xA100-{memory}GB")
        counts.append(
            sum(
                td.fits(
                    model, td.Layout(dp=devices // tp // pp, tp=tp, pp=pp, zero=zero), fleet
                ).verdict
                == "fits"
                for tp in (1, 2, 4, 8)
                for pp in (1, 2, 4, 8, 16)
                if devices % (tp * pp) == 0
                for zero in range(4)
            )
        )
    assert 0 < counts[0] < counts[1]
    assert f"{counts[0]} on 8, {counts[1]} on 16 fit" in why


def test_adapters_are_left_out_and_said_to_be():
    critique = check_premise(changed(recipe="lora"))
    assert "2 B a parameter (weights 2; adapters left out)" in critique.convention
    assert critique.findings[0].why.startswith("2 B x 10 billion / 2 = 10 GB a device")
    grows = {"kind": "traffic grows", "from": "A", "to": "A", "times": 1}
    with pytest.raises(ConfigError, match="sends no gradients"):
        check_premise(one(**grows) | {"recipe": "lora"})
