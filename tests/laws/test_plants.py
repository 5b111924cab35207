"""Planted faults: each is one wrong line of the package, and one test file that must fail by it.

A fault is planted in a copy of the package, which a process of its own imports. A plant whose text
is not there, or there twice, is an error: move it to where the idea went. `make plants`.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.slow


class Plant(NamedTuple):
    file: str
    """Under tiledask/."""
    right: str
    wrong: str
    test: str
    """The stem of a test file, and the name of a test in it, or a part of it, after a space."""


PLANTS = [
    # weights that copies of the model share out
    Plant(
        "plan/pipelines/needs.py",
        'if (a.kind == "UNSHARD") == (s in there) and a.kind != "REDUCE_GRAD":',
        "if False:",
        "test_sharding test_names_each_fault",
    ),
    Plant(
        "plan/pipelines/needs.py",
        "if unsummed and reduces:",
        "if False:",
        "test_sharding test_names_each_fault",
    ),
    Plant(
        "plan/pipelines/longest_path.py",
        "t = max(t, on_weights[1, wanted])",
        "t = max(t, on_weights[0, wanted])",
        "test_sharding test_closed_forms_of_one_stage",
    ),
    Plant(
        "plan/program/held.py",
        "(dropped if isinstance(each, Drop) else made)",
        "(made if isinstance(each, Drop) else dropped)",
        "test_program_sharded test_weights_are_held",
    ),
    Plant(
        "plan/program/making/unit_states.py",
        'if "gradients" in self.by_stage:',
        'if "gradients" in self.by_stage and self.copy == 0:',
        "test_training_unshard test_every_policy",
    ),
    Plant(
        "distributed/programs/runner.py",
        "for env in (self._stays, *self._frames.values()):",
        "for env in (self._stays,):",
        "test_training_unshard test_nothing_stays",
    ),
    # plan: arithmetic
    Plant(
        "plan/whole.py",
        "None if isinstance(value, bool) else operator.index(value)",
        "operator.index(value)",
        "test_whole_numbers",
    ),
    Plant(
        "plan/whole.py", "number <= most", "number < most", "test_whole_numbers the_rule_the_value"
    ),
    Plant(
        "plan/products/placement.py",
        "if not is_whole(self.dim):",
        "if not isinstance(self.dim, int):",
        "test_whole_numbers nobody_else",
    ),
    Plant(
        "plan/judged.py",
        'MARKS = {True: "✓", None: "", False: "✗"}',
        'MARKS = {True: "✓", None: "✓", False: "✗"}',
        "test_judged",
    ),
    Plant(
        "plan/choosing/question_check.py",
        "all(finding.holds is not False for finding in self.findings)",
        "all(finding.holds for finding in self.findings)",
        "test_premise",
    ),
    Plant(
        "plan/ledger.py",
        "max(self.per_place.values(), default=0)",
        "min(self.per_place.values(), default=0)",
        "test_memory",
    ),
    Plant(
        "plan/pipelines/closed_form.py",
        "(chunks * microbatches + devices - 1)",
        "(chunks * microbatches + devices)",
        "test_simulate",
    ),
    Plant(
        "plan/pipelines/closed_form.py",
        "(microbatches - 1) * max(t)",
        "microbatches * max(t)",
        "test_simulate",
    ),
    Plant(
        "plan/pipelines/generators/zb_v.py",
        '["F0"] * (2 * (p - d) - 1)',
        '["F0"] * (2 * (p - d))',
        "test_v_shape",
    ),
    Plant(
        "plan/fitting/in_flight.py",
        '"1f1b": min(p - stage, m)',
        '"1f1b": min(p - stage + 1, m)',
        "test_flight",
    ),
    Plant(
        "plan/fitting/activations.py",
        "scores = heads * sequence",
        "scores = heads * model.hidden",
        "test_memory",
    ),
    Plant("plan/collectives/formulas.py", "2 * (n - 1) / n", "(n - 1) / n", "test_ranks"),
    Plant(
        "plan/collectives/algorithms.py",
        "m.destination, m.source, m.chunks, True",
        "m.source, m.destination, m.chunks, True",
        "test_collectives_plan",
    ),
    Plant("plan/timing/roofline.py", "return -(-a // b)", "return a // b", "test_step_time"),
    Plant(
        "plan/timing/roofline.py", "np.maximum(products,", "np.minimum(products,", "test_step_time"
    ),
    Plant(
        "plan/timing/collective_time.py",
        "2 * (moved + latency(size, stride, cluster))",
        "1 * (moved + latency(size, stride, cluster))",
        "test_step_time",
    ),
    Plant(
        "plan/splitting/judge.py",
        "slowest, each = max(times)",
        "slowest, each = min(times)",
        "test_judge_chunks",
    ),
    Plant("plan/intervals.py", "(i if i < extra else extra)", "i", "test_placement"),
    Plant(
        "plan/products/regions.py",
        "[slice(*at) for at in pairwise(ends)]",
        "[slice(a + 1, b + 1) for a, b in pairwise(ends)]",
        "test_checkpoints",
    ),
    Plant(
        "plan/products/placement.py",
        "parts[placement.dim] = ((start, stop),) if start < stop else ()",
        "parts[placement.dim] = ((max(start - 1, 0), stop - 1),) if start < stop - 1 else ()",
        "test_tensor_summa one_device",
    ),
    Plant(
        "plan/program/making/grid_layers.py",
        "self._panel(x, way, ROW, panel.column, panel.of_x",
        "self._panel(x, way, ROW, panel.row, panel.of_x",
        "test_tensor_summa one_device",
    ),
    Plant(
        "plan/program/making/grid_layers.py",
        "self._summed(dw, way, COLUMN, panel.row)",
        "self._summed(dw, way, COLUMN, self.mesh[COLUMN] - 1 - panel.row)",
        "test_tensor_summa one_device",
    ),
    Plant(
        "plan/collectives/panels.py",
        "of_w.local(row, (start, stop))",
        "of_w.local(row, (start - (start > 0), stop))",
        "test_tensor_summa every_column",
    ),
    Plant(
        "plan/inputs/hf_config.py", '4 * values["hidden"]', '3 * values["hidden"]', "test_hf_config"
    ),
    # tile: one device
    Plant(
        "tile/layers/attention.py",
        "(d * y).sum(axis=-1, keepdims=True)",
        "(d + y).sum(axis=-1, keepdims=True)",
        "test_layers_attention",
    ),
    Plant(
        "tile/layers/attention.py",
        "i // (query_heads // kv_heads)",
        "i % kv_heads",
        "test_layers_attention",
    ),
    Plant(
        "tile/layers/cross_entropy.py",
        "logits_grad(dloss,",
        "logits_grad(2 * dloss,",
        "test_layers_vocabulary",
    ),
    Plant("tile/layers/rng.py", ">> np.uint64(11)", ">> np.uint64(12)", "test_layers_random"),
    Plant("tile/layers/dropout.py", "stays / (1 - rate)", "stays", "test_layers_random"),
    Plant(
        "tile/optimizers/rules.py",
        "(1 - self.beta2) * g * g",
        "(1 - self.beta2) * g",
        "test_optimizers",
    ),
    Plant("tile/optimizers/rules.py", "(1 - self.dampening) * g", "g", "test_optimizers"),
    Plant(
        "tile/optimizers/loss_scale.py",
        "max(self.scale * self.backoff, self.floor)",
        "self.scale * self.backoff",
        "test_loss_scale",
    ),
    Plant(
        "tile/choice/raster.py",
        "-(-self.tiles // self.slots)",
        "self.tiles // self.slots",
        "test_tile_choice",
    ),
    Plant(
        "tile/memory/pool.py",
        "if self.held + nbytes > self.capacity:",
        "if nbytes > self.capacity:",
        "test_claims refusal",
    ),
    Plant(
        "tile/memory/pool.py",
        "self._ask(tensor, array.nbytes)",
        "self._ask(tensor, 0)",
        "test_claims view",
    ),
    Plant(
        "distributed/memory/claim_trainer.py",
        "return x[self.here] * self.times",
        "return x[self.here] * 1",
        "test_claims zero",
    ),
    # distributed: ranks that agree
    Plant(
        "distributed/ranks/collectives.py",
        "key=lambda one: one[0])",
        "key=lambda one: -one[0])",
        "test_ranks",
    ),
    Plant(
        "distributed/ranks/halos.py", "[*ahead, x, *behind]", "[*behind, x, *ahead]", "test_ranks"
    ),
    Plant(
        "distributed/tensor/linear.py",
        "name, OF_A_SUM, y)",
        "name, OF_A_SUM)",
        "test_tensor_linear",
    ),
    Plant("distributed/training/trainer.py", "g *= factor", "g *= 1", "test_training_envelope"),
    Plant(
        "plan/program/making/convolution/convolutions.py",
        "if split.strips:\n            dx = self._halo(",
        "if False:\n            dx = self._halo(",
        "test_convolution_space",
    ),
    Plant(
        "plan/program/making/convolution/convolutions.py",
        "extents=split.rows, before=split.before,",
        "extents=split.rows, before=max(0, split.before - 1),",
        "test_convolution_space",
    ),
    Plant(
        "plan/program/making/convolution/convolutions.py",
        'self.leave(self._convolved(x, unit, w, "", window, 1), label)',
        'self._convolved(x, unit, w, "", window, 1)',
        "test_convolution_channels",
    ),
    Plant(
        "plan/program/making/convolution/of_lenet.py",
        "axes = (DATA, PARTS) if space else (DATA,)",
        "axes = (DATA,)",
        "test_program_lenet",
    ),
    Plant(
        "distributed/out_of_core/stored_npy.py",
        "(top * line + left)",
        "(top * line)",
        "test_stored",
    ),
    Plant(
        "distributed/cluster/clocks.py",
        "abs(offset) > error",
        "abs(offset) > 2 * error + 1",
        "test_clocks",
    ),
    # lab: what people look at
    Plant(
        "lab/table.py", "verdict.holds is True for", "verdict.holds is not False for", "test_table"
    ),
    Plant("lab/claim.py", "values if value is not None", "values if value", "test_table"),
    Plant("lab/report.py", '"[a-z0-9]+(-[a-z0-9]+)*"', '".*"', "test_report"),
    Plant("lab/precision/drift.py", "(2 * ranks - 1) * steps)", "ranks * steps)", "test_precision"),
    # lab: questions by number
    Plant(
        "lab/questions/question.py",
        "given.get(name, each.default)",
        "each.default",
        "test_ask test_every_input",
    ),
    Plant(
        "lab/questions/index.py",
        "if tags != {number for number, _ in found}:",
        "if tags > {number for number, _ in found}:",
        "test_index",
    ),
    Plant(
        "lab/questions/products/split_linear.py",
        "da = group.all_reduce(mine)",
        "da = mine",
        "test_two_methods",
    ),
    Plant(
        "lab/questions/products/goals.py",
        "lambda s: s.tile / ITEM",
        "lambda s: s.blocks / ITEM",
        "test_goals",
    ),
    Plant(
        "lab/questions/products/critique_product.py",
        "each.held > memory, each.seconds,",
        "each.held > memory, -each.seconds,",
        "test_critique_product",
    ),
    Plant(
        "lab/questions/planning/sized.py",
        "each * (d - 1) / d * parameters",
        "each * d / d * parameters",
        "test_what_went_wrong replicas",
    ),
    Plant(
        "lab/questions/planning/sized.py",
        "if not s.sharded(layout.zero) or layout.dp == 1",
        "if s.sharded(layout.zero) or layout.dp == 1",
        "test_what_fits working",
    ),
    Plant(
        "lab/questions/planning/hardware.py",
        "if size < memory)",
        "if size < 2 * memory)",
        "test_what_fits zero_2",
    ),
    Plant(
        "lab/questions/planning/scaling.py",
        'sums = 6 if layout.recompute == "full" else 4',
        "sums = 4",
        "test_what_went_wrong sent_grows",
    ),
    Plant(
        "lab/precision/replicas.py",
        "flush(g / before, reduction.dtype)",
        'flush(g / before, "float32")',
        "test_precision_replicas overflows",
    ),
    Plant(
        "lab/precision/blame.py",
        "self.untrained - loss > HELPS * learned",
        "loss < self.loss",
        "test_precision_replicas suspect",
    ),
]


def test_file(stem: str) -> Path:
    (path,) = (ROOT / "tests").rglob(f"{stem}.py")
    return path


test_file.__test__ = False


def text_of(plant: Plant) -> str:
    """The text of its file; an error where the plant does not apply."""
    text = (ROOT / "tiledask" / plant.file).read_text("utf-8")
    assert text.count(plant.right) == 1, (
        f"tiledask/{plant.file} has {plant.right!r} {text.count(plant.right)} times: "
        f"plant it where it is once"
    )
    return text


@pytest.mark.parametrize("plant", PLANTS, ids=lambda p: f"{p.file}: {p.wrong[:40]}")
def test_a_plant_is_caught(plant, tmp_path):
    text = text_of(plant)
    for name in ("tests", "data", "nbs", "pyproject.toml", "README.md", "constraints.txt"):
        (tmp_path / name).symlink_to(ROOT / name)
    leave = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "tiledask", tmp_path / "tiledask", ignore=leave)
    (tmp_path / "tiledask" / plant.file).write_text(text.replace(plant.right, plant.wrong), "utf-8")
    stem, _, part = plant.test.partition(" ")
    where = tmp_path / test_file(stem).relative_to(ROOT)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "no:nbval",
            "-p",
            "no:cacheprovider",
            "-q",
            "-x",
            "-m",
            "not cluster and not slow",
            *(["-k", part] if part else []),
            str(where),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=280,
        env={**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"},
    )
    assert done.returncode == 1, f"{plant.test} passes with it:\n{done.stdout[-2000:]}{done.stderr}"
    assert "1 failed" in done.stdout or "1 error" in done.stdout, done.stdout[-2000:]


def test_a_plant_that_no_longer_applies_is_an_error():
    for right in ("no such text", "import"):
        with pytest.raises(AssertionError, match="plant it where it is once"):
            text_of(Plant("plan/units.py", right, "", ""))


def test_there_are_plants_in_every_layer():
    layers = [plant.file.split("/")[0] for plant in PLANTS]
    for layer in ("plan", "tile", "distributed", "lab"):
        assert layers.count(layer) >= 4, layer
