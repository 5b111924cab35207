"""Names are never markup: whatever is shown as HTML, a hostile name comes out as words.

Holds `tiledask.lab.dashboard.activity`.
"""

import re
from dataclasses import replace
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

import tiledask as td
from tiledask.distributed.cluster.load import Load
from tiledask.distributed.cluster.web import SCRIPT
from tiledask.lab.learner.contents import SHOW_ANEW
from tiledask.plan import html
from tiledask.plan.inputs.hardware import ClusterSpec, Link, load_device
from tiledask.plan.ledger import ALWAYS, Ledger, Row

ROOT = Path(__file__).parents[2]
EVIL = "<script>alert(1)</script>"
QUOTES = f"' onmouseover='{EVIL}"


@cache
def shown_as_html() -> dict[str, type]:
    """Every class of the package with a ``_repr_html_`` of its own, by name."""
    found = {}
    for path in sorted((ROOT / "tiledask").rglob("*.py")):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for name in re.findall(r"^class (\w+)", path.read_text("utf-8"), re.MULTILINE):
            if "_repr_html_" in path.read_text("utf-8"):
                each = getattr(import_module(module), name)
                if "_repr_html_" in vars(each):
                    found[f"{module}.{name}"] = each
    return found


MODEL = replace(td.load_model("gpt2"), name=EVIL, source=EVIL)
DEVICE = replace(load_device("A100-40GB"), name=EVIL, source=EVIL)
CLUSTER = ClusterSpec(2, DEVICE, 2, Link(EVIL, 1e11), Link(EVIL, 1e10))
TIMELINE = td.simulate(td.schedule("1f1b", 2, 2))
LEDGER = Ledger.of([Row(0, EVIL, ALWAYS, 1, EVIL, EVIL), Row(0, "x", EVIL, 1)])


def a_fit():
    return td.fits(MODEL, td.Layout(dp=2), CLUSTER)


def no_fit():
    return td.fits(replace(MODEL, layers=1000), td.Layout(dp=2), CLUSTER)


def some_records():
    def program(rank):
        with rank.label(EVIL):
            rank.group().barrier()

    return td.run_threads(program, (2,))


class Words:
    """Something whose words are hostile, all but those given."""

    def __init__(self, **values):
        vars(self).update(values)

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        return EVIL

    def __repr__(self):
        return EVIL


HOSTILE = {
    "distributed.arrays.array.ShardedArray": lambda: Words(
        mesh=Words(said=lambda at: at),
        tiling=Words(coordinates=lambda: [EVIL], region=lambda at: ((0, 1),)),
        block_bytes=[8],
    ),
    "distributed.memory.claims.ClaimRun": lambda: Words(
        predicted=Words(per_place={0: 1}),
        case=Words(layout=Words(devices=2)),
        devices=[Words(role=Words(stage=0, slice=0, copy=0), slot=0, peak=1)],
    ),
    "distributed.cluster.cluster.Cluster": lambda: Words(
        slots=2, dashboard_link=QUOTES, client=Words()
    ),
    "distributed.convolution.lenet_train.TrainedLeNet": lambda: Words(to_frame=a_frame),
    "distributed.products.explain.Explanation": lambda: Words(
        why=EVIL,
        moved=EVIL,
        advice=EVIL,
        placed=EVIL,
        rows=lambda: [("*", EVIL, "", "", "", "", "", "", EVIL)],
    ),
    "distributed.ranks.rank_function.Ranks": some_records,
    "distributed.ranks.records.Records": lambda: some_records().records,
    "distributed.pipelines.run.PipelineRun": lambda: Words(
        timeline=TIMELINE,
        replayed=TIMELINE,
        simulated=TIMELINE,
        clock_error=0.0,
        load=Load(1.0, 0.5, 2),
    ),
    "distributed.out_of_core.stored.StoredArray": lambda: Words(_words=lambda: ""),
    "distributed.training.run.Trained": lambda: Words(to_frame=a_frame),
    "lab.learner.guess.GuessRow": lambda: td.predict(EVIL, 1, unit=EVIL).beside(measured=1),
    "lab.learner.score.Score": lambda: Words(
        notebook=EVIL, rows={EVIL: Words(cells=("1",) * 5)}, total=Words(cells=("1",) * 5)
    ),
    "lab.idle_ladder.level.LevelWorking": lambda: (EVIL,),
    "lab.judging.result.Result": lambda: Words(targets=[Words(got=1, met=True)]),
    "lab.judging.task.Hint": lambda: Words(number=1, of=3),
    "lab.judging.task.JudgedTask": Words,
    "lab.questions.answer.Answer": lambda: Words(
        question=Words(number=1, inputs={EVIL: Words()}),
        worked=Words(lines=(EVIL,), more=(EVIL,), answer=EVIL),
        taught=(EVIL,),
        title=EVIL,
        asked=EVIL,
        run=None,
        _inputs=lambda: [(EVIL, EVIL, EVIL)],
    ),
    "lab.table.Comparison": lambda: import_module("tiledask.lab.table").Comparison(
        EVIL, [import_module("tiledask.lab.claim").Claim(EVIL, 1, None, 1, unit=QUOTES, note=EVIL)]
    ),
    "lab.table.Grid": lambda: td.table({EVIL: {EVIL: EVIL}}, QUOTES),
    "plan.choosing.critique.PlanCritique": lambda: td.critique(MODEL, td.Layout(dp=2), CLUSTER),
    "plan.choosing.search.Plans": lambda: td.search(MODEL, CLUSTER, 8),
    "plan.diagnosis.diagnose.Diagnosis": lambda: Words(
        _finding_rows=lambda: [(EVIL, EVIL, EVIL)], _cause_rows=list, remedies=(), summary=(EVIL,)
    ),
    "plan.fitting.fit.Fit": no_fit,
    "plan.fitting.memory.MemoryEstimate": lambda: a_fit().memory,
    "plan.inputs.model.Model": lambda: MODEL,
    "plan.ledger.Ledger": lambda: LEDGER,
    "plan.pipelines.schedule.Schedule": lambda: replace(td.schedule("1f1b", 2, 2), name=EVIL),
    "plan.pipelines.timeline.Timeline": lambda: replace(TIMELINE, origin=EVIL),
    "plan.products.streaming.StreamPlan": lambda: Words(
        cuts=Words(grid=(1, 1), rows=(0, 1), columns=(0, 1)), tiles=(), ledger=LEDGER
    ),
    "plan.products.traffic.Traffic": lambda: td.Traffic.of(2),
    "plan.program.program.Program": lambda: replace(
        td.program(td.schedule("1f1b", 2, 2)), name=EVIL
    ),
    "plan.splitting.judge.Verdict": lambda: Words(
        ok=False, crossings=1, bottleneck=1.0, optimum=1.0
    ),
    "plan.splitting.partition.Partition": lambda: td.partition([1.0, 1.0], 2),
    "plan.timing.step_estimate.StepEstimate": lambda: td.estimate_step(
        MODEL, td.Layout(dp=2), CLUSTER
    ),
    "tile.choice.hierarchy.Levels": lambda: Words(_rows=lambda: [(EVIL,) * 7], notes=[EVIL]),
    "tile.choice.tuning.Tuning": lambda: Words(
        _head=(EVIL,), _rows=lambda: [(EVIL,)], notes=[EVIL]
    ),
    "tile.table.KernelTable": lambda: td.tile.kernels,
}
"""Class -> something that it shows, hostile wherever a caller or a file chooses the words."""
HARMLESS = {
    "plan.products.traffic.Traffic",
    "plan.splitting.partition.Partition",
    "tile.table.KernelTable",
}
"""Those in which nobody's words stand."""


