"""Matrices in files: every region as NumPy would read it, and nothing believed unchecked.

Holds `tiledask.distributed.out_of_core.stored_file`, `tiledask.distributed.out_of_core.stored_npy`
and `tiledask.distributed.out_of_core.stored_zarr`.
"""

import errno
import os
import pickle
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from twins.damage import KINDS_OF_DAMAGE, damage

from tiledask.distributed.out_of_core import stored_npy, stored_zarr
from tiledask.distributed.out_of_core.stored import create_array, describe, open_array, records_of
from tiledask.errors import ConfigError

SHAPE = (23, 17)
KINDS = ("npy-C", "npy-F", "zarr-2", "zarr-3", "zarr-sharded")


def values(shape=SHAPE, dtype="f4", seed=0):
    return np.random.default_rng(seed).integers(-99, 100, shape).astype(dtype)


def store(path, x, kind):
    """The path of ``x``, saved by NumPy or zarr themselves."""
    family, variant = kind.split("-")
    name = str(path / f"x.{family}")
    if family == "npy":
        np.save(name, np.asarray(x, order=variant))
        return name
    more = {"shards": (10, 8)} if variant == "sharded" else {}
    form = 2 if variant == "2" else 3
    array = zarr.create_array(
        name, shape=x.shape, dtype=x.dtype, chunks=(5, 4), zarr_format=form, **more
    )
    array[:] = x
    return name


spans = st.tuples(st.integers(0, 23), st.integers(0, 23)).map(sorted).map(tuple)


@pytest.mark.few(4)
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
@pytest.mark.parametrize("kind", KINDS)
def test_regions_are_read_and_written_as_numpy_would(tmp_path, kind, dtype):
    x = values(dtype=dtype)
    array = open_array(store(tmp_path, x, kind))
    assert (array.shape, array.dtype) == (x.shape, x.dtype)

    @settings(max_examples=20, deadline=None)
    @given(
        rows=spans,
        columns=spans,
        order=st.sampled_from("CF"),
        write=st.booleans(),
        strided=st.booleans(),
        wide=st.booleans(),
    )
    def check(rows, columns, order, write, strided, wide):
        (top, bottom), (left, right) = rows, tuple(min(17, edge) for edge in columns)
        shape = (bottom - top, right - left)
        room = np.zeros([2 * n + 1 for n in shape], dtype, order=order)
        out = room[::2, ::2][: shape[0], : shape[1]] if strided else np.zeros(shape, dtype, order)
        region = ((top, bottom), (left, right))
        read = array.read(region, out)
        np.testing.assert_array_equal(out, x[top:bottom, left:right])
        assert read == array.form.read_bytes(region)
        if write:
            out[...] = values(shape, dtype, seed=top)
            array.write(region, out.astype("f8") if wide else out)
            x[top:bottom, left:right] = out

    check()
    np.testing.assert_array_equal(np.asarray(array), x)
    by_its_own = np.load(array.path) if array.kind == "npy" else zarr.open_array(array.path)[:]
    np.testing.assert_array_equal(by_its_own, x)


def test_short_reads_and_writes_are_gone_on_with(tmp_path, monkeypatch):
    x = values()
    array = open_array(store(tmp_path, x, "npy-C"))
    read, write = os.preadv, os.pwritev
    monkeypatch.setattr(os, "preadv", lambda f, into, at: read(f, [into[0][:7]], at))
    monkeypatch.setattr(os, "pwritev", lambda f, out, at: write(f, [out[0][:5]], at))
    np.testing.assert_array_equal(array[:, :], x)
    array.write(((2, 9), (3, 8)), values((7, 5), seed=3))
    x[2:9, 3:8] = values((7, 5), seed=3)
    np.testing.assert_array_equal(array[:, :], x)


def test_a_file_cut_short_while_it_is_read(tmp_path):
    array = open_array(store(tmp_path, values(), "npy-C"))
    os.truncate(array.path, array.offset + 100)
    with pytest.raises(ConfigError, match=r"ended at byte .* too early"):
        array.read(((0, 23), (0, 17)), np.empty(SHAPE, "f4"))


