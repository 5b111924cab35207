"""Counts that are no whole number: refused at once, in words that show what was given."""

import re

import numpy as np
import pytest

import tiledask as td
from tiledask.plan.whole import is_whole, whole_number

MODEL, CLUSTER = td.load_model("gpt2"), td.load_cluster("2xA100-40GB")
GPT = {"vocabulary": 8, "hidden": 8, "layers": 2, "heads": 2, "sequence": 8}
TEXT = td.load_text("tales")
SIZES = {"hidden": 8, "layers": 2, "heads": 2, "ffn": 8, "vocab": 8}
RUN = (MODEL, td.Layout(dp=2), CLUSTER)


def gpt(**changed):
    return td.GPT(**{**GPT, "vocabulary": TEXT.vocabulary, **changed})


def train(ranks=(1, 1, 1), **changed):
    return td.train(gpt(), TEXT, ranks, **{"steps": 2, "batch": 2, "progress": False, **changed})


COUNTS = {
    "Layout dp": lambda n: td.Layout(dp=n),
    "Layout microbatches": lambda n: td.Layout(microbatches=n),
    "Layout zero": lambda n: td.Layout(zero=n),
    "Layout partition": lambda n: td.Layout(pp=2, partition=(0, n, 12)),
    "Model hidden": lambda n: td.Model(**{**SIZES, "hidden": n}),
    "Model layers": lambda n: td.Model(**{**SIZES, "layers": n}),
    "estimate_memory": lambda n: td.estimate_memory(MODEL, td.Layout(), sequence=n),
    "estimate_step": lambda n: td.estimate_step(*RUN, sequence=n),
    "fits sequence": lambda n: td.fits(*RUN, sequence=n),
    "fits overhead": lambda n: td.fits(*RUN, overhead=n),
    "search batch": lambda n: td.search(MODEL, CLUSTER, n),
    "search sequence": lambda n: td.search(MODEL, CLUSTER, 2, sequence=n),
    "search devices": lambda n: td.search(MODEL, CLUSTER, 2, devices=n),
    "partition layers": lambda n: td.partition(n, 1),
    "partition stages": lambda n: td.partition(4, n),
    "lora": lambda n: td.lora(rank=n),
    "partition chunks": lambda n: td.partition(4, 2, chunks=n),
    "judge devices": lambda n: td.judge([0, 0, 1, 1], devices=n),
    "judge a layer": lambda n: td.judge([[1], [n]], costs=[1, 1]),
    "schedule stages": lambda n: td.schedule("1f1b", n, 4),
    "schedule microbatches": lambda n: td.schedule("1f1b", 2, n),
    "schedule devices": lambda n: td.schedule("interleaved", 4, 4, devices=n),
    "simulate": lambda n: td.simulate(td.schedule("gpipe", 2, n)),
    "tile.traffic extent": lambda n: td.tile.traffic(n, 8, 8, 4, 8),
    "tile.traffic tile": lambda n: td.tile.traffic(8, 8, 8, n, 8),
    "Shard": td.Shard,
    "GPT layers": lambda n: gpt(layers=n),
    "GPT kv_heads": lambda n: gpt(kv_heads=n),
    "training_program": lambda n: td.training_program(gpt(), (1, 1, 1), batch=n),
    "train ranks": lambda n: train((n, 1, 1)),
    "train steps": lambda n: train(steps=n),
    "train batch": lambda n: train(batch=n),
    "train zero": lambda n: train(steps=0, zero=n),
    "train cut": lambda n: train(steps=0, cut=(n,)),
    "start_cluster workers": lambda n: td.start_cluster(workers=n, device="cpu"),
    "idle_level seed": lambda n: td.tasks.idle_level(1, seed=n),
}
"""What a public call counts, as a function of the count."""

BAD = {"True": True, "2.5": 2.5, "text": "4", "-1": -1}
NEGATIVE = {"Shard", "judge a layer"}
"""One counts from the last; the judge says itself what is wrong."""


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("name", COUNTS)
def test_what_is_no_whole_number_is_refused_in_words_that_show_it(name, bad):
    if bad == "-1" and name in NEGATIVE:
        return
    value = BAD[bad]
    with pytest.raises((ValueError, td.errors.RuleError)) as found:
        COUNTS[name](value)
    said = str(found.value)
    assert re.search(rf"(?<![\w.]){re.escape(repr(value))}(?!\w)|{bad!r}", said), said


def test_the_rule_the_value_and_a_way_out():
    for value, least, most, said in (
        (-1, 0, None, "n must be a whole number of 0 or more, got -1"),
        (5, 0, 4, "n must be at most 4, got 5"),
        (2.0, 1, None, "n must be a whole number of 1 or more, got 2.0; write 2"),
        ("4", None, None, "n must be a whole number, got '4'; write 4"),
        (float("inf"), 0, None, "n must be a whole number of 0 or more, got inf"),
        (np.array([3]), 0, None, "n must be a whole number of 0 or more, got array([3])"),
        (np.True_, None, None, "n must be a whole number, got np.True_"),
    ):
        with pytest.raises(td.errors.ConfigError) as found:
            whole_number("n", value, least, most)
        assert str(found.value) == said
    for right in (3, np.uint8(3), np.array(3)):
        assert type(whole_number("n", right, 3, 3)) is int
        assert is_whole(right, 3, 3)