def a_frame():
    import pandas as pd

    return pd.DataFrame({EVIL: [EVIL]})


@pytest.mark.long
def test_every_class_that_is_shown_as_html_is_tried():
    names = {name.removeprefix("tiledask.") for name in shown_as_html()}
    assert names == set(HOSTILE)


@pytest.mark.long
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_is_shown_and_not_run(name):
    page = shown_as_html()[f"tiledask.{name}"]._repr_html_(HOSTILE[name]())
    for ours in (SCRIPT, SHOW_ANEW):  # the same whatever is shown
        page = page.replace(ours, "")
    assert "<script" not in page
    assert " onmouseover='" not in page
    assert ("&lt;script&gt;" in page) == (name not in HARMLESS)


def test_nothing_else_of_the_package_escapes_by_itself():
    """One helper does, so that there is one place to look at."""
    files = [p for p in (ROOT / "tiledask").rglob("*.py") if p != Path(html.__file__)]
    found = [p for p in files if re.search(r"html(\.| import )escape", p.read_text("utf-8"))]
    assert found == []


def test_a_table_escapes_all_its_parts():
    page = html.table([EVIL], [[EVIL, EVIL]], EVIL, style={1: QUOTES}, first="th", bold=(0,))
    assert page.count("&lt;script&gt;") == 5
    assert "<script" not in page
    assert "'" not in page.replace("style='font-weight:bold'", "").replace(
        f"style='{html.words(QUOTES)}'", ""
    )


@pytest.mark.long
def test_saved_pages_and_the_dashboard_show_hostile_names(tmp_path):
    from tiledask.lab.dashboard.activity import Activity
    from tiledask.lab.dashboard.board import headline, legend
    from tiledask.lab.doctor import MachineCheck, to_html

    timeline = replace(TIMELINE, origin=f"{EVIL}")
    page = td.report(tmp_path / "x.html", timeline, title=EVIL).read_text("utf-8")
    assert "<script>alert" not in page
    empty = {"boxes": (), "transfers": (), "makespan": 1.0, "idle": (0.0,), "predicted": None}
    words = {"title": EVIL, "facts": ((EVIL, EVIL),), "rows": (EVIL,), "note": EVIL}
    activity = Activity(**empty, **words, legend=(("#000000", EVIL),))
    doctor = to_html([MachineCheck(EVIL, "ok", EVIL, EVIL)])
    for part in (headline(activity), legend(activity), doctor):
        assert "<script" not in part
        assert "&lt;script&gt;" in part
