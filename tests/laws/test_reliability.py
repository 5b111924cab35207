"""RELIABILITY.md: each fault of the table, by tests that there are, with the record's numbers."""

import json
import re

from oracles.finished import ROOT

from tiledask.lab.faults.page import measured, renewed, soaked
from tiledask.lab.faults.table import FAULTS, ON_GPUS

PAGE = (ROOT / "RELIABILITY.md").read_text()
RECORD = ROOT / "data" / "measured" / "faults" / "cpu-2cores.json"
LOADED = RECORD.with_name("cpu-2cores-load-10.json")
ON_GPU = RECORD.with_name("nvidia-h200.json")


def test_every_fault_is_promised_once_and_tested():
    rows = re.findall(r"^\| (.+?) \| (.+?) \| .+? \| (`.+`) \|$", PAGE, re.M)
    assert [row[:2] for row in rows] == [(fault.name, fault.promise) for fault in FAULTS]
    files = (ROOT / "tests").rglob("test_*.py")
    there = {name for file in files for name in re.findall(r"def (test_\w+)", file.read_text())}
    for name, _, tests in rows:
        assert {*re.findall(r"test_\w+", tests)} <= there, name


def test_what_was_measured_is_the_records():
    rows = json.loads(RECORD.read_text())["rows"]
    assert renewed(PAGE, rows) == PAGE
    assert {row["fault"] for row in rows} == {fault.name for fault in FAULTS}
    assert not any(row["wrong"] for row in rows)
    soak = json.loads((RECORD.parent / "soak.json").read_text())
    assert soaked(PAGE, soak) == PAGE
    assert "Soaked: " in PAGE
    assert {*soak["ends"]} == {"right"}
    assert soak["lost workers"] >= 1500
    assert not any(soak["left"].values())


def test_what_was_measured_beside_busy_loops_is_the_records():
    found = json.loads(LOADED.read_text())
    rows = {row["fault"]: row for row in found["rows"]}
    assert {*rows} == {fault.name for fault in FAULTS}
    assert found["load"] == 10
    assert not any(row["wrong"] or row["hangs"] for row in rows.values())
    said = PAGE.partition("## Beside ten busy loops")[2].partition("\n## ")[0]
    assert f"{sum(row['tried'] for row in rows.values())} tried, 0 wrong" in said
    shown = re.findall(r"^\| (.+?) \| (\d.+) \|$", said, re.M)
    assert shown == [(name, measured(rows[name])) for name, _ in shown]
    assert len(shown) == 9


def test_what_was_measured_on_a_gpu_is_the_records():
    rows = json.loads(ON_GPU.read_text())["rows"]
    assert {row["fault"] for row in rows} == {*ON_GPUS} <= {fault.name for fault in FAULTS}
    assert all(row["kept"] and not row["wrong"] for row in rows)
    assert [row for row in rows if f"\n| {row['fault']} | {measured(row)} |\n" not in PAGE] == []


def test_what_others_promise_has_its_source():
    others = PAGE.partition("## What others promise")[2]
    cited = {*re.findall(r"\[(\d+)\]", others.partition("\n\n[1]")[0])}
    assert cited == {*re.findall(r"^\[(\d+)\] \[.+\]\(https://", others, re.M)}
