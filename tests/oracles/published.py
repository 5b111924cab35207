"""Every published number beside ours, in groups with a goal.

`python tests/oracles/published.py` prints the groups, and writes the errors of memory that
``fits`` counts with.

Errors are ours / published - 1: mean, then the worst. *Fitted* rows set constants of the model
(data/calibration), *check* rows had no part in that, and *left out* estimates each model by a fit
that had none of its rows, as it was when the constants were fitted.
data/published/not-modelled.txt says what is not modelled, other-planners.md how others fare.

exact.json                 parameters, states, activations     to the printed digits
runs.json, groups.json     bytes, seconds, ran or did not      a mean and a worst error
ranking.json               the estimate's first choice         how much slower than the best
"""

import json
import statistics
from functools import cache
from typing import NamedTuple

from oracles.published_runs import model_of, published_runs

import tiledask as td
from tiledask.plan.data import data_file, shipped_json
from tiledask.plan.fitting.activations import layer_bytes
from tiledask.plan.fitting.overhead import overhead_of
from tiledask.plan.inputs.framework_memory import memory_of
from tiledask.plan.inputs.hardware import load_cluster
from tiledask.plan.inputs.recipes import load_recipe, state_bytes
from tiledask.plan.tables import MARKS, Table, print_parts

GROUPS = shipped_json("published", "groups.json")
"""By key: the name, the goal, what a reader must know; of bytes also what devices show beside the
ledger's, and whether all rows set constants, or every second one."""
UNEXPLAINED = shipped_json("published", "unexplained.json")
"""Why a row contradicts others of its own source, by id: no model can be right on both."""
WORKSPACES = 2 * 32 * 2**20
"""Bytes that PyTorch and Transformer Engine give cuBLAS on Hopper and Blackwell."""


class PublishedRow(NamedTuple):
    """One published number and what tiledask says instead."""

    case: str
    quantity: str
    published: float
    ours: float
    unit: str = ""
    allowed: float | None = None
    """Largest difference that still counts as equal: half a unit of the last printed digit, 0 for
    an integer. None for what was measured: there the error counts."""
    note: str = ""
    calibration: bool = False
    """The constants of the model were fitted to it, among others."""

    @property
    def error(self):
        """Relative: ours / published - 1."""
        if self.published == 0:
            return 0.0 if self.ours == 0 else float("inf")
        return self.ours / self.published - 1

    @property
    def exact(self):
        """Whether it is reproduced to the digits that are printed; None for a measurement."""
        return None if self.allowed is None else abs(self.ours - self.published) <= self.allowed


class PublishedGroup(NamedTuple):
    """Rows of one source, and what is to be reached on them."""

    name: str
    rows: tuple[PublishedRow, ...]
    mean: float | None = None
    """Largest mean error, relative; None: every row to its printed digits; infinite: no goal."""
    worst: float | None = None
    remark: str = ""
    """What a reader of the errors must know."""

    @property
    def errors(self):
        """(mean, worst) absolute error of all rows, relative."""
        sizes = [abs(row.error) for row in self.rows]
        return statistics.mean(sizes), max(sizes)

    @property
    def met(self):
        """Whether the goal is reached."""
        if self.mean is None:
            return all(row.exact for row in self.rows)
        mean, worst = self.errors
        return mean <= self.mean and (self.worst is None or worst <= self.worst)


def group_of(key, rows):
    """The group of that key."""
    known = GROUPS[key]
    remark = known.get("remark", "").replace("$uncounted", memory_of("llama-3").uncounted)
    goal = known.get("mean", float("inf")), known.get("worst")
    return PublishedGroup(known["name"], tuple(rows), *goal, remark)