@pytest.mark.parametrize("name", ["c.npy", "c.zarr", "folder/c"])
def test_a_new_array_is_all_zeros(tmp_path, name):
    chunks = (6, 7) if name.endswith("c") else None
    array = create_array(tmp_path / name, SHAPE, "float64", chunks)
    assert open_array(array.path) == array == pickle.loads(pickle.dumps(array))
    np.testing.assert_array_equal(array[:, :], np.zeros(SHAPE))
    assert array.nbytes == 23 * 17 * 8
    with pytest.raises(ConfigError, match=r"exists; td\.open_array opens it"):
        create_array(array.path, SHAPE, "f8", chunks)
    os.makedirs(records_of(array))
    create_array(array.path, (5, 5), "f4", chunks, overwrite=True)
    assert open_array(array.path).shape == (5, 5)
    assert not os.path.exists(records_of(array))


def test_a_new_npy_file_takes_no_space_yet(tmp_path):
    array = create_array(tmp_path / "big.npy", (40_000, 50_000), "f8")
    assert os.path.getsize(array.path) == 128 + array.nbytes
    assert array.allocated() < 10**5
    array.write(((39_999, 40_000), (49_990, 50_000)), np.ones((1, 10)))
    assert array[39_999, 49_985:].tolist() == [0.0] * 5 + [1.0] * 10


def test_halves_are_rounded_when_they_are_written(tmp_path):
    array = create_array(tmp_path / "h.npy", (2, 3), "f2")
    array.write(((0, 2), (0, 3)), np.array([[1.0001, 1e9, -1e9], [2049, 0, np.nan]], "f4"))
    np.testing.assert_array_equal(
        array[:, :], np.array([[1, np.inf, -np.inf], [2048, 0, np.nan]], "f2")
    )


def test_indexing(tmp_path):
    x = values()
    array = open_array(store(tmp_path, x, "npy-C"))
    for index in [np.s_[3], np.s_[-1, 2], np.s_[:4], np.s_[2:5, -3:], np.s_[:, 4], np.s_[9:2, :]]:
        np.testing.assert_array_equal(array[index], x[index], strict=True)
    for index in [np.s_[::2], np.s_[1, 2, 3], np.s_[23], np.s_[:, 17]]:
        with pytest.raises(IndexError):
            array[index]
    with pytest.raises(ValueError, match="a copy"):
        np.asarray(array, copy=False)


HEADER = stored_npy.header
SQUARE = HEADER((16, 16), np.dtype("f4")) + bytes(1024)


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (np.ones((2, 2), int), "is int64, stored matrices are float16"),
        (np.array([[1, "a"]], object), "is object"),
        (np.zeros((2, 2), "f4,f8"), "bytes without a meaning"),
        (np.ones((2, 2), ">f4"), "foreign byte order"),
        (np.ones(4), "has 2 dimensions"),
        (np.ones((2, 2, 2)), "has 2 dimensions"),
        (np.ones((0, 3)), "2 dimensions of 1"),
        (b"1,2\n3,4", "cannot be read as .npy"),
        (lambda path: None, "there is no file"),
        (os.mkdir, "no zarr array"),
        (zarr.create_group, "no zarr array"),
        (lambda p: zarr.create_array(p, shape=(4, 4), chunks=(2, 2), dtype="i4"), "is int32"),
        (SQUARE[:-17], "has 1135; it was cut short"),
        (SQUARE + b"x", r"1152 bytes .* has 1153; it has more than"),
        (SQUARE.replace(b"16), }", b"16,   "), "cannot be read as .npy"),
        (HEADER((10**6, 10**6), np.dtype("f8")), "8000000000128 bytes with its header"),
        (b"\x93NUMPY\x03\x00" + bytes(120), "format"),
    ],
)
def test_what_is_no_such_matrix_is_refused(tmp_path, made, words):
    path = tmp_path / "x.npy"
    if isinstance(made, np.ndarray):
        np.save(path, made, allow_pickle=True)
    elif isinstance(made, bytes):
        path.write_bytes(made)
    else:
        made(str(path))
    with pytest.raises(ConfigError, match=words):
        open_array(path)


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("c.bin", ((2, 2), "f4"), r"\.npy or \.zarr, got 'c\.bin'"),
        ("c.npy", ((2, 2), "f4", (1, 1)), "has no chunks"),
        ("c.npy", ((2, 2, 2), "f4"), "2 dimensions"),
        ("c.npy", ((0, 2), "f4"), "2 dimensions of 1"),
        ("c.npy", ((2, 2), "i4"), "is int32"),
        ("c.npy", ((2, 2), "bfloat16"), "is bfloat16"),
        ("c.zarr", ((2, 2), "f4", (0, 2)), "chunks are"),
        ("c.zarr", ((2, 2), "f4", (1,)), "chunks"),
    ],
)
def test_what_cannot_be_created(tmp_path, name, arguments, words):
    with pytest.raises(ConfigError, match=words):
        create_array(tmp_path / name, *arguments)
    assert not os.listdir(tmp_path)


