"""Halves, loss scaling and clipping under random layouts: one device's training, within round-off.

In float64 the comparison is exact to 1e-10, overflows and clipping included; the losses of halves
are golden values.

Holds `tiledask.distributed.training.trainer` and `tiledask.distributed.training.saved`.
"""

from collections import defaultdict
from random import Random
from typing import NamedTuple

import numpy as np
import pytest
from oracles.drawn_layouts import BATCH, MODELS, RULES, Layout, dealt, drawn_layouts, run
from oracles.planted_trainings import in_gradients
from oracles.single_gpt import assert_single, reference

import tiledask as td
from tiledask.distributed.training.trainer import Guard
from tiledask.tile.optimizers import LossScale

pytestmark = pytest.mark.usefixtures("one_thread")

STEPS = 5
SCALE = LossScale(2.0**10, interval=2)


class Case(NamedTuple):
    """A training, and a layout for it."""

    model: str
    rule: str
    layout: Layout

    def __str__(self):
        return f"{self.model},{self.rule}: {self.layout}"

    def run(self, layout=None, **options):
        return run(self.model, self.rule, layout or self.layout, **{"steps": STEPS} | options)

    def assert_single(self, got, **options):
        assert_single(got, BATCH, RULES[self.rule], **options)

    def reference(self, steps=STEPS, **options):
        return reference(MODELS[self.model], steps, BATCH, RULES[self.rule], **options)

    @property
    def alone(self):
        """One device, and all rows at once."""
        return Layout((1, 1, 1), "gpipe", (MODELS[self.model].layers,), 0, 1, False)


def drawn_cases(count, seed):
    draw = Random(seed)
    models, rules = dealt(draw, MODELS, count), dealt(draw, RULES, count)
    layouts = drawn_layouts(draw, [MODELS[name].layers for name in models])
    return [Case(*each) for each in zip(models, rules, layouts, strict=True)]


CASES = drawn_cases(4, seed=27997)
"""The seed of few ranks whose cases have everything."""
MORE = drawn_cases(8, seed=115)


# -- clipping and scaling, to 1e-10 ----------------------------------------------------------------


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "case", [*CASES, *(pytest.param(case, marks=pytest.mark.slow) for case in MORE)], ids=str
)
def test_the_norm_is_one_device_s(case):
    """Shards, replicas, shared kv heads and a table on two stages: each number counts once."""
    clip = 0.5
    assert case.reference(3, clip=clip).norms.min() > clip  # or nothing is clipped
    case.assert_single(case.run(clip=clip, steps=3), clip=clip)


OVERFLOWS = [
    (Layout((2, 2, 2), "1f1b", (1, 2), 0, 2, False), "GPT-2"),
    (Layout((2, 2, 2), "gpipe", (2, 1), 1, 2, True), "Llama tied"),
    (Layout((2, 1, 2), "interleaved", (1, 0, 0, 1), 2, 3, False), "GPT-2 tied"),
    (Layout((3, 2, 1), "1f1b", (3,), 3, 1, False), "GPT-2"),
]


@pytest.mark.few(1)
@pytest.mark.parametrize("which", ["first", "last"])
@pytest.mark.parametrize(("layout", "model"), OVERFLOWS, ids=str)
def test_an_overflow_of_one_rank_leaves_the_step_out_on_all(monkeypatch, layout, model, which):
    """In one number of one shard: of the table on the first rank, of the logits on the last."""
    at, unit = (0, 0, 0), "embedding"
    if which == "last":
        at = tuple(n - 1 for n in layout.shape)
        unit = "embedding" if MODELS[model].tied else "head"
        if unit == "head" and layout.shape[1] > 1:
            unit = f"layer {MODELS[model].layers - 1}"
    case, spoken = Case(model, "Adam", layout), defaultdict(list)
    honest = Guard.factor

    def overheard(self, squares):
        factor = honest(self, squares)
        spoken[self].append((factor, self.scale))
        return factor

    monkeypatch.setattr(Guard, "factor", overheard)
    in_gradients(monkeypatch, at, unit, 1, (np.inf, np.nan)[which == "last"])
    got = case.run(clip=0.5, scale=SCALE)
    assert got.skipped == [1]
    case.assert_single(got, clip=0.5, scale=SCALE, overflows=(1,))
    assert got.scales.tolist() == [2.0**10, 2.0**10, 2.0**9, 2.0**9, 2.0**10]
    assert len(spoken) == np.prod(layout.shape)
    one, *others = spoken.values()
    assert all(said == one for said in others)
    assert [factor is None for factor, _ in one] == [False, True, False, False, False]


# -- going on, with the scale and what it counts ---------------------------------------------------


@pytest.mark.few(1)
@pytest.mark.parametrize("split", [1, 2, 3, 4])
def test_a_training_goes_on_with_its_scale_and_its_count(monkeypatch, tmp_path, split):
    """Grown after 2 good steps, fallen in step 2: wherever it is cut, the same 5 scales, and
    Adam's count of the steps that were taken."""
    case = Case("GPT-2 tied", "Adam", Layout((2, 1, 2), "interleaved", (1, 0, 0, 1), 3, 2, True))
    after = Layout((1, 3, 2), "1f1b", (1, 1), 0, 3, False)
    options = {"clip": 0.5, "scale": SCALE}
    scales = [2.0**10, 2.0**10, 2.0**11, 2.0**10, 2.0**10]
    with monkeypatch.context() as patch:
        in_gradients(patch, (0, 0, 0), "embedding", 2, np.inf)
        first = case.run(steps=split, folder=tmp_path, **options)
    with monkeypatch.context() as patch:
        in_gradients(patch, (0, 0, 0), "embedding", 2 - split, np.inf)
        then = case.run(after, folder=tmp_path, **options)
    assert [*first.scales, *then.scales] == scales
    case.assert_single(then, overflows=(2,), **options)


# -- on workers ------------------------------------------------------------------------------------


@pytest.mark.few(1)
@pytest.mark.cluster
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_workers_do_what_threads_do_to_the_bit(cluster, dtype, tmp_path):
    """Halves as they travel between processes and lie in a checkpoint; steps that are left out."""
    case = Case("Llama tied", "AdamW", Layout((2, 1, 2), "1f1b", (2, 1), 3, 2, False))
    scale = LossScale(2.0**24, backoff=2.0**-12) if dtype == "float16" else None
    options = {"dtype": dtype, "clip": 0.5, "scale": scale}
    threads = case.run(**options)
    assert threads.skipped == ([0] if scale else [])
    mesh = td.Mesh(cluster, case.layout.shape)
    before = case.run(ranks=mesh, steps=2, folder=tmp_path, **options)
    workers = case.run(ranks=mesh, folder=tmp_path, **options)
    assert [*before.losses, *workers.losses] == threads.losses.tolist()
    assert [*before.scales, *workers.scales] == threads.scales.tolist()
    norms = np.concatenate([before.norms, workers.norms])
    assert np.array_equal(norms, threads.norms, equal_nan=True)  # of an overflow: NaN
    for name, w in threads.weights.items():
        assert w.tobytes() == workers.weights[name].tobytes(), name
