"""What NVIDIA runs against what is found: never faster, seldom slower, and people could run it."""

import pytest

from tiledask.lab.accuracy.searched import compare_search, searched, workloads

CASES = workloads()


def test_of_one_workload_the_layout_that_was_measured_fastest_is_theirs():
    assert "dgxc-nemotron15b-tp2-bf16-64" in CASES
    assert "dgxc-nemotron15b-tp4-bf16-64" not in CASES
    assert len(CASES) > 40


@pytest.mark.parametrize(
    "name",
    [
        "dgxc-llama8b-bf16-8",
        pytest.param("dgxc-llama405b-bf16-1024", marks=pytest.mark.slow),
        "dgxc-gpt175b-bf16-128",
        "dgxc-nemotron15b-tp2-bf16-16",
        "dgxc-nemotron15b-tp2-bf16-64",
        "dgxc-nemotron340b-2409-bf16-512",
        "dgxc-grok1-64l-bf16-512",
    ],
)
def test_theirs_is_in_the_space_and_within_5_percent_of_the_best_that_people_run(name):
    run = CASES[name].run
    theirs, best = compare_search(CASES[name])
    assert theirs.layout == run.layout
    assert theirs.verdict != "no"
    assert theirs.seconds == run.step().total
    assert best.seconds <= theirs.seconds <= 1.05 * best.seconds
    assert best.layout.pp == 1 or best.layout.zero < 2


@pytest.mark.slow
def test_no_published_layout_is_faster_than_the_best_found():
    judged, others = searched()
    assert judged.met
    assert len(judged.rows) >= 20
    for row in (*judged.rows, *others.rows):
        assert row.error >= 0, row.case
    assert judged.remark.count("its memory is refused") < 6
