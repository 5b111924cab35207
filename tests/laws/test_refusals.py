"""Counts that are no whole number, and absurd sizes and words: refused at once, in a message that a
person can read, by an error of ours."""

import re
from functools import partial

import numpy as np
import pytest

import tiledask as td
from tiledask.cli import main
from tiledask.plan.units import parse_bytes
from tiledask.plan.whole import is_whole, whole_number

DIGITS = "9" * 5000
LONG = "x" * 9999
READABLE = 1500
"""Characters: the names of all models that there are take a thousand."""

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


# -- what is absurd --------------------------------------------------------------------------------

WORDS = [
    *(partial(parse_bytes, x) for x in ("1e400", float("inf"), DIGITS, LONG)),
    lambda: td.schedule(LONG, 4, 4),
    *(partial(td.Schedule.from_text, x) for x in ("99999999F0", f"{DIGITS}F0", LONG)),
    lambda: td.Schedule.from_text(f"@{DIGITS}; 0F0"),
    lambda: td.simulate(td.schedule("1f1b", 4, 8), forward=LONG),
    lambda: td.simulate(td.schedule("1f1b", 4, 8), latency=[LONG]),
    lambda: td.partition(range(5_000_000), 4),
    lambda: td.partition(24, 4, speeds=LONG),
    lambda: td.partition([LONG], 1),
    lambda: td.judge(LONG, layers=4, devices=2),
    lambda: td.judge(f"1-{DIGITS}", layers=4, devices=2),
    lambda: td.Layout(recompute=LONG),
    lambda: td.Layout(partition=LONG),
    lambda: td.fits(*RUN, recipe=LONG),
    lambda: td.fits(*RUN, overhead=LONG),
    lambda: td.search(LONG, "8xH100", 64),
    lambda: td.search("gpt2", LONG, 64),
    lambda: td.search("gpt2", f"{DIGITS}xH100", 64),
    lambda: td.sensitivity("gpt2", "8xH100", 64, times=LONG),
    lambda: td.load_model(f"x/{LONG}"),
]


def test_absurd_calls_are_refused_in_few_words():
    for call in WORDS:
        with pytest.raises(ValueError, match=r"\w") as refused:
            call()
        assert type(refused.value).__module__ == "tiledask.errors", refused.value
        assert len(str(refused.value)) < READABLE


TYPED = """
    plan gpt2 8xH100 64 --devices inf | plan gpt2 8xH100 64 --devices nan | plan gpt2 8xH100 DIGITS
    fit gpt2 8xH100 --dp 100000000000000000000000000 | fit gpt2 8xH100 --dp DIGITS
    fit gpt2 8xH100 --recompute LONG | partition 5000000 4 | partition DIGITS 4
    partition 24 4 --speeds 1e400 | partition 24 4 --judge DIGITS
    idle 1f1b 1000000000 4 | idle DIGITS 4 4 | idle 1f1b 4 8 --forward LONG
    idle --diagnose LONG | idle --diagnose no.csv --layers 5000000
    matmul DIGITS | matmul 64 --kernel LONG | matmul 64 --workers DIGITS | ask LONG
    puzzle DIGITS | puzzle idle-DIGITS | puzzle idle-3 --seed DIGITS
    puzzle idle-3 --answer DIGITS --figure no.doc | tour --device LONG | LONG
"""


@pytest.mark.parametrize("typed", [each.strip() for each in re.split(r"[|\n]", TYPED.strip())])
def test_commands_are_refused_in_few_words(capsys, monkeypatch, typed):
    monkeypatch.setattr(td, "start_cluster", lambda **_: pytest.fail("workers were started"))
    words = [w.replace("DIGITS", DIGITS).replace("LONG", LONG) for w in typed.split()]
    try:
        code = main(words)
    except SystemExit as ended:  # argparse's own
        code = ended.code
    said = capsys.readouterr()
    assert code == 2
    assert not said.out or "--judge" in typed  # the best split stands before the verdict
    assert len(said.err) < READABLE
    assert not re.search(r"Exceeds the limit|invalid literal|cannot convert", said.err)
