"""`tiledask plan` as people type it; the numbers are worked out by hand beside them."""

import re

import pytest


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


def test_a_batch_that_nobody_gave_is_said(answers):
    shown, facts = answers("plan gpt2 2xA100-40GB --no-sensitivity --first 2")
    assert facts["assumptions"][-1] == "a step of 16 sequences of 1,024 tokens"
    first = facts["plans"][0]["layout"]
    assert first["dp"] * first["microbatch"] * first["microbatches"] == 16
    assert "a step of 16 sequences of 1,024 tokens" in shown.words


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
