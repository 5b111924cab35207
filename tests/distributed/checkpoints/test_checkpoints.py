"""Checkpoints: saved under one layout, read under another, bit for bit; killed, cut and damaged."""

import json
import shutil
from functools import reduce
from itertools import product
from math import prod
from operator import getitem
from pathlib import Path
from zipfile import ZipFile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from twins.mutants import mutant

from tiledask.distributed.checkpoints import (
    TensorSlice,
    open_checkpoint,
    save_checkpoint,
    steps_in,
    whole,
)
from tiledask.distributed.ranks.threads import run_threads
from tiledask.distributed.training import GPT
from tiledask.errors import CheckpointError
from tiledask.plan.intervals import even
from tiledask.tile.backend import as_dtype

MODEL = GPT(13, hidden=12, layers=3, heads=6, sequence=4, kv_heads=3, ffn=11)
LONG = {"w": np.arange(3000.0)}
DTYPES = ("float16", "bfloat16", "float32", "float64", "int64")


def layout(dp, tp, pp):
    """The pieces that each rank of a (dp, tp, pp) mesh holds: of a model, and a single number."""
    held = []
    for _, t, p in product(range(dp), range(tp), range(pp)):
        units = MODEL.stage_units(p, even(MODEL.layers, pp))
        named = ((unit, MODEL.tilings(unit, tp).items()) for unit in units)
        pieces = {f"{u}.{n}": tiling.slice((t,)) for u, of in named for n, tiling in of}
        held.append(pieces | ({} if p else {"step count": whole(())}))
    return held


def drawn(seed):
    rng, (pieces,) = np.random.default_rng(seed), layout(1, 1, 1)
    return {
        name: (rng.standard_normal(piece.shape) * 100).astype(as_dtype(DTYPES[i % len(DTYPES)]))
        for i, (name, piece) in enumerate(pieces.items())
    }


def local(array, piece):
    """What ``piece`` says of ``array``, by indices and not by boxes."""
    at = [np.array([i for span in p for i in range(*span)], int) for p in piece.parts]
    return array[np.ix_(*at)] if at else array


def save(folder, step, arrays, held, **about):
    mine = [{name: local(arrays[name], piece) for name, piece in each.items()} for each in held]

    def program(rank, pieces, arrays):
        return save_checkpoint(rank, folder, step, arrays[rank.index], pieces[rank.index], about)

    return run_threads(program, len(held), held, mine, timeout=240)


MESHES = [mesh for mesh in product(range(1, 8), repeat=3) if prod(mesh) <= 8 and mesh[2] <= 3]
sizes = st.sampled_from(MESHES)  # dp, tp and pp


@settings(max_examples=6, deadline=None)
@given(sizes, sizes, st.integers(0, 99))
def test_any_layout_is_read_under_any_other(tmp_path_factory, a, b, seed):
    folder, arrays = tmp_path_factory.mktemp("c"), drawn(seed)
    save(folder, seed, arrays, layout(*a), note="x")
    saved = open_checkpoint(folder)
    assert (saved.step, saved.about()) == (seed, {"note": "x"})
    named = {name: (each.shape, each.dtype) for name, each in saved.arrays.items()}
    assert named == {name: (x.shape, x.dtype.name) for name, x in arrays.items()}
    for pieces in layout(*b):
        read = saved.read(pieces)
        assert list(read) == list(pieces)
        for name, array in read.items():
            expected = local(arrays[name], pieces[name])
            assert (array.dtype, array.shape) == (expected.dtype, expected.shape)
            assert array.tobytes() == expected.tobytes()


def test_replicas_share_the_writing(tmp_path):
    arrays = {f"w{i}": np.full((64, 64), i, np.float32) for i in range(8)}
    save(tmp_path, 0, arrays, [{name: whole(a.shape) for name, a in arrays.items()}] * 4)
    saved = open_checkpoint(tmp_path).arrays.values()
    assert sorted(part.rank for s in saved for part in s.parts) == [0, 0, 1, 1, 2, 2, 3, 3]


