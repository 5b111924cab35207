"""Questions as people ask them: by number, in words, with inputs as they are typed.

Right values are worked out in the comments beside them.
"""

import re
from fractions import Fraction

import pytest
from test_one_voice import same

import tiledask as td
from tiledask.lab.course.table import QUESTIONS

CONTEXT = 987_842_478  # 0.92 GiB of a CUDA context, in bytes


def asked(answers, words):
    return answers(f"ask {words} --no-run")


# -- one page, one convention ----------------------------------------------------------------------


def test_200_billion_on_40_gb_says_80_and_83_and_why(answers):
    shown, facts = asked(answers, "14")
    # 200e9 x 16 B = 3200 GB; / 40 = 80. Beside a context 3200 / (40 - 0.988) = 82.03 -> 83
    assert facts["values"]["fewest"]["mixed-adam-16"] == 80
    assert -(-3_200_000_000_000 // (40_000_000_000 - CONTEXT)) == 83
    assert facts["values"]["fewest_with_context"] == 83
    assert "80 GPUs (83 with a CUDA context on each)" in facts["answer"]
    assert shown.words.count("no CUDA context, no activations") == 1
    assert not re.search(r"\b(fails|holds): ", shown.out)
    assert "40 GB a GPU, filled to the last byte" in shown.words


# -- a yes or no is exact --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stages", "microbatches", "reaches"),
    # m / (m + p - 1) >= 9/10 is m >= 9 (p - 1): 27 for 4 stages, 63 for 8
    [(4, 24, False), (4, 25, False), (4, 26, False), (4, 27, True), (8, 62, False), (8, 63, True)],
)
def test_ninety_percent_is_ninety_percent(answers, stages, microbatches, reaches):
    shown, facts = asked(answers, f"21 --set stages={stages} microbatches={microbatches}")
    share = Fraction(microbatches, microbatches + stages - 1)
    assert (share >= Fraction(9, 10)) == reaches
    assert f"m = {microbatches} {'reaches' if reaches else 'does not reach'} it" in shown.words
    assert facts["values"]["enough"] == 9 * (stages - 1)
    assert ("for 90 % busy" in facts["answer"]) == (not reaches)


# -- worked out by hand ----------------------------------------------------------------------------

