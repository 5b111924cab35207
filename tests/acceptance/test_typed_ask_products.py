"""Questions 1 to 10, 13 and 26 to 30 as people type them; numbers worked out by hand."""

import pytest

import tiledask as td


def asked(answers, command):
    shown, facts = answers(f"ask {command} --no-run")
    assert shown.code == 0, shown.err
    return shown.words, facts["values"], facts


# -- shares that do not divide ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "right", "wrong"),
    [
        ("5 --set d_h=10", "2 or 3 of 10 columns", "has 3 of 10"),
        ("28 --set images=250 devices=3", "83 or 84 of 250 images", "computes 84 of"),
        ("1 --set m=1000 n=1000 k=1000 workers=3 tile=100", "333 or 334 columns", "1000 x 334,"),
        ("27 --set channels=10", "2 or 3 channels each", "16 channels each"),
        ("29 --set layers=13", "3 or 4 of 13 layers", "holds 4 of 13"),
        ("30 --set workers=3", "1 or 2 of 4 heads and 21 or 22 of 64", "about 1/3"),
    ],
)
def test_what_each_has_of_uneven_shares(answers, command, right, wrong):
    words, _, _ = asked(answers, command)
    assert right in words
    assert wrong not in words


# -- bytes, and the ratio beside them --------------------------------------------------------------


def test_flop_a_byte_is_that_of_the_bytes_beside_it(answers):
    # 3 workers of 1000 x 333 or 334, tiles of 100: A 4 times, B 10 times, 4 B a number:
    # 3 x 16e6 + (334 + 333 + 333) x 40e3 = 88e6 B; 2e9 FLOP / 88e6 B = 22.73, a full tile 25
    words, values, _ = asked(answers, "1 --set m=1000 n=1000 k=1000 workers=3 tile=100")
    assert values["loaded"] == 88_000_000
    assert values["intensity in all"] == pytest.approx(2e9 / 88e6)
    assert "88 MB, 22.73 FLOP a byte (a full tile 25)" in words
    # and on a device: the FLOP of 4096 x 4096 x 64 over each level's bytes as they are shown
    levels = td.tile.levels_of(4096, 4096, 64, "wgmma_ws_persistent", "H100")
    for level in levels.levels:
        assert level.intensity == pytest.approx(2 * 4096**2 * 64 / level.moved)
    # A and B once, 2 x 4096 x 64 x 2 B; C once, 4096^2 x 2 B: 34.6 MB, 62.06 FLOP a byte
    assert levels["DRAM -> L2"].moved == 2 * 4096 * 64 * 2 + 4096**2 * 2
    assert "62.06" in repr(levels)
    assert "2048  " not in repr(levels)


def test_no_tile_is_promised_that_the_blocks_do_not_reach(answers):
    # blocks of 64 x 32: A of 16,384 B and B of 8,192 B on each of 2: 2 x 64^3 / 49,152 = 10.67
    words, values, _ = asked(answers, "6")
    assert "no tile: a block as one tile gives 10.67 of the 13.96" in words
    assert values["tile that allows all"] is None
    # blocks of 4096 x 2048: T = 56 loads A 37 times and B 74 times, 4 x 4096^2 x (74 + 74) B in
    # all: 2 x 4096 / (4 x 148) = 13.84; T = 57 loads them 36 and 72 times, 8192 / (4 x 144) = 14.2
    _, values, _ = asked(answers, "6 --set size=4096")
    assert values["tile that allows all"] == 57


@pytest.mark.parametrize("workers", [3, 4])
def test_tiles_load_what_the_workers_blocks_make_them_load(answers, workers):
    """Columns of B are shared out: a tile of 32 in a block of 16 columns loads A for 16 alone."""
    _, values, _ = asked(answers, f"6 --set workers={workers}")
    columns = [64 // workers + (i < 64 % workers) for i in range(workers)]
    # A, 64 x 64, once for each 32 columns begun; the block's columns of B once for 32 rows of C
    assert values["loaded"][-1] == sum(4 * (64 * 64 * -(-n // 32) + 64 * n * 2) for n in columns)


# -- one name, one number --------------------------------------------------------------------------


def test_the_same_product_has_the_same_bytes_however_it_is_asked(answers):
    # 2 x 2 blocks of 4096^2 float32: 4 B x (4096^2 + 4096^2) = 134,217,728 received;
    # held: blocks of 2048^2 of A, B and C, two panels of 512 x 2048 of A and of B
    block = 4 * 2048**2
    held = 3 * block + 2 * 2 * 4 * 512 * 2048
    runtime = 8 * 2**20 + held // 50
    words, values, _ = asked(answers, "7 --set m=4096 n=4096 k=4096 memory=80GB")
    assert values["moved"]["2x2x1"] == 134_217_728
    assert values["held"]["2x2x1"] == held + runtime
    assert "A and B lie in p x q blocks, a copy on each of the r layers" in words
    assert "1 x 2 x 2, 2.5-D: 134.2 MB" in words
    assert "runtime (8 MiB + 2 %)" in words
    _, one, _ = asked(answers, "1 --set m=4096 n=4096 k=4096 memory=80GB")
    assert one["sent"] == 134_217_728
    tile = 4 * 128 * 128 * 2  # a tile kernel's scratch, and 2 % more of runtime
    assert 0 <= one["held"] - values["held"]["2x2x1"] <= 1.1 * tile


# -- advice that gains something -------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["cannon", "summa"])
def test_what_is_no_faster_is_not_advised(answers, strategy):
    words, values, _ = asked(answers, f"10 --set strategy={strategy}")
    assert "Take " not in words
    assert values["advised"].startswith(strategy)
    assert "No other plan that moves and loads no more is faster than 7.49 µs" in words


def test_a_plan_that_does_not_fit_is_not_called_the_best(answers):
    words, values, _ = asked(answers, "10 --set memory=1MB")
    assert "memory" in values["faults"]
    assert "No plan fits" in words


def test_a_tile_that_may_stay_is_not_said_to_give_anything_away(answers):
    words, _, _ = asked(answers, "8 --set kernel=smem_tiled tuned_on=A100-80GB")
    assert "Nothing: of this product 16 x 16 x 16 is the best tile on both" in words


# -- real sizes ------------------------------------------------------------------------------------


def test_what_is_too_large_to_run_is_worked_out_and_says_so(typed):
    shown = typed("ask 5 --set d=16384 d_h=65536")
    assert shown.code == 0
    assert "98.3 kB" not in shown.words
    assert "a run takes d up to 4096" in shown.words


def test_devices_are_counted_from_0(answers):
    words, _, _ = asked(answers, "26")
    assert "device 0: conv1 200" in words
    assert "device 4" not in words
