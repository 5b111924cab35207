"""Links and devices of one's own: latency, share and multiprocessors, given or not."""

import json

import pytest

from tiledask.errors import ConfigError
from tiledask.plan.data import data_file, names
from tiledask.plan.inputs.hardware import LATENCY, SHARE, load_cluster, load_device


@pytest.mark.parametrize("name", names("hardware"))
def test_every_shipped_device_has_latencies_shares_and_a_calibration(name):
    cluster = load_cluster(f"16x{name}")
    assert cluster.device.calibration in names("calibration/device")
    within, between = cluster.within_node, cluster.between_nodes
    assert 1e-6 <= within.latency < between.latency < 1e-4
    assert within.reached == within.share * within.bytes_per_second > between.reached


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


@pytest.mark.parametrize(
    ("link", "fact", "message"),
    [
        ({"share": 1.5}, {}, "'share' must be above 0 and at most 1, got 1.5"),
        ({"latency": -1}, {}, "'latency' must be a finite number of 0 or more"),
        ({"bytes_per_second": 0}, {}, "'bytes_per_second' must be above 0"),
        ({}, {"capability": "sm_90"}, "'capability' must be text such as '9.0', got 'sm_90'"),
        ({}, {"capability": 9.0}, "'capability' must be text"),
        ({}, {"threads": 1.5}, "'threads' must be a whole number"),
    ],
)
def test_links_and_devices_that_cannot_be(tmp_path, link, fact, message):
    file = own(**link)
    with pytest.raises(ConfigError, match=message):
        read(tmp_path, {**file, "device": {**file["device"], **fact}})


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("0xH100", "1 device or more"),
        ("8" * 5000, "cannot read"),
        ("-1xT4", "cannot read"),
        ("A100", "cannot read 'A100' as a cluster"),
        (None, "named by text such as '80xA100-40GB' or by a path, got None"),
    ],
)
def test_clusters_that_cannot_be(spec, words):
    with pytest.raises(ConfigError, match=words):
        load_cluster(spec)


def test_bandwidths_inside_the_device():
    a100, t4 = load_device("A100-40GB"), load_device("T4")
    assert a100.l2_bandwidth == pytest.approx(7219e9, rel=1e-3)  # PMC10448217, table 3
    assert a100.shared_bandwidth == pytest.approx(19.49e12, rel=1e-3)
    assert (t4.l2_bandwidth, t4.shared_bytes_per_clock) == (0, 64)


def test_a_device_of_ones_own_needs_only_what_has_no_default(tmp_path):
    cluster = read(tmp_path, own())
    assert (cluster.within_node.latency, cluster.within_node.share) == (LATENCY, SHARE)
    assert (cluster.device.multiprocessors, cluster.device.calibration) == (0, "other")
    assert read(tmp_path, own(latency=2e-6, share=0.5)).within_node.reached == 5e9
    keys = [
        "capability",
        "clock",
        "l2_bytes",
        "l2_bytes_per_clock",
        "registers",
        "threads",
        "blocks",
    ]
    keys += ["shared_bytes", "block_shared_bytes", "shared_bytes_per_clock"]
    bare = {k: v for k, v in own()["device"].items() if k not in keys}
    device = read(tmp_path, {**own(), "device": bare}).device
    assert [getattr(device, key) for key in keys] == ["", *[0] * 9]
    assert (device.l2_bandwidth, device.shared_bandwidth) == (0, 0)
