"""The bench of scale: what grows how, where that leads, and what is read of the record.

Holds `tiledask.lab.bench.scale.bench`, `tiledask.lab.bench.scale.counted` and
`tiledask.lab.bench.scale.shown`.
"""

import json
import sys

import pytest

import tiledask as td
from tiledask.lab.bench import records
from tiledask.lab.bench.scale import bench as scale
from tiledask.lab.bench.scale.shown import HEAD, _lines, page, picture
from tiledask.plan.data import data_file

RECORD = data_file("measured", "scale", "cpu-2cores.json")


def rows(exponent=1.0, at_32=0.032):
    """A product on 2 to 64 workers; its seconds grow with ``exponent``, all else linearly."""
    return [
        {"what": "product", "workers": n, "mesh": [1, n], "how": "summa", "seconds": 1.0}
        | dict.fromkeys(scale.COUNTED, 100.0 * n)
        | dict.fromkeys(("client", "scheduler"), at_32 * (n / 32) ** exponent)
        for n in (2, 4, 8, 16, 32, 64)
    ]


PLANS = [{"ranks": n, "first": n / 64, "again": 0.0, "tables": 32 * n**2} for n in (64, 256)]


@pytest.mark.parametrize("exponent", [0.5, 1.0, 1.5])
def test_growth_is_found_and_carried_linearly_at_least(exponent):
    law = scale.growth(rows(exponent), "product", "client")
    assert law.exponent == pytest.approx(exponent)
    assert law.scatter == pytest.approx(1)
    last = 0.032 * 2**exponent
    assert law.at(1024) == pytest.approx(last * 16 ** max(1, exponent))


def test_few_workers_are_not_fitted():
    """On 2 and 4 most of it is what does not grow."""
    some = rows()
    for row in some[:2]:
        row["client"] = 1.0
    assert scale.growth(some, "product", "client").exponent == pytest.approx(1)
    some[3]["client"] *= 1.5
    assert 1.1 < scale.growth(some, "product", "client").scatter < 1.5


def test_what_cannot_be_told_from_idling_is_not_carried():
    some = rows()
    some[3]["messages in"] = -1.0
    laws = scale._laws(some)
    assert {law["amount"] for law in laws} == {*scale.COUNTED} - {"messages in"}
    exponents = [cells for cells in _lines(some, laws) if cells[1] == "exponent"]
    assert [cells[HEAD.index("messages in")] for cells in exponents] == ["—"]


@pytest.mark.parametrize(
    ("exponent", "at_32", "met"),
    [(1.0, 0.1, [True] * 4), (1.2, 0.1, [True, False] * 2), (1.0, 0.2, [False, True] * 2)],
)
def test_goals_are_of_32_workers_and_from_8_on(exponent, at_32, met):
    some = rows(exponent, at_32)
    some[-1] |= {"client": 100.0, "scheduler": 100.0}  # 64 have no goal
    assert [goal["met"] for goal in scale.goals(some)] == met
    assert scale.goals(some[:4]) == []
    assert scale.goals(some[4:]) == []


def test_what_breaks_first_is_said_with_its_seconds():
    some = rows()
    for row in some:
        row["scheduler"] *= 2
    near, far = scale.first_to_break(some, PLANS)
    assert "On 1,024 workers" in near
    assert "planned in 16 s by the client" in near
    assert "the scheduler has most to do, 2.05 s" in near
    assert "102.4 kB leave the scheduler" in near
    assert "tables of its traffic take 3.2 GB" in far


def test_the_page_has_what_was_measured_and_where_it_leads():
    laws = scale._laws(rows())
    facts = {
        "goals": scale.goals(rows()),
        "rows": rows(),
        "growth": laws,
        "planned": PLANS,
        "what breaks first": scale.first_to_break(rows(), PLANS),
    }
    said = page(facts, "x.png")
    lines = [line for line in said.splitlines() if line.startswith("| a repeated product")]
    assert [line.split("|")[2].strip() for line in lines] == [
        *("2", "4", "8", "16", "32", "64", "exponent", "1,024, carried", "10,000, carried")
    ]
    assert all(line.count("|") == len(HEAD) + 1 for line in lines)
    assert "![growth](x.png)" in said
    figure = picture(rows(), laws)
    assert [axes.get_title(loc="left") for axes in figure.axes] == [
        "CPU seconds",
        "bytes through the scheduler",
    ]


def test_planning_needs_no_workers():
    (plan,) = scale.planned([6], scale.MachineRates(1e11, 1e10, 0, 1e9, 0, 0, 1e-3, 1e-3, True))
    assert plan["chosen"] in td.algorithms
    assert plan["tables"] == 32 * 36


def test_the_record_is_of_all_sizes_and_its_goals_are_met():
    if not RECORD.exists():
        pytest.skip(f"{RECORD.name} was not measured yet: make bench-scale")
    kept = json.loads(RECORD.read_text())
    measured = [row["workers"] for row in kept["rows"] if row["what"] == "product"]
    assert measured == [2, 4, 8, 16, 32, 64]
    assert all(goal["met"] for goal in kept["goals"])
    assert RECORD.with_suffix(".md").read_text() == page(kept, RECORD.with_suffix(".png").name)


@pytest.mark.slow
@pytest.mark.cluster
def test_two_workers_are_measured_end_to_end(monkeypatch, tmp_path, capsys):
    file = tmp_path / "found" / "scale.json"
    options = ["--workers", "2", "--repeats", "2", "--plan", "4", "--record", str(file)]
    monkeypatch.setattr(records, "UNFINISHED", tmp_path / "unfinished")
    monkeypatch.setattr(sys, "argv", ["scale", *options])
    assert scale.main() == 0
    assert "2 workers: measured" in capsys.readouterr().out
    rows = {row["what"]: row for row in json.loads(file.read_text())["rows"]}
    assert list(rows) == ["connecting", "product", "step", "training"]
    product, step, training = (rows[what] for what in ("product", "step", "training"))
    # two questions and their answers, a task for each, and what they are told of it
    assert 8 <= product["messages out"] <= 40
    assert product["bytes out"] > 2000
    assert step["messages out"] < product["messages out"] < training["messages out"]
    assert file.with_suffix(".png").exists()