def test_a_region_and_its_buffer_go_together(tmp_path):
    array = create_array(tmp_path / "c.npy", (4, 4), "f4")
    with pytest.raises(ConfigError, match="do not go together"):
        array.read(((0, 5), (0, 4)), np.empty((5, 4), "f4"))
    with pytest.raises(ConfigError, match="do not go together"):
        array.write(((0, 2), (0, 4)), np.empty((4, 2), "f4"))
    with pytest.raises(ConfigError, match="holds float32, the buffer is float64"):
        array.read(((0, 4), (0, 4)), np.empty((4, 4)))


@pytest.mark.parametrize("kind", ["npy-C", "zarr-3"])
def test_a_changed_file_has_another_identity(tmp_path, kind):
    array = open_array(store(tmp_path, values(), kind))
    before = array.identity()
    assert array.identity() == before
    array.write(((20, 21), (3, 4)), np.full((1, 1), 5e5, "f4"))
    array.sync(((20, 21), (3, 4)))
    assert array.identity() != before


@pytest.mark.parametrize("kind", ["zarr-2", "zarr-3", "zarr-sharded"])
def test_a_missing_chunk_is_no_zeros(tmp_path, kind):
    x = values()
    path = store(tmp_path, x, kind)
    before = open_array(path)
    (file,) = stored_zarr.chunk_files(before, ((11, 12), (5, 6)))
    os.remove(file)
    words = rf"{path} is \(23, 17\) in chunks of .*{os.path.relpath(file, path)}.* missing; write"
    with pytest.raises(ConfigError, match=words):
        open_array(path)
    with pytest.raises(ConfigError, match=words):
        before[11, 5]
    with pytest.raises(ConfigError, match=words):  # the rest of the chunk would be made up
        before.write(((11, 12), (5, 6)), np.ones((1, 1)))
    np.testing.assert_array_equal(before[:5], x[:5])
    sparse = open_array(path, missing="fill")
    assert sparse[11, 5] == 0
    assert sparse[0, 0] == x[0, 0]
    with pytest.raises(ConfigError, match="got 'zeros'"):
        open_array(path, missing="zeros")


@pytest.mark.parametrize("kind", ["zarr-2", "zarr-3"])
def test_zeros_that_are_written_are_there(tmp_path, kind):
    array = open_array(store(tmp_path, values(), kind))
    array.write(((0, 23), (0, 17)), np.zeros(SHAPE, "f4"))
    assert not open_array(array.path)[:, :].any()