@pytest.mark.parametrize("at", ["_write_boxes", "sync", "os.rename"])
def test_a_save_that_breaks_off_leaves_the_former_one(tmp_path, monkeypatch, at):
    arrays, held = drawn(0), layout(1, 2, 1)
    save(tmp_path, 1, arrays, held)

    with monkeypatch.context() as patch:
        patch.setattr(f"tiledask.distributed.checkpoints.write.{at}", lambda *args: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            save(tmp_path, 2, drawn(1), held)
    assert steps_in(tmp_path) == (1,)
    assert (open_checkpoint(tmp_path).read()["embedding.table"] == arrays["embedding.table"]).all()
    with pytest.raises(CheckpointError, match=r"step 2 in .*: it has steps 1$"):
        open_checkpoint(tmp_path, 2)
    save(tmp_path, 2, drawn(1), held)  # what was left behind is in nobody's way
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000001", "step-00000002"]


def rewritten(folder, at, value):
    """The index in ``folder`` says ``value`` there."""
    (path,) = folder.glob("*/index.zip")
    with ZipFile(path) as file:
        index = json.loads(file.read("index.json"))
    *inside, last = at
    reduce(getitem, inside, index)[last] = value
    with ZipFile(path, "w") as file:
        file.writestr("index.json", json.dumps(index))


W, PART = ("arrays", "w"), ("arrays", "w", 2, 0)


@pytest.mark.parametrize(
    ("at", "value", "words"),
    [
        *(((*PART, 0), rank, "cannot be read") for rank in ("/../../outside", 1, "a\0b", -1)),
        ((*PART, 1), [[0, 2000]], "no rank holds"),
        ((*W, 0), [500_000_000_000], "no rank holds"),
        ((*W, 1), "complex128", "cannot be read"),
        (("step",), 6, "step 6"),
    ],
)
def test_nothing_outside_of_its_folder_is_read_and_no_more_than_was_written(
    tmp_path, at, value, words
):
    save(tmp_path, 5, LONG, [{"w": whole((3000,))}])
    (path,) = tmp_path.glob("*/rank-0.zip")
    shutil.copy(path, tmp_path / "outside.zip")
    path.with_name("rank-1.zip").symlink_to("../outside.zip")
    rewritten(tmp_path, at, value)
    with pytest.raises(CheckpointError, match=words):
        open_checkpoint(tmp_path).read()


def test_no_damage_is_accepted_that_changes_a_number(tmp_path):
    rng, refused = np.random.default_rng(4), 0
    arrays = {"w": rng.standard_normal((40, 30)), "b": rng.standard_normal(7).astype("f4")}
    save(tmp_path / "whole", 5, arrays, [{name: whole(a.shape) for name, a in arrays.items()}])
    for i in range(60):
        folder = Path(shutil.copytree(tmp_path / "whole", tmp_path / str(i)))
        files = sorted(folder.glob("*/*"))
        file = files[rng.integers(len(files))]
        before = file.read_bytes()
        if i % 8:
            file.write_bytes(mutant(before, i))
        else:
            file.unlink()
        changed = not i % 8 or file.read_bytes() != before
        try:
            read = open_checkpoint(folder).read()
        except CheckpointError:
            refused += 1
            assert changed
        else:
            bits, right = ({n: a.tobytes() for n, a in each.items()} for each in (read, arrays))
            assert bits == right
    assert refused > 40


def test_a_full_disk_is_said(tmp_path, small_disk):
    w = np.random.default_rng(0).standard_normal(2**19 + 2**10)  # the disk has 4 MiB
    words = r"zip cannot be written on .*: No space left"
    with pytest.raises(CheckpointError, match=words):
        save(small_disk, 1, {"w": w}, [{"w": whole(w.shape)}])
    assert steps_in(small_disk) == ()
    save(small_disk, 1, {"w": w[:1000]}, [{"w": whole((1000,))}])
    assert open_checkpoint(small_disk).read()["w"].tobytes() == w[:1000].tobytes()


def test_what_is_not_there_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match=r"is not a checkpoint in .*: it has none"):
        open_checkpoint(tmp_path)
    save(tmp_path, 5, LONG, [{"w": whole((3000,))}])
    saved = open_checkpoint(tmp_path)
    with pytest.raises(CheckpointError, match=r"has no array 'W'; \.arrays lists"):
        saved.read({"W": whole((3,))})
    with pytest.raises(CheckpointError, match=r"is \[3000\], the piece is of .*\[3\]"):
        saved.read({"w": whole((3,))})


RIGHT, HALF = {"w": whole((4,))}, {"w": TensorSlice((8,), (((0, 4),),))}


@pytest.mark.parametrize(
    ("held", "about", "words"),
    [
        ([HALF, HALF], {}, r"no rank holds \(\(4, 8\),\) of 'w'"),
        ([RIGHT, HALF], {}, r"float64 \[4\] on one rank and float64 \[8\] on rank 1"),
        ([{"w": whole((2,))}] * 2, {}, r"arrays are {'w': \(4,\)}, their pieces {'w': \(2,\)}"),
        ([RIGHT | {"b": whole((1,))}] * 2, {}, "their pieces {.*'b'"),
        ([RIGHT] * 2, {"x": np.zeros(1)}, "not JSON serializable"),
    ],
)
def test_all_ranks_hear_why_it_cannot_be_saved(tmp_path, held, about, words):
    def saving(rank, held, about):
        save_checkpoint(rank, tmp_path, 0, {"w": np.zeros(4)}, held[rank.index], about)

    with pytest.raises((CheckpointError, TypeError), match=words):
        run_threads(saving, 2, held, about, timeout=240)
    assert steps_in(tmp_path) == ()
    run_threads(saving, 2, [RIGHT] * 2, {}, timeout=240)
    with pytest.raises(CheckpointError, match="is there already; remove it"):
        run_threads(saving, 2, [RIGHT] * 2, {}, timeout=240)
