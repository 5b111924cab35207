"""`tiledask matmul` as it is typed from its help alone; every number is worked out in a comment."""

import pytest


@pytest.mark.parametrize(
    ("asked", "moved", "to_one"),
    [
        # a worker of 2 x 2 lacks one block of A and one of B, 2048 x 2048 x 4 bytes each
        ("4096", 4 * 33_554_432, 33_554_432),
        ("4096 --algorithm cannon", 4 * 33_554_432, 33_554_432),
        ("4096 --dtype float16", 4 * 16_777_216, 16_777_216),
        # A is 2048 x 4096, B 4096 x 1024: a block of 8 MiB and one of 4 MiB
        ("2048x4096 4096x1024 --algorithm cannon --workers 4", 4 * 12_582_912, 12_582_912),
        # 2 x 3: two blocks of A of 300 x 200, and one of B, 300 x 200 too
        ("600 --workers 6", 6 * 3 * 240_000, 3 * 240_000),
        # in one row nobody needs another's columns of B: two blocks of A, 600 x 200
        ("600 --workers 3", 3 * 2 * 480_000, 2 * 480_000),
        # 8 x 8: 7 blocks each of A and B, 8192 x 8192 x 4 bytes
        ("65536 --workers 64", 64 * 14 * 2**28, 14 * 2**28),
        ("600 --workers 1", 0, 0),
    ],
)
def test_bytes_of_a_product_without_a_run(answers, asked, moved, to_one):
    shown, facts = answers(f"matmul {asked} --no-run")
    assert shown.code == 0
    assert (facts["predicted"]["total"], facts["predicted"]["received"]) == (moved, to_one)
    assert all(len(line) <= 80 for line in shown.out.splitlines())


def test_it_says_where_the_operands_begin_and_what_is_counted(answers):
    shown, facts = answers("matmul 4096 --algorithm 2.5d --no-run")
    assert "begin in 2 x 2 blocks, one of each on every worker" in shown.words
    assert "Counted: bytes between workers, once, where they arrive" in shown.words
    # half of A and of B has to be on two more workers than before, and C's halves are summed:
    # no less than 167.8 MB
    assert facts["predicted"]["total"] >= 167_772_160
    # 2 x 1 x 2 keeps the rows: three blocks of 16.78 MB to each
    assert "201.3 MB move between workers" in shown.words
    least = answers("ask 7 --set m=4096 n=4096 k=4096 --no-run")[0].words
    assert "201.3 MB received from 2 x 2 blocks without copies" in least


def test_the_chosen_algorithm_is_the_one_asked_for(answers):
    shown, facts = answers("matmul 2048 --algorithm cannon --no-run")
    assert facts["explain"]["chosen"] == facts["algorithm"] == "cannon"
    assert "inf s" not in str(facts)
    assert "as fast" not in str(facts)
    assert "local refused: it moves nothing: it takes A cut by rows alone" in shown.words


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("asked", "moved"),
    [
        # one block of A, 128 x 256, and one of B, 256 x 64, to each of four
        ("256x512 512x128 --algorithm cannon --workers 4", 4 * 4 * (128 * 256 + 256 * 64)),
    ],
)
def test_a_run_is_counted_beside_its_prediction(typed, asked, moved):
    facts = typed(f"matmul {asked} --device cpu --json").json
    assert facts["ok"]
    row = next(row for row in facts["rows"] if row["quantity"] == "bytes between workers")
    assert row["measured"] == row["simulated"] == moved
    assert "begin in" in facts["begins"]