WORKED = [
    # shares that do not divide
    ("5 --set d_h=10", {}, "2 or 3 of 10 columns"),
    ("28 --set images=250 devices=3", {}, "83 or 84 of 250 images"),
    ("27 --set channels=10", {}, "2 or 3 channels each"),
    ("29 --set layers=13", {}, "3 or 4 of 13 layers"),
    ("30 --set workers=3", {}, "1 or 2 of 4 heads and 21 or 22 of 64"),
    ("1 --set m=1000 n=1000 k=1000 workers=3 tile=100", {}, "333 or 334 columns"),
    # 3 workers of 1000 x 333 or 334, tiles of 100: A 4 times, B 10 times, 4 B a number:
    # 3 x 16e6 + (334 + 333 + 333) x 40e3 = 88e6 B; 2e9 FLOP / 88e6 B = 22.73, a full tile 25
    (
        "1 --set m=1000 n=1000 k=1000 workers=3 tile=100",
        {"loaded": 88_000_000, "intensity in all": 2e9 / 88e6},
        "88 MB, 22.73 FLOP a byte (a full tile 25)",
    ),
    # blocks of 64 x 32: A of 16,384 B and B of 8,192 B on each of 2: 2 x 64^3 / 49,152 = 10.67
    ("6", {"tile that allows all": None}, "a block as one tile gives 10.67 of the 13.96"),
    # blocks of 4096 x 2048: T = 56 loads A 37 times and B 74 times, 4 x 4096^2 x (74 + 74) B in
    # all: 2 x 4096 / (4 x 148) = 13.84; T = 57 loads them 36 and 72 times, 8192 / (4 x 144) = 14.2
    ("6 --set size=4096", {"tile that allows all": 57}, ""),
    ("7 --set m=4096 n=4096 k=4096 memory=80GB", {}, "1 x 2 x 2, 2.5-D: 134.2 MB"),
    ("10 --set memory=1MB", {}, "No plan fits"),
    ("8 --set kernel=smem_tiled tuned_on=A100-80GB", {}, "16 x 16 x 16 is the best tile on both"),
    # 480 GB: / 40 = 12; / (40 - 0.988) = 12.3
    ("15", {"fewest_slices": 12}, "(13 with a CUDA context on each)"),
    # gradients as the recipe keeps them: 7e9 x 4 B and x 2 B
    ("15 --set billions=7 memory=24GB recipe=fp32-sgd", {}, "in every step: 2 (N-1)/N x 28 GB"),
    # 30e9 / 8 = 3.75e9 a GPU: x 16; x (4 + 12/4); x (2 + 14/4); x 16/4
    ("24", {"states": [60e9, 26.25e9, 20.625e9, 15e9], "lowest_zero": 2}, "not start either"),
    ("24 --set memory=60GB", {"lowest_zero": 0}, ""),  # to the last byte
    ("13 --set parameters=1.5e9", {"fits on one": True}, ""),  # 16 x 1.5 = 24 GB of 24
    ("14 --set billions=2.5", {"copies_fit": True}, "its states fit"),  # 40 GB of 40
    # 7e9 / 32 = 0.21875e9 a GPU: x 16; x (4 + 12/8); x (2 + 14/8); x 16/8
    (
        "24 --set billions=7 dp=8 tp=4 pp=8",
        {"states": [3.5e9, 1.203125e9, 0.8203125e9, 0.4375e9], "lowest_zero": 0},
        "",
    ),
    ("24 --set billions=200", {"states": [400e9, 175e9, 137.5e9, 100e9], "lowest_zero": None}, ""),
    # 40 GB / 4 B = 10 billion; 40 / (4/4 + 12/8) = 16; 40 / (16/8) = 20
    ("21", {}, "with ZeRO-1 for 10 to 16 billion parameters, up to 20 with ZeRO-3"),
    # 70e9 x 16 B / 8 = 140 GB; 1120 / 80 = 14; 1120 / 79.01 = 14.2 -> 15
    ("18", {"states_each": 140e9}, "14 GPUs (15 with a CUDA context on each)"),
    ("23 --set billions=2 memory_b=24GB link_a=200Gb/s", {}, "it trains"),  # 32 GB of 80
    # 2 x 7/8 x 2 B x 30e9 / 4 = 26.25 GB; 2 x 15/16 x 2 x 7.5 = 28.125 GB; 120 GB of 80
    ("22", {"ring_bytes": [26.25e9, 28.125e9]}, "as described it does not start"),
    # 2 x 64 x 3 x 2 rows x 2048 x 7168 x 2 B / 2 = 11.27 GB; without the 3 3.758 GB
    ("20 --set nodes=2 billions=30", {}, "pp: 11.27 GB sent a step"),
    ("3 --set weights=24GB", {}, "4 GPUs or more (5 with a CUDA context on each)"),
    ("13", {}, "48 GB / (24 GB - 0.99 GB) -> 3 GPUs"),  # 48 / 23.01 = 2.09
    # sqrt(3 x 0.72 / 0.03) = 8.49: 11 x 0.12 = 1.32 s, and 12 x 0.11 = 1.32 s
    ("12", {"best microbatches": 8}, "8 (or 9, which takes as long)"),
    ("'idle 4 stages with 8 micro-batches under GPipe'", {}, "gpipe keeps the activations of 8"),
    ("34 --set layers=126 devices=16", {"sizes": [8] * 14 + [7] * 2, "crossings": 15}, ""),
    # (p - 1) / m = 2/3 and a quarter of it, with 4 chunks
    ("36", {"bubble 1F1B": 2 / 3, "bubble interleaved": 1 / 6}, "False: 1,4,7,10 | 2,5,8,11 | 3,"),
    # 96 x (0.1 + 0.2) = 28.8 s; 28.8 - 0.3; 95 x 28.8
    ("33 --set workers=96 forward=100ms", {"makespan": 28.8, "idle of each": 28.5}, ""),
    ("33 --set workers=96 forward=100ms", {"total idle": 2736.0, "efficiency": 1 / 96}, ""),
    # 6 + 12 + 2 x 0.2 = 18.4; 3 x 18.4 - 18 = 37.2; 18 / 55.2
    (
        "39 --set forward=1,2,3,transfer=0.1,backward=2,4,6",
        {"makespan": 18.4, "total idle": 37.2, "efficiency": 18 / 55.2},
        "",
    ),
    ("32 --set blocks=7", {"slots": 14, "utilisation": 1 / 7, "makespan": 1.4}, ""),
    # 1.2 + 2 x 0.1 s, and 6 x 1.2 - 1.2 idle
    ("38 --set before=3 after=6 compute=1.2s transfer=0.1", {}, "(1.4 and 1.7 s with transfers of"),
]


