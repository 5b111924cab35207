"""A rank goes through its line: what it holds is what was said, and errors say where they were."""

import numpy as np
import pytest
from oracles.single_gpt import TEXT

import tiledask as td
from tiledask.distributed.programs.runner import Interpreter
from tiledask.plan.program.ops import buffer_of
from tiledask.tile.layers.by_name import KERNELS

pytestmark = pytest.mark.usefixtures("one_thread")

PLAIN = td.GPT(TEXT.vocabulary, 64, 3, 4, 32)
GATED = td.GPT(TEXT.vocabulary, 64, 3, 4, 32, kv_heads=2, gated=True)


def watched(patch):
    """By rank, the most bytes of arrays that its frames held, while a kernel's operands and
    results are both there."""
    peaks, honest = {}, Interpreter._call

    def owner(array):
        return owner(array.base) if isinstance(array.base, np.ndarray) else array

    def bound(self, op, block):
        call, state = honest(self, op, block), self.role.state

        def measured(env):
            call(env)
            named = [each for env in self._envs.values() for each in env.items()]
            held = [x for name, x in named if buffer_of(name) not in state and hasattr(x, "base")]
            held = sum({id(x): x.nbytes for x in map(owner, held)}.values())
            peaks[self.rank.index] = max(peaks.get(self.rank.index, 0), held)

        return measured

    patch.setattr(Interpreter, "_call", bound)
    return peaks


@pytest.mark.parametrize(
    ("model", "mesh", "options"),
    [
        (GATED, (1, 1, 1), {}),
        (PLAIN, (1, 2, 2), {"microbatches": 4, "sequence_parallel": True}),
        (GATED, (2, 1, 2), {"microbatches": 4, "zero": 3}),
        (PLAIN, (1, 1, 2), {"microbatches": 4, "schedule": "zb-h1"}),
        (PLAIN, (1, 1, 1), {"recompute": True}),
    ],
    ids=str,
)
def test_what_is_held_is_what_the_program_said(monkeypatch, model, mesh, options):
    """Arrays that are really there, views by what they keep alive; tokens may be narrower."""
    peaks = watched(monkeypatch)
    run = td.train(model, TEXT, mesh, steps=1, batch=8, progress=False, **options)
    for rank, peak in peaks.items():
        stays = run.program.role(rank).state
        rows = (row for row in run.program.memory.rows if row.place == rank)
        said = sum(row.bytes for row in rows if row.tensor not in stays)
        assert peak <= said
        assert peak == pytest.approx(said, rel=0.002)


def test_an_error_says_at_which_instruction_it_came(monkeypatch):
    def fails(*_):
        raise FloatingPointError("out of digits")

    monkeypatch.setitem(KERNELS, "gelu", fails)
    with pytest.raises(FloatingPointError) as caught:
        td.train(PLAIN, TEXT, (1, 1, 2), steps=1, batch=2, progress=False)
    notes = "\n".join(caught.value.__notes__)
    assert "in 0F.0 of rank 0: y." in notes
    assert "= do gelu y." in notes
