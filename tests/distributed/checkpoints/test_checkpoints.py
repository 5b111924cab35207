"""Checkpoints: saved under one layout, read under another, bit for bit; killed, cut and damaged.

Holds `tiledask.distributed.checkpoints.index`, `tiledask.distributed.checkpoints.read` and
`tiledask.distributed.checkpoints.write`.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import tracemalloc
import zlib
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from twins.damage import KINDS_OF_DAMAGE, damage

from tiledask.distributed.checkpoints import (
    TensorSlice,
    open_checkpoint,
    save_checkpoint,
    steps_in,
    whole,
)
from tiledask.distributed.checkpoints import index as index_room
from tiledask.distributed.ranks.threads import run_threads
from tiledask.errors import CheckpointError
from tiledask.plan.collectives.shards import deal_heads, side_by_side
from tiledask.plan.products.placement import Shard, Tiling, even_shards
from tiledask.tile.backend import as_dtype

HEADS, KV, WIDTH, INNER, HIDDEN, VOCABULARY, LAYERS = 6, 3, 2, 11, 5, 13, 3
LAYER = {
    "wqkv": (HIDDEN, (HEADS + 2 * KV) * WIDTH),
    "wo": (HEADS * WIDTH, HIDDEN),
    "w_1": (HIDDEN, INNER),
    "norm": (HIDDEN,),
    "conv": (3, 2, 3, 3),
}
SHAPES = {"table": (VOCABULARY, HIDDEN), "step count": ()} | {
    f"layer {n}.{name}": shape for n in range(LAYERS) for name, shape in LAYER.items()
}
DTYPES = ("float16", "bfloat16", "float32", "float64", "int64")


def sharded(shape, dim, shards, rank):
    return Tiling(shape, (shards.ranks,), (Shard(dim, shards),)).slice((rank,))


def layout(dp, tp, pp):
    """The pieces that each rank of a (dp, tp, pp) mesh holds."""
    q, kv = (each.scaled(WIDTH) for each in deal_heads(HEADS, KV, tp))
    cuts = {
        "table": (0, even_shards(VOCABULARY, tp)),
        "wqkv": (1, side_by_side(q, kv, kv)),
        "wo": (0, q),
        "w_1": (1, even_shards(INNER, tp)),
        "conv": (2, even_shards(3, tp)),
    }
    held = []
    for _, t, p in product(range(dp), range(tp), range(pp)):
        stages = [range(LAYERS)[i * LAYERS // pp : (i + 1) * LAYERS // pp] for i in range(pp)]
        mine = {f"layer {n}" for n in stages[p]} | ({"table", "step count"} if p == 0 else set())
        pieces = {}
        for name, shape in SHAPES.items():
            owner, _, kind = name.rpartition(".")
            if (owner or kind) in mine:
                cut = cuts.get(kind)
                pieces[name] = sharded(shape, *cut, t) if cut else whole(shape)
        held.append(pieces)
    return held


def drawn(seed):
    rng = np.random.default_rng(seed)
    return {
        name: (rng.standard_normal(shape) * 100).astype(as_dtype(DTYPES[i % len(DTYPES)]))
        for i, (name, shape) in enumerate(SHAPES.items())
    }


def local(array, piece):
    """What ``piece`` says of ``array``, by indices and not by boxes."""
    at = [
        np.concatenate([np.arange(0), *map(np.arange, *zip(*p, strict=True))]) if p else []
        for p in piece.parts
    ]
    return array[np.ix_(*[np.asarray(i, int) for i in at])] if at else array


def save(folder, step, arrays, held, **about):
    mine = [{name: local(arrays[name], piece) for name, piece in each.items()} for each in held]

    def program(rank, pieces, arrays):
        return save_checkpoint(rank, folder, step, arrays[rank.index], pieces[rank.index], about)

    return run_threads(program, len(held), held, mine, timeout=240)


MESHES = "111 211 121 112 231 132 222 161 411 114 312 171"  # dp, tp and pp of each
sizes = st.sampled_from([tuple(map(int, mesh)) for mesh in MESHES.split()])


@settings(max_examples=6, deadline=None)
@given(sizes, sizes, st.integers(0, 99))
def test_any_layout_is_read_under_any_other(tmp_path_factory, a, b, seed):
    folder, arrays = tmp_path_factory.mktemp("c"), drawn(seed)
    save(folder, seed, arrays, layout(*a), note="x")
    saved = open_checkpoint(folder)
    assert (saved.step, saved.about) == (seed, {"note": "x"})
    assert {n: (s.shape, s.dtype) for n, s in saved.arrays.items()} == {
        n: (x.shape, x.dtype.name) for n, x in arrays.items()
    }
    for pieces in layout(*b):
        read = saved.read(pieces)
        assert list(read) == list(pieces)
        for name, array in read.items():
            expected = local(arrays[name], pieces[name])
            assert array.dtype == expected.dtype
            assert array.shape == expected.shape
            assert array.tobytes() == expected.tobytes()


def test_replicas_share_the_writing(tmp_path):
    arrays = {f"w{i}": np.full((64, 64), i, np.float32) for i in range(8)}
    held = [{name: whole(a.shape) for name, a in arrays.items()}] * 4
    save(tmp_path, 0, arrays, held)
    parts = [part.file for s in open_checkpoint(tmp_path).arrays.values() for part in s.parts]
    assert sorted(parts) == sorted(f"rank-{rank}.bin" for rank in range(4) for _ in range(2))
    assert [p.stat().st_size for p in tmp_path.glob("*/*.bin")] == [2 * 64 * 64 * 4] * 4


class PowerCutError(Exception):
    pass


@pytest.mark.parametrize("at", ["_write_boxes", "write_index", "rename"])
def test_a_save_that_breaks_off_leaves_the_former_one(tmp_path, monkeypatch, at):
    from tiledask.distributed.checkpoints import write

    arrays, held = drawn(0), layout(1, 2, 1)
    save(tmp_path, 1, arrays, held)

    def cut(*args):
        raise PowerCutError

    with monkeypatch.context() as patch:
        patch.setattr(write.os if at == "rename" else write, at, cut)
        with pytest.raises(PowerCutError):
            save(tmp_path, 2, drawn(1), held)
    assert steps_in(tmp_path) == (1,)
    assert (open_checkpoint(tmp_path).read()["table"] == arrays["table"]).all()
    with pytest.raises(CheckpointError, match=r"step 2 in .*: it has steps 1, and step-00000002"):
        open_checkpoint(tmp_path, 2)
    save(tmp_path, 2, drawn(1), held)  # what was left behind is in nobody's way
    assert open_checkpoint(tmp_path).step == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000001", "step-00000002"]


ENDLESS = """
import sys, numpy as np
from itertools import count
from tiledask.distributed.checkpoints import save_checkpoint
from tiledask.distributed.ranks.threads import run_threads

