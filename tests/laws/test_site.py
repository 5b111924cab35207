"""The scripts of the site's pages judge as Python does: both work out one table of cases, and what
is drawn at random besides.
"""

import json
import random
import shutil

import pytest
from oracles.finished import ROOT, finished

import tiledask as td
from tiledask.errors import ConfigError
from tiledask.lab.learner import kept

CASES = json.loads((ROOT / "tests/laws/site_cases.json").read_text("utf-8"))
LOAD = """
const fs = require("fs");
globalThis.document = { addEventListener() {} };
for (const name of ["sliders", "boards", "predict"])
  require("vm").runInThisContext(fs.readFileSync(`docs/_static/${name}.js`, "utf8"));
const calls = JSON.parse(fs.readFileSync(0, "utf8"));
console.log(JSON.stringify(calls.map(([name, ...given]) => globalThis[name](...given))));
"""


def in_the_page(calls):
    """What functions of the scripts return: [name, arguments...] of each call."""
    if not (node := shutil.which("node")):
        pytest.skip("no node on this machine")
    return json.loads(finished(node, "-e", LOAD, cwd=ROOT, input=json.dumps(calls)).stdout)


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    monkeypatch.delenv(kept.FOLDER, raising=False)
    monkeypatch.setattr(kept, "_open", {})


def test_a_prediction():
    calls, right = [], []
    for n, (typed, unit, results, stars, verdict) in enumerate(CASES["predictions"]):
        choices = ("dp 8", "tp 8") if unit == "choice" else ()
        shown, guess = (
            td.predict(f"{name} {n}", unit="" if choices else unit, choices=choices)
            for name in ("shown", "case")
        )
        # what the page shows of the results, before anybody predicted
        _, _, *values = shown.compare(**results)._repr_html_().split("<td>")
        row = [*zip(results, (each.partition("<")[0] for each in values), strict=True)]
        calls.append(["judged", typed, row, guess.unit, guess.digits])
        try:
            guess.take(typed)
            judged = guess.compare(**results)
            assert (judged.stars, judged.verdict) == (stars, verdict), typed
        except ConfigError:
            assert stars is None, typed
        right.append(None if stars is None else [stars, verdict])
    assert in_the_page(calls) == right


def worth(place, devices, costs, speeds=None):
    found = td.judge(place, len(place), devices, costs, speeds)
    return found.rule, found.crossings, found.bottleneck


def test_a_cut():
    rows = [(place, devices, [1] * 6, speeds) for place, devices, speeds, *_ in CASES["cuts"]]
    assert [worth(*row) for row in rows] == [tuple(row[3:]) for row in CASES["cuts"]]
    draw = random.Random(1)
    for _ in range(300):
        layers, devices = draw.randint(4, 12), draw.randint(2, 4)
        place = sorted(draw.choices(range(devices), k=layers))
        if draw.random() < 0.5:
            place[draw.randrange(layers)] = draw.randrange(devices)
        rows.append((place, devices, draw.choices(range(1, 9), k=layers), None))
    calls = [
        ["judgedCut", place, {"costs": costs, "devices": devices, "speeds": speeds}]
        for place, devices, costs, speeds in rows
    ]
    for row, found in zip(rows, in_the_page(calls), strict=True):
        rule = found["broken"][0] if found["broken"] else ""
        assert (rule, *found["measured"].values()) == pytest.approx(worth(*row)), row


def judged(task, answer):
    """(rule, seconds, activations, stars) of an order."""
    result = task.result(answer)
    rule = result.reason.removeprefix("Not legal: ").partition(":")[0] if not result.legal else ""
    got = dict(zip(task.targets, (each.got for each in result.targets), strict=False))
    return rule, got.get("makespan"), got.get("kept"), result.stars


UNEVEN = {"title": "one each", "kind": "order", "task": "", "targets": {"makespan": 40, "kept": 3}}
UNEVEN["inputs"] = {"stages": 3, "microbatches": 3, "forward": [1, 2, 3], "backward": [2, 5, 4]}
UNEVEN["inputs"] |= {"latency": [0.5, 1.5], "memory_limit": [3, 2, 1]}


def actions(answer):
    lines = [line.split(",") for line in answer.replace(" ", "").replace("\n", ";").split(";")]
    return [[[int(each[0]), each[1], int(each[2:])] for each in line] for line in lines]


def test_an_order():
    rows = [(td.task(name), answer) for name, answer, *_ in CASES["orders"]]
    draw = random.Random(2)
    names = ("order-on-2", "order-with-latency", "zero-bubble-by-hand", "v-by-hand")
    for task in [td.tasks.load_puzzle(UNEVEN), *map(td.task, names)] * 10:
        lines = [line.split(",") for line in task.solve().split("\n")]
        for _ in range(draw.randint(1, 3)):
            line = draw.choice(lines)
            line.insert(draw.randrange(len(line)), line.pop(draw.randrange(len(line))))
        rows.append((task, "; ".join(map(",".join, lines))))
    calls, targets, right = [], [], []
    for task, answer in rows:
        best = [each.best for each in task.result(task.solve()).targets]
        calls.append(["judgedOrder", actions(answer), dict(task.inputs)])
        about = zip(task.targets.items(), best, strict=True)
        targets.append([{"measure": m, "wanted": most, "best": b} for (m, most), b in about])
        right.append(judged(task, answer))
    assert right[: len(CASES["orders"])] == [tuple(row[2:]) for row in CASES["orders"]]
    assert {stars for *_, stars in right} == {0, 1, 2, 3}
    found = in_the_page(calls)
    verdicts = in_the_page([["verdict", *each] for each in zip(found, targets, strict=True)])
    for row, wanted, each, (stars, _) in zip(rows, right, found, verdicts, strict=True):
        rule, measured = (each["broken"] or [""])[0], {} if each["broken"] else each["measured"]
        mine = (rule, measured.get("makespan"), measured.get("kept"), stars)
        assert mine == wanted, row
