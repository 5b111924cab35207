"""`tiledask fit` and `plan` as people type them; numbers are worked out by hand beside."""

import re

import pytest

import tiledask as td

# --- cards by their memory ----------------------------------------------------------------------


def test_a_card_is_known_by_its_memory_to_the_byte():
    for spec, size, card in (
        ("80x40GB", 40_000_000_000, "A100-40GB"),
        ("4 x 24 GB", 24_000_000_000, "A10"),
        ("2x20GB", 20_000_000_000, "A10"),  # 4 GB from it and from a T4: the first by name
        ("8x40GiB", 40 * 2**30, "A100-40GB"),
    ):
        cluster = td.load_cluster(spec)
        assert (cluster.device.memory_bytes, cluster.device.memory_mib) == (size, None)
        assert cluster.assumed == f"speed and links of {card}"
    assert td.load_cluster("8xH100").assumed == ""


def test_200_billion_parameters_do_not_fit_on_80_cards_of_40_gb(answers):
    shown, facts = answers("fit 200B 80x40GB")
    assert (shown.code, facts["verdict"]) == (1, "no")
    # 200.1e9 x 16 B = 3.202e12 B, over 80: 40.02 GB on each, of 40
    assert "3.202 TB, 40.02 GB on each" in shown.words
    assert facts["would_fit"]["devices"]["count"] >= 83  # 3.202e12 / (40e9 - 0.99e9 of context)
    assert {"--offload cpu", "--lora-rank 16"} <= facts["would_fit"].keys()


def test_every_way_out_of_no_is_a_command_whose_verdict_is_fits(typed):
    shown = typed("fit 200B 80x40GB")
    commands = re.findall(r"^ +tiledask (fit .*)", shown.out, re.MULTILINE)
    assert len(commands) == 3  # devices, --offload, --lora-rank
    assert [typed(f"{each} --json").json["verdict"] for each in commands] == ["fits"] * 3
    assert "nearest layout, --dp" in shown.words  # as it is typed
    assert "=True" not in shown.out
    # 47.5 GB of tensors and overhead leave no 0.5 GB of 48 to be wrong by
    tight = typed("fit 200B 80x48GB")
    assert (tight.code, tight.words.count("tight: it fits without all of the overhead")) == (0, 1)
    assert "tight what is counted fits" in typed("fit --help").words


# --- no layout: the best of them ----------------------------------------------------------------


def test_without_a_layout_the_best_are_shown_and_the_first_can_be_typed(answers, typed):
    shown, facts = answers("fit llama-2-7b 8xA100-80GB")
    assert (shown.code, facts["verdict"], facts["batch"]) == (0, "fits", 64)  # 8 a device
    assert "fits on 8 devices" in shown.words
    assert 2 <= len(facts["plans"]) <= 5
    degrees = [tuple(p["layout"][n] for n in ("dp", "tp", "pp", "cp")) for p in facts["plans"]]
    assert len(set(degrees)) == len(degrees)
    assert all(plan["devices"] == 8 for plan in facts["plans"])
    printed = re.search(r"the first one.*\n +tiledask (fit .*)", shown.out)[1]
    again = typed(f"{printed} --json").json
    assert again["step"]["seconds"] == pytest.approx(facts["plans"][0]["seconds"])
    assert again["step"]["mfu"] == pytest.approx(facts["step"]["mfu"])


def test_the_usual_sequence_is_no_longer_than_the_models_positions(answers):
    shown, facts = answers("fit gpt2 1xA100-40GB")
    assert (facts["sequence"], facts["batch"]) == (1024, 8)
    assert "a step of 8 sequences of 1,024 tokens" in shown.words
    assert answers("fit llama-3.2-1b 1xA100-40GB")[1]["sequence"] == 2048


@pytest.mark.slow
def test_a_number_of_devices_that_shares_out_badly_is_not_used_whole(answers):
    shown, facts = answers("fit 200B 161x40GB")  # 161 = 7 x 23
    assert (facts["verdict"], facts["devices"]) == ("fits", 160)
    assert "fits on 160 of the 161 devices" in shown.words


def test_a_batch_is_as_asked(answers):
    assert answers("fit llama-2-7b 8xA100-80GB --batch 24")[1]["batch"] == 24
    facts = answers("fit llama-2-7b 8xA100-80GB --tp 4 --batch 24")[1]
    assert (facts["layout"]["dp"], facts["layout"]["microbatches"]) == (2, 12)


# --- one layout ---------------------------------------------------------------------------------