def program(rank):
    for step in count():
        arrays = {f"w{i}.{rank.index}": np.full(100_000, step) for i in range(20)}
        save_checkpoint(rank, sys.argv[1], step, arrays)
        if rank.index == 0:
            print(step, flush=True)

run_threads(program, 2)
"""


def test_a_process_killed_while_saving_leaves_whole_checkpoints(tmp_path):
    done = subprocess.Popen(
        [sys.executable, "-c", ENDLESS, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert done.stdout.readline() == "0\n"
        deadline = time.monotonic() + 240
        while not any(len(list(p.iterdir())) > 0 for p in tmp_path.glob("*.unfinished")):
            assert time.monotonic() < deadline, "no save was seen under way"
            assert done.poll() is None
    except FileNotFoundError:  # renamed while it was listed: then this very moment will do
        pass
    finally:
        os.kill(done.pid, signal.SIGKILL)
        done.wait(240)
        done.stdout.close()
    saved = open_checkpoint(tmp_path)
    assert all((array == saved.step).all() for array in saved.read().values())
    assert len(saved.arrays) == 40
    assert all(open_checkpoint(tmp_path, step).read() for step in steps_in(tmp_path))


def one(tmp_path):
    save(tmp_path, 5, {"w": np.arange(300_000.0)}, [{"w": whole((300_000,))}])
    (path,) = tmp_path.glob("*/*.bin")
    return path


def rewritten(folder, change):
    """The index in ``folder``, once ``change`` was made to it and its checksum is right again."""
    (path,) = Path(folder).glob("*/index.json")
    given = json.loads(path.read_text())["index"]
    before = json.dumps(given)
    change(given)
    text = index_room._canonical(given)
    path.write_text(f'{{"crc32": {zlib.crc32(text.encode())}, "index": {text}}}\n')
    return before != json.dumps(given)


@pytest.mark.parametrize("rank", ["/../../outside", 1, "a\0b", -1, None])
def test_nothing_outside_of_its_folder_is_read(tmp_path, rank):
    path = one(tmp_path)
    outside = path.parent.parent / "outside.bin"
    shutil.copy(path, outside)
    path.with_name("rank-1.bin").symlink_to("../outside.bin")
    rewritten(tmp_path, lambda index: index["arrays"]["w"]["parts"][0].__setitem__(0, rank))
    with pytest.raises(CheckpointError, match="not of what is beside it"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("shape", [500_000_000_000], "no rank holds"),
        ("shape", [0, 2**62, 2**62], "not of what is beside it"),
        ("dtype", "object", "dtype"),
        ("dtype", "complex128", "2400000 bytes and 'w' needs 4800000"),
        ("parts", [], "no rank holds"),
    ],
)
def test_shapes_are_no_larger_than_the_files(tmp_path, key, value, words):
    one(tmp_path)
    rewritten(tmp_path, lambda index: index["arrays"]["w"].__setitem__(key, value))
    tracemalloc.start()
    with pytest.raises(CheckpointError, match=words):
        open_checkpoint(tmp_path)
    assert tracemalloc.get_traced_memory()[1] < 10**6
    tracemalloc.stop()


def test_no_damage_is_accepted_that_changes_a_number(tmp_path):
    rng = np.random.default_rng(4)
    arrays = {"w": rng.standard_normal((40, 30)), "b": rng.standard_normal(7).astype("f4")}
    save(tmp_path / "whole", 5, arrays, [{name: whole(a.shape) for name, a in arrays.items()}])
    refused = 0
    for i in range(60):
        folder = Path(shutil.copytree(tmp_path / "whole", tmp_path / str(i)))
        files = sorted(folder.glob("*/*"))
        changed = damage(files[rng.integers(len(files))], KINDS_OF_DAMAGE[i % 8], rng)
        try:
            read = open_checkpoint(folder).read()
        except CheckpointError:
            refused += 1
            assert changed
            continue
        assert set(read) == set(arrays)
        assert all(read[name].tobytes() == arrays[name].tobytes() for name in read)
    assert refused > 40


def test_a_full_disk_is_said(tmp_path, small_disk):
    w = np.random.default_rng(0).standard_normal(2**19 + 2**10)  # the disk has 4 MiB
    with pytest.raises(
        CheckpointError, match=r"bin cannot be written: its disk is full: 4\.202 MB"
    ):
        save(small_disk, 1, {"w": w}, [{"w": whole(w.shape)}])
    assert steps_in(small_disk) == ()
    save(small_disk, 1, {"w": w[:1000]}, [{"w": whole((1000,))}])
    assert open_checkpoint(small_disk).read()["w"].tobytes() == w[:1000].tobytes()


def test_a_later_format_is_refused(tmp_path, monkeypatch):
    with monkeypatch.context() as later:
        later.setattr(index_room, "FORMAT", 4)
        one(tmp_path)
    with pytest.raises(CheckpointError, match="has format 4, this version reads 3"):
        open_checkpoint(tmp_path)


def test_what_is_not_there_is_said(tmp_path):
    with pytest.raises(CheckpointError, match=r"is not a checkpoint in .*: it has none"):
        open_checkpoint(tmp_path / "nowhere")
    one(tmp_path)
    saved = open_checkpoint(tmp_path)
    with pytest.raises(CheckpointError, match=r"has no array 'W'; \.arrays lists"):
        saved.read({"W": whole((3,))})
    with pytest.raises(CheckpointError, match=r"'w' of .* is \[300000\], the piece is of .*\[3\]"):
        saved.read({"w": whole((3,))})
    assert repr(saved).startswith("Checkpoint(step 5, 1 arrays, 2.4 MB")


def test_all_ranks_hear_why_it_cannot_be_saved(tmp_path):
    w = {"w": np.zeros(4)}

    def saving(held, about=None):
        def program(rank):
            return save_checkpoint(rank, tmp_path, 0, w, held[rank.index], about)

        return run_threads(program, 2, timeout=240)

    right, half = {"w": whole((4,))}, {"w": TensorSlice((8,), (((0, 4),),))}
    for held, about, words in (
        ([half, half], None, r"no rank holds \(\(4, 8\),\) of 'w', which is \[8\]"),
        ([right, half], None, r"float64 \[4\] on rank 0 and float64 \[8\] on rank"),
        ([{"w": whole((2,))}] * 2, None, r"array of \[4\], and its piece says \[2\] of \[2\]"),
        ([right | {"b": whole((1,))}] * 2, None, "'b' is on one side only"),
        ([right] * 2, {"x": np.zeros(1)}, "goes into the index as JSON"),
    ):
        with pytest.raises(CheckpointError, match=words):
            saving(held, about)
        assert steps_in(tmp_path) == ()
    saving([right] * 2)
    with pytest.raises(CheckpointError, match="is there already; a step is saved once"):
        saving([right] * 2)


@pytest.mark.parametrize("boxes", [(((2, 5),),), ()])
def test_pieces_lie_inside(boxes):
    with pytest.raises(CheckpointError, match="start < stop inside it"):
        TensorSlice((4,), boxes)
