"""What does not fit gets an answer, a way out that is worth taking, and no impossible input."""

import pytest

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
