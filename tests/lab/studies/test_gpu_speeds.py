"""Recorded speeds are read from the records of GPUs, and from no others."""

import json

from tiledask.lab.studies import records


def row(way, state="timed", part="speed", **more):
    return {"work": "bf16 4096 cubed", "way": way, "state": state, "part": part, **more}


def test_records_of_gpus_are_read_and_others_are_not(tmp_path):
    assert records(tmp_path) == []
    speed = {"TFLOP/s": 700.5}
    rows = [row("cuBLAS", **speed), row("torch", "skipped"), row("x", part="product", **speed)]
    gpu = {"device": {"kind": "GPU", "name": "NVIDIA H100 80GB HBM3"}, "rows": rows}
    cpu = {"device": {"kind": "CPU", "name": "some"}, "rows": [row("tiled", **speed)]}
    (tmp_path / "gpu").mkdir()
    (tmp_path / "gpu" / "h100.json").write_text(json.dumps(gpu))
    (tmp_path / "gpu" / "cpu.json").write_text(json.dumps(cpu))
    (found,) = records(tmp_path)
    assert (found.gpu, found.way, found.measured) == ("NVIDIA H100 80GB HBM3", "cuBLAS", 700.5e12)
    assert found.file == "h100.json"


def test_the_shipped_record_has_the_ladder_at_4096_cubed():
    speeds = {(r.way, r.work) for r in records() if "H200" in r.gpu}
    assert ("wgmma_ws_persistent", "bf16 4096 cubed") in speeds
    assert ("smem_tiled", "fp32 4096 cubed") in speeds
