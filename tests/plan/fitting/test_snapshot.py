"""torch's memory snapshot beside the ledger: what is larger is named, and nothing is called.

The snapshots are made here, as torch's docstring of ``torch.cuda.memory._snapshot`` describes them.
"""

import gzip
import json
import os
import pickle

import pytest

import tiledask as td
from tiledask.cli import main
from tiledask.errors import ConfigError
from tiledask.plan.fitting.snapshot import REST, beside_snapshot, read_snapshot

MODEL = td.Model(
    hidden=640, layers=4, heads=8, kv_heads=4, ffn=1800, vocab=8000, mlp="swiglu", norm="rmsnorm",
    qkv_bias=False, out_bias=False, mlp_bias=False, tied=False,
)  # fmt: skip
LAYOUT = td.Layout(microbatch=3, microbatches=2, flash_attention=True)
H, F, V, KV = 640, 1800, 8000, 320
TENSORS = [V * H, V * H, *[H * H, H * KV, H * KV, H * H, F * H, F * H, F * H] * 4]
FUSED = [V * H, V * H, *[H * H + 2 * H * KV, H * H, 2 * F * H, F * H] * 4]
NORMS = [H] * 9


def states(widths, tensors=TENSORS):
    return [n * width for width in widths for n in [*tensors, *NORMS]]


MIXED = (2, 2, 4, 4, 4)
"""Weights, gradients, master weights, momentum, variance."""


def segment(address, size, requested, state):
    block = {"size": size, "requested_size": requested, "state": state, "frames": []}
    held = size if requested else 0
    about = {"device": 0, "stream": 0, "segment_type": "large", "segment_pool_id": (0, 0)}
    about |= {"active_size": held, "allocated_size": held, "total_size": size}
    return about | {"address": address, "blocks": [block | {"address": address}]}


def snapshot(sizes, freed=(), oom=0, free=0):
    """Blocks of these sizes, each in a segment of its own rounded up to 512; a history in which
    those in ``freed`` were there after the others, and went. torch's own _memory_viz reads it."""
    segments, trace, address = [], [], 1 << 20

    def event(action, size, **more):
        trace.append({"action": action, "size": size, "stream": 0, "frames": [], **more})

    for size in sizes:
        whole = -(-size // 512) * 512
        segments.append(segment(address, whole, size, "active_allocated"))
        event("alloc", size, addr=address)
        address += whole
    for action in ("alloc", "free_requested", "free_completed"):
        for n, size in enumerate(freed):
            event(action, size, addr=address + n)
    if oom:
        event("oom", oom, device_free=0)
    if free:
        segments.append(segment(address, free, 0, "inactive"))
    return {"segments": segments, "device_traces": [trace]}


@pytest.fixture
def beside(tmp_path):
    def compare(data, recipe="mixed-adam-16", layout=LAYOUT, name="snap.pickle", model=MODEL):
        path = tmp_path / name
        packed = gzip.compress if name.endswith(".gz") else bytes
        path.write_bytes(packed(pickle.dumps(data)))
        memory = td.estimate_memory(model, layout, recipe, sequence=200)
        return beside_snapshot(memory, path)

    return compare


SMALL = 9 * H * sum(MIXED)
"""Bytes of norms, of which sizes say nothing."""


@pytest.mark.parametrize("tensors", [TENSORS, FUSED], ids=["apart", "fused"])
@pytest.mark.parametrize("name", ["snap.pickle", "snap.pickle.gz"])
def test_what_is_as_predicted_is_found_so(beside, tensors, name):
    rows = {n: rest for n, *rest in beside(snapshot(states(MIXED, tensors)), name=name).rows}
    assert list(rows)[:2] == ["weights, gradients", "master weights, momentum, variance"]
    p = MODEL.parameters
    assert rows["weights, gradients"][0] == 4 * p
    assert sum(there for _, there in rows.values()) - rows["cached, and held by nobody"][1] == sum(
        states(MIXED, tensors)
    )
    assert rows[REST][1] == SMALL
    assert rows["master weights, momentum, variance"] == [12 * p, 12 * p - 9 * H * 12]


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        (states((2, 4, 4, 4, 4)), "master weights, momentum, variance: "),  # gradients in 4 bytes
        (states((*MIXED, 2)), "weights, gradients: "),  # a copy of the weights
        ([*states(MIXED), *[3 * 8 * 200 * 200 * 4] * 40], f"{REST}: "),  # scores
    ],
)
def test_the_class_that_is_larger_is_named_with_both_numbers(beside, sizes, words):
    found = beside(snapshot(sizes))
    assert found.why.startswith(words)
    name = words.removesuffix(": ")
    predicted, there = next(row[1:] for row in found.rows if row[0] == name)
    assert found.excess[name] == there - predicted > 0.05 * found.snapshot.active


