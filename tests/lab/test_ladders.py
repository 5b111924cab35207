"""Published ladders of kernels stay under our bounds; recorded ones are read, and only GPUs'."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tiledask.lab.ladders import ladders, recorded, records


@pytest.fixture(scope="module")
def both():
    return ladders()


def test_rungs_ascend_to_the_library_and_none_is_faster_than_the_bound_of_its_tile(both):
    for ladder in both.values():
        comparison = ladder.compared()
        assert comparison.ok, comparison.failures
        assert comparison.checked == sum(rung.config is not None for rung in ladder.rungs) >= 4
        *rungs, library = ladder.rungs
        speeds = [rung.measured for rung in rungs]
        assert speeds == sorted(speeds)
        assert library.name == "cuBLAS"
        assert ladder.source.startswith("github.com/")
        assert ladder.verified


def test_shares_of_the_library_and_seconds_are_those_that_were_published(both):
    *rungs, library = both["sgemm-a6000"].rungs
    shares = [round(100 * rung.measured / library.measured, 1) for rung in rungs]
    assert shares == [1.3, 8.5, 12.8, 36.5, 68.7, 93.7]  # SGEMM_CUDA prints them beside the speeds
    best = both["fastcu-h100"].rungs[-2]  # fast.cu prints both; 2 x 8192^3 FLOP in 1.361 ms
    assert 2 * 8192**3 / best.measured == pytest.approx(1.361e-3, rel=1e-3)


def test_the_textbook_rung_is_bound_by_shared_memory_by_hand(both):
    ladder = both["sgemm-a6000"]
    (rung,) = (rung for rung in ladder.rungs if rung.name == "shared memory")
    assert ladder.bound_by(rung) == "shared memory -> registers"
    # 2 FLOP for 8 bytes, of 84 x 128 bytes a clock; 4092 is not a multiple of 32, and 16,384 tiles
    # are 196 rounds of 84
    whole = 0.25 * 84 * 128 * 1.8e9
    assert ladder.bound(rung) == pytest.approx(
        whole * (4092 / 4096) ** 3 * 16384 / (196 * 84), rel=1e-3
    )


def row(way, state="timed", **more):
    return {"work": "bf16 4096 x 4096 x 4096", "way": way, "state": state, **more}


def test_records_of_gpus_are_read_and_others_are_not(tmp_path):
    assert records(tmp_path) == []
    rows = [row("cuBLAS", **{"TFLOP/s": 700.5}), row("Triton", "skipped"), row("mma", "wrong")]
    gpu = {"device": {"kind": "GPU", "name": "NVIDIA H100 80GB HBM3"}, "rows": rows}
    cpu = {"device": {"kind": "CPU", "name": "some"}, "rows": [row("tiled", **{"TFLOP/s": 0.1})]}
    (tmp_path / "bench-tiles-h100.json").write_text(json.dumps(gpu))
    (tmp_path / "bench-tiles-cpu.json").write_text(json.dumps(cpu))
    (tmp_path / "bench-idle-cpu.json").write_text("[]")
    (found,) = records(tmp_path)
    assert (found.gpu, found.way, found.measured) == ("NVIDIA H100 80GB HBM3", "cuBLAS", 700.5e12)
    assert found.file == "bench-tiles-h100.json"


def test_the_record_of_make_gpu_is_read_and_without_one_it_is_said_how(tmp_path):
    said = " ".join(recorded(tmp_path))
    assert said.startswith("No GPU has run these kernels yet")
    assert "`make gpu`" in said
    part, speed = {"part": "speed", "key": "x"}, {"TFLOP/s": 700.5}
    goal = {"goal": "bf16", "what": "bfloat16 beside cuBLAS", "wanted": 1.0, "reached": 0.973}
    facts = {
        "device": {"kind": "GPU", "name": "NVIDIA H200", "GPUs": 1},
        "rows": [
            {"part": "machine", "key": "clocks", "state": "timed"},
            row("cuBLAS", "timed", **part, **speed) | {"work": "bf16 4096 cubed"},
            row("tall", "timed", **part, **speed) | {"work": "bf16 65536 x 1024 x 4096"},
            row("of a sweep", "timed", **speed, part="sweep"),
            row("x", "skipped", **part),
        ],
        "goals": [goal, {**goal, "goal": "fp32", "reached": ""}],
    }
    (tmp_path / "gpu").mkdir()
    (tmp_path / "gpu" / "nvidia-h200.json").write_text(json.dumps(facts))
    (tmp_path / "gpu" / "no-gpu.json").write_text('{"device": {"name": "no GPU"}, "rows": []}')
    assert {r.way: r.measured for r in records(tmp_path)} == {"cuBLAS": 700.5e12, "tall": 700.5e12}
    assert recorded(tmp_path) == [
        "NVIDIA H200, bfloat16 beside cuBLAS: 0.97, 1.00 wanted",
        "NVIDIA H200, bf16 4096 cubed, cuBLAS: 700.5 TFLOP/s",
    ]


def test_the_readme_says_whether_a_gpu_has_run_it():
    readme = (Path(__file__).parents[2] / "README.md").read_text("utf-8")
    assert ("No GPU has run this yet." in readme) == (records() == [])


def test_a_planted_speed_above_the_bound_is_found(both):
    ladder = both["sgemm-a6000"]
    fast = [replace(rung, measured=2 * rung.measured) for rung in ladder.rungs]
    failures = replace(ladder, rungs=tuple(fast)).compared().failures
    assert [claim.quantity for claim in failures] == ["shared memory", "warp tiles"]