def test_copies_fill_the_cluster_and_it_is_said(answers):
    shown, facts = answers("fit llama-3.1-8b 16xH100 --tp 2 --zero 1")
    assert facts["layout"]["dp"] == 8
    assert "dp 8 fills the cluster" in shown.words
    assert answers("fit mixtral-8x7b 24xH100 --ep 8 --zero 3")[1]["layout"]["dp"] == 24


def test_devices_left_over_are_in_the_verdict(answers):
    shown, _ = answers("fit llama-3.1-8b 64xH100 --dp 8 --zero 1")
    assert "fits on 8 of the 64 devices:" in shown.words


def test_more_devices_than_there_are_take_one_sentence(answers):
    shown, facts = answers("fit llama-2-13b 4xA100-80GB --tp 8")
    assert (shown.code, facts["verdict"]) == (1, "no")
    answer = shown.words.partition(" no: ")[2]
    assert answer.startswith("the layout needs 8 devices")
    assert answer.endswith("on 8 it fits")


def test_seconds_tokens_and_mfu_stand_with_a_verdict_and_only_with_a_yes(answers):
    shown, facts = answers("fit llama-3.1-8b 8xH100 --zero 1")
    step = facts["step"]
    assert step["tokens_per_second"] == pytest.approx(8 * 2048 / step["seconds"])
    for words in ("a step of 8 sequences of 2,048 tokens takes", "tokens/s", "MFU"):
        assert words in shown.words
    shown, facts = answers("fit llama-2-70b 8xA100-40GB --dp 8")
    assert (shown.code, "step" in facts, "tokens/s" in shown.words) == (1, False, False)


# --- assumptions --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command",
    [
        "fit 70B 64xH100 --tp 8 --pp 8 --microbatches 16",
        'fit gpt2 8xH100 --megatron "--tensor-model-parallel-size 2 --global-batch-size 64 --bf16"',
        "plan 7B 8x80GB 64 --no-sensitivity",
    ],
)
def test_one_line_of_assumptions_goes_before_an_answer(typed, command):
    lines = typed(command).out.splitlines()
    answer = r"(fits|tight|no)[: ]|[0-9,]+ layouts of"
    before = next(number for number, line in enumerate(lines) if re.match(answer, line))
    assert lines[0].startswith("assumed: ")
    assert 1 <= before <= 4  # one sentence, however it wraps
    assert " ".join(lines[:before]).count("assumed: ") == 1


def test_how_sure_and_how_often_to_save_are_explained_on_request(typed):
    command = "fit llama-3.1-8b 8xH100 --zero 1"
    shown, more = typed(command), typed(f"{command} --explain")
    for words in ("the allocator does not use", "save every", "where the"):
        assert words not in shown.words
        assert words in more.words


# --- what is held -------------------------------------------------------------------------------


def test_stages_that_are_left_out_are_named(typed):
    shown = typed("fit 70B 64xH100 --dp 1 --tp 4 --pp 16 --batch 64")
    (gap,) = [line for line in shown.out.splitlines() if "..." in line]
    assert gap.startswith("1 to 14")
    table = shown.out.partition("stage  ")[2].partition("\n\n")[0]
    assert max(map(len, table.splitlines())) <= 80


# --- what does not fit: a way out that is worth taking ----------------------------------------

LARGE = [
    "fit gpt-200b 160xA100-40GB --dp 160 --zero 1",
    "fit llama-3.1-405b 1024xH100 --dp 128 --tp 8 --zero 1",
]


@pytest.mark.parametrize("command", LARGE)
def test_a_no_with_sharded_states_on_many_devices_is_answered(answers, command):
    shown, facts = answers(command)
    assert shown.code == 1
    assert "smallest fix: " in shown.words
    assert " -> " in facts["smallest_fix"]
    assert "must be at most" not in shown.err + str(facts)


def test_a_fix_keeps_the_batch_and_the_copies_work(answers):
    """200 B x 16 B / 8 / 40 GB: ten stages of 8 by states alone; one copy on 160, not two, so the
    batch of 160 becomes 160 micro-batches of one."""
    _, facts = answers("fit gpt-200b 160xA100-40GB --dp 160")
    fix = facts["smallest_fix"]
    assert "dp 160 -> 1" in fix
    assert "microbatches 1 -> 160" in fix
    assert "global batch" not in fix
    slower = float(fix.partition("takes ")[2].split()[0])
    assert slower < 2  # one sequence at a time took 13 times as long


