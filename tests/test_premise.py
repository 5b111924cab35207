"""Premises of questions, worked out: the faulty ones are caught, with the numbers that say so."""

import json
import re

import pytest

import tiledask as td
from tiledask.errors import ConfigError
from tiledask.plan.choosing.premise import BARELY, FAILS, HOLDS, check_premise, premises

# per premise: the verdict of each claim, and numbers that must stand in its working
KNOWN = {
    "layer-of-26-gb": [
        (HOLDS, "104 GB"), (HOLDS, "13 GB"), (FAILS, "26 GB a device, of 24 GB: 2 GB too much"),
        (HOLDS, "13 GB"), (BARELY, "19.5 GB"),
    ],
    "200b-on-40-gb": [
        (HOLDS, "3.2 TB"), (BARELY, "40 GB"), (FAILS, "320 GB"), (BARELY, "/ 80"), (BARELY, "/ 80"),
    ],
    "70b-on-8": [(FAILS, "140 GB"), (FAILS, "140 GB"), (HOLDS, "17.5 GB")],
    "70b-on-8-of-141-gb": [(BARELY, "1 GB are left")],
    "fp16-postmortem": [
        (FAILS, "more than 10 billion parameters"), (HOLDS, "10 billion to 16 billion"),
        (HOLDS, "25.0%"), (FAILS, "57.1%"),
    ],
    "scaling-regression": [(FAILS, "120 GB"), (HOLDS, "41.25 GB"), (FAILS, "1.07 times")],
    "two-clusters": [
        (FAILS, "480 GB"), (FAILS, "120 GB"), (FAILS, "0 on 8 x 40 GB"), (HOLDS, "tp 8 x pp 2"),
    ],
    "hardware-refresh": [(HOLDS, "480 GB"), (FAILS, "60 GB a device, of 24 GB"), (HOLDS, "57.1%")],
    "memory-bound-30b": [
        (HOLDS, "480 GB"), (FAILS, "120 GB"), (HOLDS, "25.0%"), (FAILS, "120 GB"),
        (BARELY, "75 GB"), (HOLDS, "60 GB"),
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", premises())
def test_shipped_premises(name):
    critique = check_premise(name)
    assert [f.verdict for f in critique.findings] == [verdict for verdict, _ in KNOWN[name]]
    for finding, (_, number) in zip(critique.findings, KNOWN[name], strict=True):
        assert number in finding.why, finding
    assert bool(critique) == all(f.verdict != FAILS for f in critique.findings)
    assert all(f.way_out for f in critique.findings if f.verdict == FAILS)


def test_the_ways_out_are_true():
    way = check_premise("hardware-refresh").findings[1].way_out
    assert "ZeRO-2 would do: 20.62 GB" in way
    assert "20 slices" in way
    held = sum(td.plan.inputs.recipes.state_bytes(3_750_000_000, "mixed-adam-16", 2, 4).values())
    assert round(held / 1e9, 2) == 20.62
    assert 16 * 30 / 20 <= 24 < 16 * 30 / 19
    assert "27 micro-batches" in check_premise("fp16-postmortem").findings[3].way_out
    assert 27 / 30 >= 0.9 > 26 / 29


def test_the_sentences_can_be_read_as_text_html_and_json():
    critique = check_premise("hardware-refresh")
    assert "fails: B, pp 4 x tp 2 x dp 4, starts." in str(critique)
    assert critique._repr_html_().count("<tr>") == 4
    assert json.loads(json.dumps(critique.to_dict()))["holds"] is False
    assert "1 of 3 claims fail" in repr(critique)


PREMISE = {
    "question": "Which?", "parameters": 10**10, "memory": "40GB", "devices": 8,
    "plans": {"A": {"dp": 4, "tp": 2}},
    "claims": [{"claim": "A runs", "kind": "fits", "plan": "A"}],
}  # fmt: skip


def changed(**changes):
    return {**PREMISE, **changes}


def test_a_premise_of_ones_own(tmp_path):
    assert not check_premise(PREMISE)
    file = tmp_path / "mine.json"
    file.write_text(json.dumps(changed(plans={"A": {"dp": 4, "tp": 2, "zero": 3}})))
    assert check_premise(file)
    by_model = {k: v for k, v in PREMISE.items() if k != "parameters"} | {"model": "llama-3.1-8b"}
    assert "8.03 billion" in check_premise(by_model).findings[0].why


def one(**claim):
    return changed(claims=[{"claim": "c", **claim}])


@pytest.mark.parametrize(
    ("premise", "words"),
    [
        (changed(memory="much"), "cannot read 'much' as a size"),
        (changed(parameters=True), "key 'parameters' must be an integer of 1 or more"),
        (changed(plans={"A": {"dp": 16}}), "makes 16 devices, the premise has 8"),
        (changed(plans={"A": {"dp": 2, "zero": 4}}), "is 0, 1, 2 or 3, got 4"),
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
            "names a plan with dp 1, which sends no gradients",
        ),
    ],
)
def test_what_cannot_be_read_is_said(premise, words):
    with pytest.raises(ConfigError, match=re.escape(words)):
        check_premise(premise)


def test_zero_3_sends_half_as_much_again():
    plans = {"A": {"dp": 4}, "B": {"dp": 4, "zero": 3}}
    claim = {"claim": "c", "kind": "traffic grows", "from": "A", "to": "B", "times": 1.5}
    finding = check_premise(changed(plans=plans, claims=[claim])).findings[0]
    assert finding.verdict == HOLDS
    assert "30 GB with d = 4, 45 GB with d = 4" in finding.why


def test_a_share_out_of_reach():
    finding = check_premise(one(kind="used", stages=4, microbatches=8, share=1)).findings[0]
    assert (finding.verdict, finding.way_out) == (FAILS, "All of it is out of reach.")
    finding = check_premise(one(kind="used", stages=4, microbatches=8, share=0.5)).findings[0]
    assert (finding.verdict, finding.way_out) == (FAILS, "It is busier: 72.7%, not 50.0%.")


def test_adapters_are_left_out_and_said_to_be():
    critique = check_premise(changed(recipe="lora"))
    assert "2 B a parameter (weights 2; adapters left out)" in critique.convention
    assert critique.findings[0].why.startswith("2 B x 10 billion / 2 = 10 GB a device")
