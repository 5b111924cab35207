"""Weights gathered for an action, a phase, the step or the next stages: the same training, less
or more traffic, more or less memory; counted and measured.
"""

import numpy as np
import pytest
from oracles.single_gpt import TEXT, assert_single

import tiledask as td
from tiledask.distributed.training import GPT, train
from tiledask.distributed.training.asked import training_program
from tiledask.errors import ConfigError, ProgramError
from tiledask.plan.pipelines.schedule import Schedule
from tiledask.plan.program.instructions import AllGather, Drop, ReduceScatter
from tiledask.tile.optimizers import SGD, Adam

pytestmark = pytest.mark.usefixtures("one_thread")

DEEP = GPT(59, hidden=16, layers=4, heads=4, sequence=8)
GATED = GPT(59, 16, 4, 4, 8, kv_heads=1, gated=True)
TIED = GPT(59, 16, 4, 4, 8, kv_heads=1, gated=True, tied=True)
RULE = SGD(0.1, momentum=0.9)
KEEPS = ("action", "phase", "step", 1)


def trained(model, shape, **options):
    options = {
        "steps": 2,
        "batch": 8,
        "rule": RULE,
        "dtype": "float64",
        "progress": False,
    } | options
    return train(model, TEXT, shape, **options)


def same(one, other):
    return np.array_equal(one.losses, other.losses) and all(
        np.array_equal(one.weights[name], other.weights[name]) for name in other.weights
    )


@pytest.mark.long
@pytest.mark.few(2)
@pytest.mark.parametrize("model", [DEEP, TIED], ids=["GPT-2", "Llama tied"])
@pytest.mark.parametrize("shape", [(2, 1, 2), (2, 2, 1), (3, 1, 1)], ids=str)
def test_every_policy_trains_what_one_device_does(shape, model):
    """To the bit what ZeRO 1 does on these ranks, which never shares weights out: gradients are
    added up in the same order. And bytes are what the closed forms say, call by call."""
    micro = {"microbatches": 4}
    whole = trained(model, shape, zero=1, **micro)
    for keep in KEEPS:
        got = trained(model, shape, zero=3, unshard=keep, **micro)
        assert_single(got, 8, RULE)
        if shape[0] == 2 and not model.tied:  # of three summands the order matters
            assert same(got, whole), keep


@pytest.mark.long
@pytest.mark.few(3)
@pytest.mark.parametrize(
    "name", ["gpipe", "zb-h1", "interleaved", "looped-bfs", "zb-v", "dualpipev"]
)
def test_every_kind_of_schedule(name):
    looped = {"devices": 2} if name in ("interleaved", "looped-bfs") else {}
    order = td.schedule(name, 2 if name in ("gpipe", "zb-h1") else 4, 4, **looped)
    usual = trained(GATED, (2, 1, 2), zero=1, schedule=order)
    for keep in (1, 2, "action"):
        got = trained(GATED, (2, 1, 2), zero=3, schedule=order, unshard=keep)
        assert same(got, usual), (name, keep)


@pytest.mark.long
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_gradients_reduced_in_every_backward_are_the_usual_training(dtype):
    """Weights alone by the schedule: to the bit ZeRO 3 as it always was."""
    options = {"dtype": dtype, "zero": 3, "clip": 1.0, "recompute": True, "rule": Adam(1e-2)}
    usual = trained(DEEP, (2, 1, 2), microbatches=4, **options)
    order = td.shard_weights(td.schedule("1f1b", 2, 4), "phase", reduce="action")
    assert same(trained(DEEP, (2, 1, 2), schedule=order, **options), usual)


def test_bytes_are_gathers_times_weights():
    """The closed form: each gather of a stage moves (dp - 1) times its weights, each sum over the
    copies (dp - 1) times its gradients."""
    usual, sizes = training_program(DEEP, (2, 1, 2), batch=8, microbatches=4, zero=3), {}
    order = td.schedule("1f1b", 2, 4)
    for keep, gathers in (("action", 8), ("phase", None), ("step", 1)):
        kept = td.shard_weights(order, keep)
        often = [sum(str(a) == f"{s}UNSHARD" for a in kept.lines[s]) for s in range(2)]
        assert gathers in (None, *often)
        program = training_program(DEEP, (2, 1, 2), batch=8, zero=3, schedule=kept)
        over_dp = program.traffic.bytes[[0, 1], [2, 3]] + program.traffic.bytes[[2, 3], [0, 1]]
        for s in range(2):
            units = DEEP.stage_units(s, (2, 2))
            whole = 4 * sum(np.prod(p.shape) for u in units for p in DEEP.parameters(u).values())
            assert over_dp[s] == (often[s] + 1) * whole
        sizes[keep] = program.traffic.bytes.sum()
    assert sizes["step"] < sizes["phase"] < sizes["action"] < usual.traffic.bytes.sum()