def exact():
    """The groups of numbers that arithmetic reproduces."""
    groups = {}
    for row in shipped_json("published", "exact.json"):
        model = model_of(row["model"]) if "model" in row else None
        number = OURS[row["what"]](row, model) / row.get("in", 1)
        facts = row["id"], row["quantity"], row["expected"], number, row.get("unit", "")
        made = PublishedRow(*facts, row.get("allowed", 0), row.get("note", ""))
        groups.setdefault(row["group"], []).append(made)
    return [PublishedGroup(name, tuple(rows)) for name, rows in groups.items()]


def _states(row, model):
    count = model.parameters if model else row["parameters"]
    return sum(state_bytes(count, row["recipe"], row.get("zero", 0), row.get("dp", 1)).values())


def _matrices(row, model):
    """States of the matrices of the first stage."""
    split = td.Layout(tp=row["tp"], pp=row["pp"])
    matrices = sum(w.count(split.tp) for w in model.layer if w.kind == "matrix")
    each = load_recipe(row["recipe"]).bytes_per_parameter
    return matrices * split.stage_layers(0, model.layers) * each


def _held(row, model, moment, tensor):
    """Bytes of a class on the first stage, whatever the recipe; or percent of another layout's."""

    def held(layout):
        run = model, td.Layout(**row[layout]), "mixed-adam-18", row["sequence"]
        return td.estimate_memory(*run).ledger.by_tensor(0, moment)[tensor]

    return 100 * held("layout") / held("percent of") if "percent of" in row else held("layout")


def _layer(row, model, **how):
    """Bytes of the activations of a layer."""
    return layer_bytes(model, td.Layout(**row.get("layout", {}), **how), row["sequence"])


def _core(row, model):
    """Bytes that are recomputed if attention's core is."""
    return _layer(row, model) - _layer(row, model, recompute="selective")


OURS = {
    "parameters": lambda row, model: model.parameters,
    "active_parameters": lambda row, model: model.active_parameters,
    "less parameters": lambda row, model: row["of"] - model.parameters,
    "without embeddings": lambda row, model: model.parameters - 2 * model.vocab * model.hidden,
    "embedding": lambda row, model: model.embedding[0].count(),
    "a layer": lambda row, model: model.item_parameters[1],
    "states": _states,
    "matrices": _matrices,
    "usable MiB": lambda row, model: load_cluster(f"1x{row['device']}").device.memory_mib or 0,
    "first stage": lambda row, model: _held(row, model, "forward", "activations"),
    "checkpoints": lambda row, model: _held(row, model, "backward", "activations"),
    "logits": lambda row, model: _held(row, model, "forward", "logits"),
    "a layer's bytes": _layer,
    "core": lambda row, model: _core(row, model) / (row["sequence"] * model.hidden),
    "saved": lambda row, model: 100 * _core(row, model) / _layer(row, model),
}
"""What a row asks for -> how it is worked out."""


@cache
def measured(key):
    """A group of what was measured of runs."""
    group, rows = GROUPS[key], []
    for at, run in enumerate(published_runs()[key]):
        if run.is_timed:
            fitted = run.key in fitted_keys()
        else:
            fitted = group.get("fitted") == "all" or (group.get("fitted") == "half" and at % 2 == 0)
        facts = run.case, run.quantity, run.measured, _ours(run, group.get("beside")), run.unit
        rows.append(PublishedRow(*facts, 0 if run.quantity == "fits" else None, _note(run), fitted))
    return group_of(key, rows)


def _ours(run, beside):
    if run.quantity == "fits":
        return int(run.verdict != "no")
    if run.is_timed:
        step = run.step()
        seconds = sum(step.layer_seconds) if run.is_layer else step.total
        return seconds * (1e3 if run.unit == "ms" else 1)
    memory = run.memory()
    shown = memory.peak + _beside(run, memory.recipe.framework, beside)
    return shown / (2**30 if run.unit == "GiB" else 1e9)


def _beside(run, framework, what):
    """Bytes that devices show beside the ledger's."""
    if what == "default":
        return int(overhead_of(td.Layout(dp=run.layout.devices)))
    if what == "framework":
        return int(overhead_of(td.Layout(), framework))
    # what PyTorch's allocator reserves: neither context nor NCCL
    reserved = memory_of(framework).allocator_bytes if what == "allocator" else 0
    return WORKSPACES if what == "workspaces" else reserved