LLAMA = (
    "--tp 8 --pp 16 --interleave 7 --sequence 8192 --sequence-parallel --flash-attention "
    "--zero 1 --partition items --microbatches 16 --recipe mixed-adam-18"
)


def test_a_published_run_that_the_ledger_refuses_is_no_contradiction(answers):
    """16 x 8 x 128 = 16,384 H100: Meta's layout, which ran."""
    question = f"fit llama-3.1-405b 16384xH100 --dp 128 {LLAMA}"
    shown, facts = answers(f"{question} --framework llama-3")
    assert facts["verdict"] == "no"
    assert any("runs by llama-3 had room" in note for note in facts["notes"])
    assert "runs by llama-3 had room" in shown.words
    assert not answers(f"{question} --framework megatron-2025")[1]["notes"]


@pytest.mark.parametrize(
    ("card", "program"),
    [("V100-32GB", "megatron-2021"), ("A100-40GB", "megatron-2021"), ("H100", "megatron-2025")],
)
def test_a_card_is_planned_by_a_program_of_its_years(answers, card, program):
    """V100: 2017, A100: 2020, H100: 2022."""
    shown, facts = answers(f"fit gpt2 1x{card}")
    assert facts["framework"] == program
    assert f"run by {program} (the default for {card.removesuffix('-32GB')})" in shown.words


@pytest.mark.parametrize(
    ("command", "asked", "there"),
    [("fit 70B 4xA100-80GB --tp 8", 8, 4), ("fit 7B 2xA100-80GB --dp 4", 4, 2)],
)
def test_too_few_devices_are_said_beside_too_little_memory(typed, command, asked, there):
    shown = typed(command)
    assert shown.code == 1
    assert f"the layout needs {asked} devices" in shown.words
    assert f"the cluster has {there}, and even so the fullest device" in shown.words
    assert "smallest fix: " in shown.words


# --- words and units ----------------------------------------------------------------------------


@pytest.mark.parametrize("typed_as", ["3B", "'3 B'", "3e9", "3b", "0.003T"])
def test_sizes_of_models_read_alike(answers, typed_as):
    facts = answers(f"fit {typed_as} 8xH100 --zero 1")[1]
    assert facts["model"]["source"].partition(" parameters,")[0].endswith("2,999,602,176")


# --- plan ---------------------------------------------------------------------------------------


def test_the_fewest_devices(answers, typed):
    shown, facts = answers("plan llama-2-13b 1x40GB --fewest")
    # 13.016e9 x 16 B = 208.3 GB of states; 40 GB less 7.5 or, with ZeRO-3, 5.5 of overhead leave
    # 34.5 at most: 6.04 devices
    assert (shown.code, facts["devices"], facts["verdict"]) == (0, 7, "fits")
    assert answers("plan llama-2-13b 64x40GB --fewest")[1]["layout"] == facts["layout"]
    printed = re.search(r"that is: tiledask (fit .*)", shown.out)[1]
    again = typed(f"{printed} --json").json
    assert (again["verdict"], again["expected"]) == ("fits", facts["expected"])
    assert typed("fit llama-2-13b 6x40GB --json").json["verdict"] != "fits"


def test_ranked_layouts_have_mfu_and_stay_a_table_when_piped(typed):
    shown = typed("plan gpt-200b 160xA100-40GB 160 --no-sensitivity --first 3")
    table = shown.out.partition("fastest first")[2].partition("\n\n")[0].splitlines()
    assert table[1].split()[-2:] == ["tokens/s", "MFU"]
    assert [line.split()[0] for line in table[2:]] == ["1", "2", "3"]
    assert "by its program" not in shown.out


def test_a_table_too_wide_for_a_pipe_says_what_it_leaves_out(typed):
    shown = typed("fit deepseek-v3 1024xH100")
    table = shown.out.partition("the fastest of each")[2].partition("\n\n")[0].splitlines()
    rows = [line for line in table if re.match(r"[1-5]  ", line)]
    assert len(rows) >= 3
    assert "not shown: " in table[0]
    assert all(line.endswith(" %") and len(line) <= 80 for line in rows)


def test_fit_and_plan_have_one_answer(answers):
    best = answers("fit llama-2-7b 8xA100-80GB --batch 64")[1]["plans"][0]
    first = answers("plan llama-2-7b 8xA100-80GB 64 --no-sensitivity")[1]["plans"][0]
    assert (best["layout"], best["peak"]) == (first["layout"], first["peak"])
    assert best["seconds"] == pytest.approx(first["seconds"])
