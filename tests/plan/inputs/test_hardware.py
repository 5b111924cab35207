"""Devices, links and clusters: the shipped ones against datasheets, and those of one's own."""

import json

import pytest

from tiledask import load_cluster
from tiledask.errors import ConfigError
from tiledask.plan.data import data_file, names
from tiledask.plan.inputs.hardware import SHARE, load_device


@pytest.mark.parametrize("name", names("hardware"))
def test_every_device_is_complete_and_names_its_datasheet(name):
    cluster = load_cluster(f"16x{name}")
    device, within, between = cluster.device, cluster.within_node, cluster.between_nodes
    assert device.calibration in names("calibration/device")
    assert 1e-6 <= within.latency <= between.latency < 1e-4
    assert within.reached == within.share * within.bytes_per_second > between.reached
    assert device.source
    assert device.checked
    assert device.memory_bandwidth > 1e11
    peaks = dict(device.peak_flops)
    assert peaks.get("fp16", peaks.get("bf16")) > peaks.get("fp32", 0)
    if device.memory_mib is not None:  # drivers hide a little or show binary gigabytes
        assert 0.99 < device.memory_mib * 2**20 / device.memory_bytes < 1.08
    with pytest.raises(ConfigError, match="no peak for 'int1'"):
        device.peak("int1")


def own(**link):
    file = json.loads(data_file("hardware", "t4.json").read_text())
    file = {k: v for k, v in file.items() if k not in ("multiprocessors", "calibration")}
    return {
        "devices": 2,
        "device": {**file, "within_node": {"name": "my cable", "bytes_per_second": 1e10, **link}},
    }


def read(folder, file):
    path = folder / "mine.json"
    path.write_text(json.dumps(file))
    return load_cluster(path)


def test_a_cluster_file_overrides_the_node(tmp_path):
    six = {"devices": 6, "device": "T4"}
    assert read(tmp_path, {**six, "devices_per_node": 2}).devices_per_node == 2
    uneven = read(tmp_path, {**six, "devices_per_node": 4}).uneven
    assert uneven == "6 devices are taken as 1 full node of 4 and one with 2"
    with pytest.raises(ConfigError, match="'speed' is not known"):
        read(tmp_path, {**six, "speed": 1})
    with pytest.raises(ConfigError, match="keys 'devices', 'device' are missing; add them"):
        read(tmp_path, {})


def test_a_device_of_ones_own_needs_only_what_has_no_default(tmp_path):
    cluster = read(tmp_path, own())
    assert (cluster.within_node.latency, cluster.within_node.share) == (5e-6, SHARE)
    assert (cluster.device.multiprocessors, cluster.device.calibration) == (0, "other")
    assert read(tmp_path, own(latency=2e-6, share=0.5)).within_node.reached == 5e9
    keys = {"capability", "clock", "l2_bytes", "l2_bytes_per_clock", "registers", "threads"}
    keys |= {"blocks", "shared_bytes", "block_shared_bytes", "shared_bytes_per_clock"}
    bare = {k: v for k, v in own()["device"].items() if k not in keys}
    device = read(tmp_path, {**own(), "device": bare}).device
    assert {getattr(device, key) for key in keys} == {"", 0}
    assert (device.l2_bandwidth, device.shared_bandwidth) == (0, 0)
    a100 = load_device("A100-40GB")
    assert a100.l2_bandwidth == pytest.approx(7219e9, rel=1e-3)  # PMC10448217, table 3
    assert a100.shared_bandwidth == pytest.approx(19.49e12, rel=1e-3)


@pytest.mark.parametrize(
    ("link", "fact", "message"),
    [
        ({"share": 1.5}, {}, "'share' must be above 0 and at most 1, got 1.5"),
        ({"latency": -1}, {}, "'latency' must be a finite number of 0 or more"),
        ({"bytes_per_second": 0}, {}, "'bytes_per_second' must be above 0"),
        ({}, {"memory_bytes": -1}, r"mine\.json.*'memory_bytes' must be .* of 1 or more"),
        ({}, {"peak": 1}, "'peak' is not known"),
        (
            {},
            {"memory_bytes": None, "peak_flops": None},
            "'device.peak_flops' are missing; add them",
        ),
        (
            {"name": None},
            {"devices_per_node": None},
            "keys 'devices_per_node', 'within_node.name' are",
        ),
    ],
)
def test_links_and_devices_that_cannot_be(tmp_path, link, fact, message):
    with pytest.raises(ConfigError, match=message):
        read(tmp_path, {"devices": 2, "device": own(**link)["device"] | fact})


def test_clusters_that_cannot_be():
    for spec, words in ((f"{'8' * 5000}xH100", "1 device or more"), (None, "or by a path, got No")):
        with pytest.raises(ConfigError, match=words):
            load_cluster(spec)