def test_weights_are_whole_from_their_gather_to_their_drop():
    """Of the arrays of a run, and of what the program says it holds: one stage less at a time."""
    order, options = td.schedule("looped-bfs", 4, 2, devices=2), {"batch": 8, "zero": 3}
    peaks = []
    for keep in (1, 2):
        program = training_program(DEEP, (2, 1, 2), schedule=order, unshard=keep, **options)
        peaks.append([program.memory.per_place[r] for r in range(4)])
        role = program.role(0)
        assert all(name.startswith(("whole_weights/", "whole_grad")) for name in role.shared)
    smaller = np.array(peaks[1]) - np.array(peaks[0])
    assert (smaller > 0).all()
    parameters = [p for u in DEEP.stage_units(0, (1, 1, 1, 1)) for p in DEEP.parameters(u).values()]
    assert smaller[0] == 4 * sum(np.prod(p.shape) for p in parameters)  # stage 0, beside stage 2


def test_nothing_stays_gathered_while_it_runs(monkeypatch):
    """Behind every drop the arrays are gone, in every frame under way."""
    from tiledask.distributed.programs.runner import LineRunner

    honest, seen = LineRunner._share, []

    def looked(self, slots, values):
        honest(self, slots, values)
        if values[0] is None:
            seen.append(all(env[s] is None for env in self._frames.values() for s in slots))

    monkeypatch.setattr(LineRunner, "_share", looked)
    trained(DEEP, (2, 1, 2), zero=3, unshard="phase", microbatches=4, steps=1)
    assert len(seen) > 8
    assert all(seen)


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (AllGather, "whole_weights/.* is read and is not there"),
        (ReduceScatter, "read and was not written before|is left over"),
        (Drop, "is left over|there and made anew"),
    ],
)
def test_an_instruction_left_out_is_refused(kind, words):
    """Planted: each of a gather, a sum over the copies and a drop, on all ranks alike."""
    from dataclasses import replace

    program = training_program(DEEP, (2, 1, 2), batch=8, microbatches=4, zero=3, unshard="phase")
    tried = 0
    for number, role in enumerate(program.roles):
        for n, part in enumerate(role.parts):
            for at, each in enumerate(part.instructions):
                if type(each) is kind and part.stage >= 0:
                    rest = part.instructions[:at] + part.instructions[at + 1 :]
                    parts = list(role.parts)
                    parts[n] = replace(part, instructions=rest)
                    roles = list(program.roles)
                    roles[number] = replace(role, parts=tuple(parts))
                    with pytest.raises(ProgramError, match=rf"{words}|leaves out|differ"):
                        replace(program, roles=tuple(roles)).check()
                    tried += 1
    assert tried >= 7


@pytest.mark.long
def test_refuses_what_does_not_go_together():
    for zero in (0, 1, 2):
        with pytest.raises(ConfigError, match=f"where ZeRO 3 shards them, and zero is {zero}"):
            trained(DEEP, (2, 1, 2), zero=zero, unshard="step", microbatches=2)
    said = Schedule.from_text("0UNSHARD,0F0,0B0,0RESHARD;1UNSHARD,1F0,1B0,1RESHARD")
    with pytest.raises(ConfigError, match="leave unshard= out"):
        trained(DEEP, (2, 1, 2), schedule=said)
    alone = trained(DEEP, (1, 1, 2), zero=3, unshard="step", microbatches=2)  # nothing to gather
    assert_single(alone, 8, RULE)


@pytest.mark.long
@pytest.mark.cluster
def test_on_workers():
    with td.start_cluster(workers=4, device="cpu", quiet=True) as cluster:
        mesh = td.Mesh(cluster, (2, 1, 2))
        got = trained(TIED, mesh, zero=3, unshard=1, microbatches=4, timeout=120.0)
        assert_single(got, 8, RULE)