@pytest.mark.parametrize(("words", "values", "said"), WORKED)
def test_an_answer_has_its_values(answers, words, values, said):
    shown, facts = asked(answers, words)
    for name, right in values.items():
        assert same(facts["values"][name], right, 1e-9), name
    assert said in shown.words


def test_what_is_too_large_to_run_is_worked_out_and_says_so(typed):
    assert "a run takes d up to 4096" in typed("ask 5 --set d=16384 d_h=65536").words


# -- in words --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "number", "inputs"),
    [
        ("24 layers on 4 devices", 34, {"layers": 24, "devices": 4}),
        ('"does 200B fit on 40GB GPUs"', 14, {"billions": 200, "memory": 40e9}),
        ("70B on 80x40GB", 14, {"billions": 70, "devices": 80, "memory": 40e9}),
        ("idle time of 4 workers", 33, {"workers": 4}),
        ('"12 layers on 3 devices, round robin"', 36, {"layers": 12, "devices": 3}),
        ("from 2 to 8 workers", 38, {"before": 2, "after": 8}),
        ("pipeline bubble", 12, {}),
        ("can I train 13B on 8 24GB GPUs", 18, {"billions": 13, "devices": 8, "memory": 24e9}),
        ("does 200B fit on 80 40GB GPUs", 14, {"billions": 200, "devices": 80, "memory": 40e9}),
        ("FFN d=4096 d_h=16384 over 8 GPUs", 5, {"d": 4096, "d_h": 16384, "devices": 8}),
        ("12 layers on 3 GPUs what do GPU 1 and 3 do while GPU 2 computes", 35, {"working": 2}),
        ("8 layers on 4 workers while worker 2 computes", 31, {"working": 2}),
        ("4 stages 8 micro-batches idle share", 12, {"stages": 4, "microbatches": 8}),
        ("what does ZeRO-3 save", 24, {}),
        ("all-reduce bytes of LeNet on 4 GPUs", 28, {"devices": 4}),
        ("24 layers round robin on 4 devices", 36, {"layers": 24, "devices": 4}),
    ],
)
def test_words_find_their_question(answers, words, number, inputs):
    shown, facts = asked(answers, words)
    assert facts["number"] == number
    assert {name: facts["inputs"][name] for name in inputs} == inputs
    assert shown.out.startswith(f"Question {number}")
    assert "Next nearest: " in shown.words


def test_what_is_typed_goes_before_the_words_numbers():
    found = td.ask("24 layers on 4 devices", layers=12, run=False)
    assert found.values["sizes"] == [3, 3, 3, 3]


def test_a_number_that_sets_nothing_is_said(typed):
    assert "(not used: 99)" in typed("ask idle time of 4 workers 99 --no-run").words


def test_words_that_no_question_has(typed):
    ran = typed("ask pizza for breakfast")
    assert (ran.code, ran.out) == (2, "")
    assert len(re.findall(r"(?:are|;) \d+, [A-Z]", ran.err)) == 3
    assert re.search(r": tiledask ask \d+, tiledask ask \d+, tiledask ask \d+$", ran.err.strip())


# -- how it is shown -------------------------------------------------------------------------------


def test_all_questions_are_listed_at_80_columns(answers):
    shown, facts = answers("ask")
    assert max(map(len, shown.out.splitlines())) <= 80
    numbers = [str(n) for n in range(1, len(facts["questions"]) + 1)]
    assert re.findall(r"^ *(\d+)  ", shown.out, re.MULTILINE) == numbers
    assert list(facts["questions"]) == numbers


@pytest.mark.parametrize("number", [11, 12, 14, 15, 18, 21, 24, 31, 32, 33, 34, 35, 36, 37, 38, 39])
def test_the_answer_comes_first_and_the_page_is_short(typed, number):
    out = typed(f"ask {number} --no-run").out
    assert out.index("\nAnswer\n") < out.index("\nWorking\n") < out.index("\nInputs: ")
    assert max(map(len, out.splitlines())) <= 80
    assert len(out.splitlines()) <= 45
    more = typed(f"ask {number} --no-run --explain").out
    assert "\nTaught in\n" in more
    assert all(f"  {name}=" in more for name in QUESTIONS[number].inputs)
