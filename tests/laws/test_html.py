"""Names are never markup: whatever is shown as HTML, a hostile name comes out as words."""

from dataclasses import replace

import pytest

import tiledask as td
from tiledask import Ledger
from tiledask.plan import html
from tiledask.plan.inputs.hardware import ClusterSpec, Link, load_device
from tiledask.plan.ledger import ALWAYS, Row

EVIL = "<script>alert(1)</script>"
QUOTES = f"' onmouseover='{EVIL}"

MODEL = replace(td.load_model("gpt2"), name=EVIL, source=EVIL)
DEVICE = replace(load_device("A100-40GB"), name=EVIL, source=EVIL)
CLUSTER = ClusterSpec(2, DEVICE, 2, Link(EVIL, 1e11), Link(EVIL, 1e10))
LAYOUT = td.Layout(dp=2)
LARGE = replace(MODEL, layers=1000)
PUZZLE = {"title": EVIL, "kind": "partition", "task": EVIL, "hints": [EVIL]}
PUZZLE |= {"inputs": {"costs": "1, 1", "devices": 2}, "targets": {"crossings": 1, "bottleneck": 1}}


HOSTILE = {
    "no fit": lambda: td.fits(LARGE, LAYOUT, CLUSTER),
    "memory": lambda: td.fits(MODEL, LAYOUT, CLUSTER).memory,
    "a ledger": lambda: Ledger.of([Row(0, EVIL, ALWAYS, 1, EVIL, EVIL), Row(0, "x", EVIL, 1)]),
    "a step": lambda: td.estimate_step(MODEL, LAYOUT, CLUSTER),
    "plans": lambda: td.search(MODEL, CLUSTER, 8),
    "a critique": lambda: td.critique(MODEL, LAYOUT, CLUSTER),
    "a prediction": lambda: td.predict(EVIL, 1, unit=EVIL).compare(measured=1),
    "a table": lambda: td.table({EVIL: {EVIL: EVIL}}, QUOTES),
    "a task": lambda: td.tasks.load_puzzle(PUZZLE),
    "a hint": lambda: td.tasks.load_puzzle(PUZZLE).hint(),
}
"""Something that is shown, hostile wherever a caller or a file chooses the words."""


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_is_shown_and_not_run(name, tmp_path, monkeypatch):
    monkeypatch.setenv("TILEDASK_PROGRESS", str(tmp_path))
    page = HOSTILE[name]()._repr_html_()
    assert "<script" not in page
    assert " onmouseover='" not in page
    assert "&lt;script&gt;" in page


def test_a_table_escapes_all_its_parts():
    page = html.table([EVIL], [[EVIL, EVIL]], EVIL, style={1: QUOTES}, first="th", bold=(0,))
    assert page.count("&lt;script&gt;") == 5
    assert "<script" not in page
