"""What the parts of `make gpu` measure, without a GPU: on NumPy."""

import time
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from tile.cuda.gemm_steps import STEPS

from tiledask.distributed.memory.claim_tasks import MemoryCase as ClaimCase
from tiledask.lab.gpu.contest import clock, ways
from tiledask.lab.gpu.part import Notes, read_journal
from tiledask.lab.gpu.parts import fit, kernels, product, speed, train
from tiledask.lab.gpu.parts.cases import ENDINGS, GemmCase, by_kernel, check, differing
from tiledask.plan.inputs.model import Model
from tiledask.plan.inputs.recipes import load_recipe

CASE = GemmCase(33, 47, 21)


@pytest.fixture
def notes(tmp_path):
    return Notes("part", tmp_path / "journal", time.time() + 1000, tmp_path)


def rows(notes):
    """What was noted."""
    return [line for line in read_journal(notes.journal) if "key" in line]


# -- a product in the middle of NaN --------------------------------------------------------------

right = partial(by_kernel, kernel="blas")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("layouts", ["CCC", "FCF", "SSS"])
@pytest.mark.parametrize("how", [{}, *ENDINGS, {"alpha": -0.5, "beta": 2.0}])
def test_a_right_product_is_right(dtype, layouts, how):
    found = check(right, replace(CASE, dtype=dtype, layouts=layouts, **how))
    assert found.right, found
    assert 0 < found.error <= found.limit


def test_the_smallest_numbers_of_float16_are_right():
    seeds = (GemmCase(128, 128, 1, dtype="float16", seed=seed) for seed in range(20))
    assert all(check(right, case).right for case in seeds)


def a_row_lower(a, b, out, epilogue):
    right(a, b, out, epilogue)
    out[1:] = out[:-1].copy()


def one_element(a, b, out, epilogue):
    right(a, b, out, epilogue)
    out[-1, -1] = np.nan


def beyond_the_edge(a, b, out, epilogue):
    right(a, b, out, epilogue)
    np.lib.stride_tricks.as_strided(out, (out.shape[0], out.shape[1] + 1), out.strides)[3, -1] = 7


def tf32_in_place_of_float32(a, b, out, epilogue):
    a = (np.ascontiguousarray(a).view("u4") & 0xFFFFE000).view("f4")
    right(a, b, out, epilogue)


@pytest.mark.parametrize(
    ("run", "said"),
    [
        (a_row_lower, "rounding explains"),
        (one_element, "C[32, 46] is inf"),
        (beyond_the_edge, "1 elements outside"),
        (tf32_in_place_of_float32, "rounding explains"),
    ],
)
def test_a_wrong_product_is_wrong(run, said):
    found = check(run, CASE)
    assert not found.right
    assert said in str(found)


def test_runs_that_differ_are_counted():
    calls = []

    def races(a, b, out, epilogue):
        right(a, b, out, epilogue)
        calls.append(0)
        if len(calls) in (3, 7):
            out[0, 0] += 1

    assert differing(races, CASE, 8) == 2
    assert differing(right, CASE, 8) == 0


@pytest.fixture
def short(monkeypatch):
    """Few and short bursts: what is noted is looked at, and not how long it took."""
    monkeypatch.setattr(speed, "_ROUNDS", 3)
    monkeypatch.setattr(clock, "_BURST", 0.001)


# -- the parts on NumPy --------------------------------------------------------------------------


def test_each_kernel_once(notes):
    kernels.first(notes, "numpy")
    found = rows(notes)
    assert {row["state"] for row in found} == {"right"}
    steps = {"probe", "one tile", "ring", "cluster", "many tiles", "layouts"}
    assert steps <= {row["step"] for row in found}
    assert all(row["error"] <= row["limit"] for row in found if "kernel" in row)


@pytest.mark.parametrize("step", STEPS)
def test_every_step_of_every_kernel(step):
    for variant in kernels.variants("numpy"):
        for case in (case for _, cases in STEPS[step](variant, 32) for case in cases):
            assert check(variant.run, case).right, case


def test_a_planted_fault_is_seen_and_what_was_measured_is_left_out(notes, monkeypatch):
    def off_by_one_row(a, b, out, epilogue, **how):
        by_kernel(a, b, out, epilogue, **how)
        if how["kernel"] == "tiled" and out.shape[0] > 2:
            out[1:] = out[:-1].copy()

    monkeypatch.setattr(kernels, "by_kernel", off_by_one_row)
    kernels.first(notes, "numpy")
    found = [row for row in rows(notes) if row.get("kernel")]
    assert "wrong" in {row["state"] for row in found if row["kernel"] == "tiled"}
    assert {row["state"] for row in found if row["kernel"] == "blas"} == {"right"}
    (table,) = kernels.tables(found)
    assert ("tiled, fp32", "wrong") in [row[:2] for row in table.rows]
    known = {row["key"]: row["state"] for row in found}
    again = replace(notes, journal=notes.journal.with_name("again"), before=known)
    kernels.first(again, "numpy")
    assert {row["key"] for row in rows(again)} == {"the device"}