def test_chunks_beyond_the_array_are_refused(tmp_path):
    path = store(tmp_path, values(), "zarr-3")
    header = tmp_path / "x.zarr" / "zarr.json"
    header.write_text(re.sub(r"23,(\s*)17", r"13,\g<1>17", header.read_text()))
    with pytest.raises(ConfigError, match=r"\(13, 17\) in .* which are 15, and has 10 more, c/3/0"):
        open_array(path)
    header.write_text(re.sub(r"13,(\s*)17", r"4000000000,\g<1>4000000000", header.read_text()))
    with pytest.raises(
        ConfigError, match=r"of 800000000000000000 chunks .*, such as c/0/5, is miss"
    ):
        open_array(path)


def test_the_header_of_our_own_arrays_has_a_checksum(tmp_path):
    array = create_array(tmp_path / "c.zarr", SHAPE, "f4", (5, 4))
    header = tmp_path / "c.zarr" / "zarr.json"
    header.write_text(re.sub(r"23,(\s*)17", r"24,\g<1>17", header.read_text()))  # as many chunks
    with pytest.raises(ConfigError, match=r"its zarr\.json has the checksum"):
        open_array(array.path)


@pytest.mark.few(2)
@pytest.mark.parametrize("kind", [*KINDS, "own"])
def test_no_damage_is_accepted_that_could_be_seen(tmp_path, kind):
    """Sizes, headers and chunks always; values where there are checksums, else it was said."""
    rng, x = np.random.default_rng(KINDS.index(kind) if kind in KINDS else 9), values()
    refused, whole = [], tmp_path / "whole"
    whole.mkdir()
    if kind == "own":
        create_array(whole / "x.zarr", SHAPE, "f4", (5, 4)).write(((0, 23), (0, 17)), x)
    else:
        store(whole, x, kind)
    for i in range(32 if kind in ("own", "npy-C") else 24):
        folder = Path(shutil.copytree(whole, tmp_path / str(i)))
        path = str(next(folder.iterdir()))
        checked, how = open_array(path).checked, KINDS_OF_DAMAGE[i % 8]
        files = sorted(f for f in folder.rglob("*") if f.is_file() and f.name != ".zattrs")
        file = files[int(rng.integers(len(files)))]
        size = file.stat().st_size
        if not damage(file, how, rng):
            continue
        try:
            found = open_array(path)[:, :]
        except ConfigError as error:
            refused.append((path, str(error)))
            continue
        if not (found.shape == x.shape and found.tobytes() == x.tobytes()):
            assert "no checksum" in checked, (file, how)
            assert file.name not in ("zarr.json", ".zarray"), how
            assert file.stat().st_size == size, (file, how)
    assert len(refused) > 10
    assert all(path in words for path, words in refused)
    if kind == "own":
        assert "crc32c" in checked
        assert any(
            re.search(r"chunk c/\d/\d is damaged: its \d+ bytes", said) for _, said in refused
        )


def test_what_is_checked_is_said(tmp_path):
    said = open_array(store(tmp_path, values(), "npy-C")).checked
    assert said == "size and header only: .npy has no checksum"
    said = open_array(store(tmp_path, values(), "zarr-2")).checked
    assert said.endswith("its codecs have no checksum")
    array = create_array(tmp_path / "own.zarr", SHAPE, "f4")
    assert array.checked == "header, every chunk there and its crc32c"
    assert array.checked in array._repr_html_()
    assert repr(array).endswith(f"own.zarr', checked: {array.checked})")
    array = describe(tmp_path / "c.zarr", (2000, 500), "f4")
    assert repr(array).startswith("StoredArray(2000x500 float32, chunks (1024, 500), 4 MB, '/")
    assert "c.zarr" in array._repr_html_()


def test_a_disk_that_is_full_says_so(tmp_path, monkeypatch):
    array = create_array(tmp_path / "c.npy", SHAPE, "f4")

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwritev", full)
    words = rf"{array.path} cannot be written: its disk is full: .* more are needed, .* are free"
    with pytest.raises(ConfigError, match=words):
        array.write(((0, 1), (0, 1)), np.ones((1, 1)))
