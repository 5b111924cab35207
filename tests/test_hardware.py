"""Links and devices of one's own: latency, share and multiprocessors, given or not."""

import json

import pytest

from tiledask.errors import ConfigError
from tiledask.plan.data import _root, names
from tiledask.plan.inputs.hardware import LATENCY, SHARE, load_cluster, load_device

UNITS = {"a10": 9216 // 128, "a100-40gb": 6912 // 64, "a100-80gb": 6912 // 64,
         "h100": 16896 // 128, "h200": 16896 // 128, "l4": 7424 // 128, "l40s": 18176 // 128,
         "t4": 2560 // 64}  # fmt: skip
"""Multiprocessors: CUDA cores of the datasheet over those of one."""


@pytest.mark.parametrize("name", names("hardware"))
def test_every_shipped_device_has_latencies_shares_and_a_calibration(name):
    cluster = load_cluster(f"16x{name}")
    device = cluster.device
    assert device.multiprocessors == UNITS.get(name, 148)
    assert device.calibration in names("calibration")
    assert "multiprocessors" in device.source
    assert "latency" in device.source
    within, between = cluster.within_node, cluster.between_nodes
    assert 1e-6 <= within.latency < between.latency < 1e-4
    assert 0.5 < within.share < 1
    assert within.reached == within.share * within.bytes_per_second > between.reached


def own(**link):
    file = json.loads((_root() / "hardware" / "t4.json").read_text())
    file = {k: v for k, v in file.items() if k not in ("multiprocessors", "calibration")}
    return {"devices": 2, "device": {**file, "within_node": {
        "name": "my cable", "bytes_per_second": 1e10, **link}}}  # fmt: skip


def test_a_file_without_them_gets_the_stated_defaults(tmp_path):
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(own()))
    cluster = load_cluster(path)
    assert (cluster.within_node.latency, cluster.within_node.share) == (LATENCY, SHARE)
    assert (cluster.device.multiprocessors, cluster.device.calibration) == (0, "a100")
    path.write_text(json.dumps(own(latency=2e-6, share=0.5)))
    assert load_cluster(path).within_node.reached == 5e9
    assert load_device("T4").multiprocessors == 40


@pytest.mark.parametrize(
    ("link", "message"),
    [
        ({"share": 1.5}, "'share' must be above 0 and at most 1, got 1.5"),
        ({"share": 0}, "'share' must be above 0"),
        ({"latency": -1}, "'latency' must be a finite number of 0 or more"),
        ({"bytes_per_second": 0}, "'bytes_per_second' must be above 0"),
        ({"lag": 1}, "'lag' is not known here"),
    ],
)
def test_links_that_cannot_be(tmp_path, link, message):
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(own(**link)))
    with pytest.raises(ConfigError, match=message):
        load_cluster(path)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("0xH100", "1 device or more"),
        ("9" * 5000 + "xH100", "100,000,000 at most"),
        ("8" * 5000, "cannot read"),
        (None, "named by text such as '80xA100-40GB' or by a path, got None"),
    ],
)
def test_clusters_that_cannot_be(spec, words):
    with pytest.raises(ConfigError, match=words):
        load_cluster(spec)