def test_contenders_in_turn(notes, short):
    speed.run(notes, "numpy")
    found = {row["key"]: row for row in rows(notes)}
    mine = found["fp32 512 cubed: blas"]
    assert mine["state"] == "timed"
    other = found["fp32 512 cubed: numpy.matmul"]["median"]
    assert mine["ratio"] == pytest.approx(other / mine["seconds"])
    products, ladder = speed.tables(list(found.values()))
    assert ("fp32 512 cubed", "blas") in [row[:2] for row in products.rows]
    assert [row[0] for row in ladder.rows] == ["tiled, fp32", "blas, fp32"]


def test_who_is_wrong_has_no_time_and_who_failed_when_tried_takes_no_part(
    notes, monkeypatch, short
):
    matmul = ways.matmul

    def off_by_one_row(a, b, name, out, **how):
        matmul(a, b, name, out=out, **how)
        if name == "blas":
            out[1:] = out[:-1].copy()

    monkeypatch.setattr(ways, "matmul", off_by_one_row)
    failed = {f"{job.work}: tiled, tried": "failed" for job in speed.jobs("numpy")}
    late = replace(notes, before=failed)
    speed.run(late, "numpy")
    found = [row for row in rows(late) if "way" in row]
    assert {row["way"]: row["state"] for row in found} == {"numpy.matmul": "timed", "blas": "wrong"}
    assert not any("seconds" in row for row in found if row["way"] == "blas")


@pytest.mark.slow
@pytest.mark.cluster
def test_two_levels_and_files_are_counted(notes):
    product.run(notes, "numpy")
    found = rows(notes)
    assert {row["state"] for row in found} == {"timed"}, found
    for row in found:
        moved = "bytes read" if "host memory" in row["key"] else "bytes moved"
        assert row[moved] == row[f"{moved}, predicted"]
        assert row["error"] < 1e-5
    assert all(len(table.rows) == len(found) for table in product.tables(found))


def test_claims_are_of_what_a_device_can_hold():
    for memory in (10**9, 24 * 10**9, 80 * 10**9, 141 * 10**9):
        found = fit.claims(memory)
        assert len({claim.key for claim in found}) == len(found) >= 5
        for claim in found:
            case = claimed(claim)
            fits = case.predicted.peak <= case.capacity
            assert fits == ("refused" not in claim.key), claim
            assert case.predicted.peak * claim.layout.pp <= 0.7 * memory


def claimed(claim):
    model = isinstance(claim.what, Model)
    what = claim.what if model else claim.what // claim.scale
    capacity = claim.capacity // claim.scale
    return ClaimCase(what, claim.layout, load_recipe(fit.RECIPE), claim.sequence, capacity)


@pytest.mark.slow
@pytest.mark.cluster
def test_claims_agree_with_what_was_held(notes):
    fit.run(notes, "numpy")
    found = rows(notes)
    assert {row["state"] for row in found} == {"right"}, found
    refused = [row for row in found if row["verdict"] == "does not fit"]
    assert [row["key"] for row in refused] == [r["key"] for r in found if "refused" in r["key"]]
    (table,) = fit.tables(found)
    assert len(table.rows) == len(found)


@pytest.mark.slow
@pytest.mark.cluster
def test_trainings_have_the_losses_of_the_host(notes, monkeypatch):
    monkeypatch.setattr(train, "_CASES", ())
    train.run(notes, "numpy")
    found = {row["key"]: row for row in rows(notes)}
    assert {row["state"] for row in found.values()} <= {"right", "timed"}, found
    assert sum("losses" in row for row in found.values()) == 10
    assert [len(table.rows) for table in train.tables(list(found.values()))] == [9, 1, 1]


def ending(last):
    return lambda: SimpleNamespace(losses=np.array([1.0, 1.0, last]))


def test_a_training_with_other_losses_is_wrong(notes):
    notes.begin("a training")
    train._compared(notes, "a training", ending(1 + 1e-6), ending(1.0))
    (row,) = rows(notes)
    assert row["state"] == "wrong"
    assert row["error"] > row["limit"]
