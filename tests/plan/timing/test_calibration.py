"""Calibrations: files that can be joined, numbers with sources, a step of one's own."""

import json
import re
from math import hypot

import pytest

import tiledask as td
from tiledask import load_recipe
from tiledask.errors import ConfigError
from tiledask.plan.data import data_file, names, shipped_json
from tiledask.plan.inputs.hardware import load_device
from tiledask.plan.timing.calibration import calibration_of

FRAMEWORKS = names("calibration/framework")
ORIGINS = ("datasheet", "microbenchmark", "literature", "fit", "guess")
MIXED = load_recipe("mixed-adam-18")
RUN = "llama-3.1-70b", td.Layout(tp=8, pp=4, dp=2, microbatches=16), "64xH100"


@pytest.mark.parametrize("device", names("hardware"))
def test_every_device_joins_every_framework(device):
    for framework in FRAMEWORKS:
        known = calibration_of(load_device(device), MIXED, framework=framework)
        assert 0 < hypot(*known.errors.values()) < 0.5
        assert " ".join(known.exposed) == "tp tp_backward sum sum_backward dp fsdp pp ep"
        assert all(0 <= part <= 1 for part in known.exposed.values())
        assert 0 < known.flash_backward_share <= known.flash_share <= 1
        assert all(0 < share <= 1 for share in known.product_share.values())


def test_each_number_says_where_it_is_from():
    files = sorted(data_file("calibration").glob("*/*.json"))
    every = [n for file in files for n in re.findall(r'{[^{}]*"value":[^{}]*}', file.read_text())]
    assert len(every) > 250
    for number in map(json.loads, every):
        low, high = number.get("range", [number["value"]] * 2)
        assert low <= number["value"] <= high
        assert number["from"].startswith(ORIGINS)
        assert number.keys() <= {"value", "range", "unit", "from"}
    files = [shipped_json("calibration", "framework", f"{name}.json") for name in FRAMEWORKS]
    fitted = [case for file in files for case in file.get("fitted", ())]  # of one program each
    assert len(fitted) == len(set(fitted)) > 200


def test_a_measured_step_scales_every_part_and_is_kept(tmp_path):
    path = str(tmp_path / "mine.json")
    mine = td.calibrate(20.0, *RUN, sequence=8192, framework="megatron-2025", error=0.03)
    mine.save(path)
    before = td.estimate_step(*RUN, sequence=8192)
    plain = td.search(RUN[0], RUN[2], 256, sequence=8192)
    for known in (mine, path):
        step = td.estimate_step(*RUN, sequence=8192, calibration=known)
        assert step.total == pytest.approx(20.0)
        assert "scaled to a measured step" in step.assumed
        assert step.tp / step.total == pytest.approx(before.tp / before.total)
        assert step.calibration.errors == {"measurement": 0.03, "other layouts": 0.05}
        off = 20 * hypot(0.03, 0.05)
        assert step.band == pytest.approx((20 - off, 20 + off))
        plans = td.search(RUN[0], RUN[2], 256, sequence=8192, calibration=known)
        assert plans.best.layout == plain.best.layout
        assert plans.best.seconds / plain.best.seconds == pytest.approx(mine.scale)
        assert plans[0].by_formula / plain[0].by_formula == pytest.approx(mine.scale)
    with pytest.raises(ConfigError, match="measured on h100, and B200 is b200"):
        td.fits(*RUN[:2], "64xB200", calibration=mine)
    kept = json.loads((tmp_path / "mine.json").read_text())
    for wrong, words in (
        ({"scale": 0}, "'scale' must be above 0, got 0"),
        ({"scales": 1}, "'scales' is not known here"),
    ):
        (tmp_path / "mine.json").write_text(json.dumps(kept | wrong))
        with pytest.raises(ConfigError, match=words):
            td.estimate_step(*RUN, calibration=path)


def test_calibrations_that_cannot_be():
    for given, words in (
        ({"framework": "keras"}, "no calibration/framework description is called 'keras'"),
        ({"framework": 3}, "framework is a name such as 'megatron-2025', got 3"),
        ({"calibration": "nowhere.json"}, "nowhere.json: cannot be read"),
        ({"calibration": 1.05}, "what td.calibrate made, or the path of its file; got 1.05"),
    ):
        with pytest.raises(ConfigError, match=words):
            td.estimate_step(*RUN, **given)
    for seconds in (0, True, "trace.json", float("inf")):
        with pytest.raises(ConfigError, match="seconds must be a measured number above 0"):
            td.calibrate(seconds, *RUN)