def test_scores_and_logits_are_told_by_their_sizes(beside):
    scores, logits = 3 * 8 * 200 * 200 * 2, 3 * 200 * V * 4
    said = beside(snapshot([*states(MIXED), *[scores] * 4, logits], oom=10**9)).said
    assert said[0].endswith("in 4 blocks as large as the scores of a layer's attention at 2 B "
                            "(flash attention keeps none)")  # fmt: skip
    assert said[1].endswith("in 1 block as large as the logits of a micro-batch at 4 B")
    assert said[-1] == "1 GB were asked for in vain"


def test_the_fullest_moment_is_looked_for_in_the_history(beside):
    """What was freed before the snapshot was made counts, as if it were there."""
    more = [3 * 200 * V * 4] * 3
    there, gone = snapshot([*states(MIXED), *more]), snapshot(states(MIXED), freed=more)
    assert beside(gone).snapshot.blocks == beside(there).snapshot.blocks
    assert beside(gone).said == beside(there).said


@pytest.mark.parametrize("zero", [1, 3])
def test_shards_are_known_whole_buffers_too(beside, zero):
    """Of 4 copies: states by tensor as FSDP2 cuts them, or one buffer each as Megatron does."""
    layout = td.Layout(dp=4, microbatch=3, zero=zero, flash_attention=True)
    widths = MIXED if zero == 3 else MIXED[2:]
    sizes = [-(-n // 4) * w for w in widths for n in TENSORS]
    sizes += [n * w for w in MIXED[: 5 - len(widths)] for n in TENSORS]
    found = beside(snapshot(sizes), layout=layout).excess
    assert max(abs(found[name]) for name in list(found)[:2]) < 1e-3 * sum(sizes)
    memory = td.estimate_memory(MODEL, layout, sequence=200)
    whole = [memory.ledger.by_tensor(0)[state.tensor] for state in memory.recipe.states]
    found = beside(snapshot(whole), layout=layout).excess
    assert [found[name] for name in list(found)[:2]] == [0, 0]


def test_cached_memory_is_a_class_of_its_own(beside):
    found = beside(snapshot(states(MIXED), free=10**9))
    assert found.why.startswith("cached, and held by nobody: 1")
    assert found.to_dict()["reserved"] - found.to_dict()["active"] == pytest.approx(1e9, rel=1e-3)


def test_a_stage_of_a_pipeline_has_its_own_tensors(tmp_path):
    layout = td.Layout(pp=2, microbatches=4, flash_attention=True)
    fit = td.fits(MODEL, layout, "2xA100-40GB", sequence=200)
    last = states(MIXED, [V * H, *TENSORS[2:16]])
    (tmp_path / "s").write_bytes(pickle.dumps(snapshot(last)))
    found = fit.beside_snapshot(tmp_path / "s", stage=1).excess
    assert max(abs(found[name]) for name in list(found)[:2]) < 1e-3 * sum(last)


class Evil:
    def __reduce__(self):
        return os.system, ("touch ran",)


def damaged(path, data):
    path.write_bytes(data)
    return path


def test_a_pickle_that_calls_something_is_refused_and_nothing_is_called(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = damaged(tmp_path / "evil", pickle.dumps({"segments": [Evil()]}))
    with pytest.raises(ConfigError, match=r"wants to load 'posix'\.'system'; torch's have plain"):
        read_snapshot(path)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"no pickle", "is no pickle that can be read"),
        (b"\x1f\x8bno", "is no pickle that can be read"),
        (pickle.dumps([1]), "is no snapshot of torch's allocator"),
        (pickle.dumps({"segments": [{"blocks": 5}]}), "is no snapshot of torch's allocator"),
        (pickle.dumps({"segments": None}), "is no snapshot of torch's allocator"),
    ],
)
def test_what_is_no_snapshot_says_so(tmp_path, data, words):
    with pytest.raises(ConfigError, match=words):
        read_snapshot(damaged(tmp_path / "s", data))
    with pytest.raises(ConfigError, match="is no file"):
        read_snapshot(tmp_path / "nowhere")


def test_the_command_line_says_what_is_larger(tmp_path, capsys):
    path = damaged(tmp_path / "s", pickle.dumps(snapshot(states(MIXED), free=10**9)))
    code = main(["fit", "gpt2", "1xA100-40GB", "--snapshot", str(path), "--json"])
    answer = json.loads(capsys.readouterr().out)["snapshot"]
    assert code == 0
    assert answer["why"].startswith("cached, and held by nobody: 1")
    assert main(["fit", "gpt2", "1xA100-40GB", "--snapshot", str(path), "--stage", "1"]) == 2