def _note(run):
    if run.quantity == "fits":
        return f"{'ran' if run.measured else 'out of memory'}; {run.verdict}"
    if run.case in UNEXPLAINED and run.is_timed:
        return UNEXPLAINED[run.case]
    step = run.is_timed and not run.is_layer
    return "its memory is refused" if step and run.verdict == "no" else ""


@cache
def fitted_keys():
    """Runs that the constants of a program were fitted to."""
    files = data_file("calibration", "framework").glob("*.json")
    known = (json.loads(path.read_text("utf-8")) for path in files)
    return frozenset(key for each in known for key in each.get("fitted", ()))


def ranking():
    """How much longer than the best measured layout the estimate's first choice takes."""
    case = shipped_json("published", "ranking.json")
    model, shapes = model_of(case["model"]), case["candidates"]
    run = case["cluster"], case["recipe"], case["sequence"]
    pick = min(shapes, key=lambda c: td.estimate_step(model, td.Layout(**c["layout"]), *run).total)
    split = td.Layout(**pick["layout"])
    note = f"dp {split.dp} x tp {split.tp} x pp {split.pp}, b {split.microbatch}, of {len(shapes)}"
    best = min(each["measured"] for each in shapes)
    row = PublishedRow(case["id"], "first choice", best, pick["measured"], "ms", note=note)
    return group_of("ranking", [row])


# -- the page --------------------------------------------------------------------------------------


@cache
def groups():
    """All groups, from exact counts to measured times."""
    return (*exact(), *map(measured, published_runs()), ranking())


def summary():
    """A row for each group."""
    left_out, lines = shipped_json("calibration", "left_out.json"), []
    for group in groups():
        mark, goal = MARKS[group.met], "every row to its printed digits"
        if group.mean == float("inf"):
            mark, goal = "", "none, reported"
        elif group.mean is not None:
            goal = f"mean error <= {100 * group.mean:g} %"
            goal += f", worst <= {100 * group.worst:.0f} %" if group.worst else ""
        parts = ([row for row in group.rows if row.calibration == part] for part in (True, False))
        without = _sizes(*left_out[group.name]) if group.name in left_out else ""
        errors = (_errors(rows) for rows in (group.rows, *parts))
        lines.append((group.name, goal, *errors, without, mark))
    head = "source", "goal", "all rows", "fitted", "check", "left out", ""
    return Table(head, lines, left=range(len(head)))


def _errors(rows):
    if not rows:
        return ""
    if all(row.exact is not None for row in rows):
        return f"{sum(bool(row.exact) for row in rows)} of {len(rows)}"
    return _sizes(len(rows), *PublishedGroup("", tuple(rows)).errors)


def _sizes(count, mean, worst):
    return f"{100 * mean:.1f} %, worst {100 * worst:.1f} % ({count:.0f})"


def memory_errors():
    """Measured over estimated bytes by framework, each that differs once: what
    data/calibration/memory_errors.json has for the verdict."""
    found = {}
    for key, runs in published_runs().items():
        if runs[0].unit in ("GB", "GiB") and "mean" in GROUPS[key]:
            for row, run in zip(measured(key).rows, runs, strict=True):
                ratios = found.setdefault(run.memory().recipe.framework, set())
                ratios.add(round(row.published / row.ours, 3))
    return {framework: sorted(ratios) for framework, ratios in sorted(found.items())}


def main():
    """Print the goals, and write the errors of memory."""
    errors = json.dumps(memory_errors(), indent=1) + "\n"
    data_file("calibration", "memory_errors.json").write_text(errors, encoding="utf-8")
    remarks = (f"{group.name}: {group.remark}" for group in groups() if group.remark)
    print_parts(summary(), *remarks, width=200)


if __name__ == "__main__":
    main()
