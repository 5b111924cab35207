"""Matrices in files: every region as NumPy would read it, and nothing believed unchecked.

Holds `tiledask.distributed.out_of_core.npy`, `tiledask.distributed.out_of_core.zarr_chunks`
and `tiledask.distributed.out_of_core.disk`.
"""

import errno
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

from tiledask.distributed.out_of_core import npy, zarr_chunks
from tiledask.distributed.out_of_core.stored import create_array, open_array
from tiledask.errors import ConfigError
from tiledask.plan.products.streaming import read_bytes

SHAPE = (23, 17)
KINDS = ("npy-C", "zarr-2", "zarr-3", "zarr-sharded")


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
    more |= {"chunks": (5, 4), "zarr_format": 2 if variant == "2" else 3}
    zarr.create_array(name, shape=x.shape, dtype=x.dtype, **more)[:] = x
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
    @given(rows=spans, columns=spans, order=st.sampled_from("CF"), write=st.booleans(),
           wide=st.booleans())  # fmt: skip
    def check(rows, columns, order, write, wide):
        (top, bottom), (left, right) = rows, tuple(min(17, edge) for edge in columns)
        region, out = ((top, bottom), (left, right)), np.empty((bottom - top, right - left), dtype)
        read = array.read(region, out)
        np.testing.assert_array_equal(out, x[top:bottom, left:right])
        np.testing.assert_array_equal(array[top:bottom, left:right], out)
        assert read == read_bytes(region, array.grid, array.dtype.itemsize)
        if write:
            out = np.asarray(values(out.shape, dtype, seed=top), order=order)
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
    os.truncate(array.path, array.offset + 100)
    with pytest.raises(ConfigError, match=r"ended at byte .* too early"):
        array.read(((0, 23), (0, 17)), np.empty(SHAPE, "f4"))


@pytest.mark.parametrize("name", ["c.npy", "folder/c.zarr"])
def test_a_new_array_is_all_zeros(tmp_path, name):
    chunks = (6, 7) if name.endswith("zarr") else None
    array = create_array(tmp_path / name, SHAPE, "float64", chunks)
    assert open_array(array.path) == array == pickle.loads(pickle.dumps(array))
    np.testing.assert_array_equal(array[:, :], np.zeros(SHAPE))
    assert array.nbytes == 23 * 17 * 8
    with pytest.raises(ConfigError, match=r"exists; td\.open_array opens it"):
        create_array(array.path, SHAPE, "f8", chunks)
    Path(f"{array.path}.tiledask").touch()
    create_array(array.path, (5, 5), "f4", chunks, overwrite=True)
    assert open_array(array.path).shape == (5, 5)
    assert not os.path.exists(f"{array.path}.tiledask")


def test_a_new_npy_file_takes_no_space_yet(tmp_path):
    array = create_array(tmp_path / "big.npy", (40_000, 50_000), "f8")
    assert os.path.getsize(array.path) == 128 + array.nbytes
    assert array.unwritten() > array.nbytes - 10**5
    array.write(((39_999, 40_000), (49_990, 50_000)), np.ones((1, 10)))
    assert array[39_999, 49_985:].tolist() == [0.0] * 5 + [1.0] * 10


def test_halves_are_rounded_when_they_are_written(tmp_path):
    array = create_array(tmp_path / "h.npy", (2, 3), "f2")
    array.write(((0, 2), (0, 3)), np.array([[1.0001, 1e9, -1e9], [2049, 0, np.nan]], "f4"))
    rounded = np.array([[1, np.inf, -np.inf], [2048, 0, np.nan]], "f2")
    np.testing.assert_array_equal(array[:, :], rounded)


def test_indexing(tmp_path):
    x = values()
    array = open_array(store(tmp_path, x, "npy-C"))
    for index in [np.s_[3], np.s_[-1, 2], np.s_[:4], np.s_[2:5, -3:], np.s_[:, 4], np.s_[9:2, :]]:
        np.testing.assert_array_equal(array[index], x[index], strict=True)
    for index in [np.s_[::2], np.s_[1, 2, 3], np.s_[23], np.s_[:, 17]]:
        with pytest.raises((IndexError, ValueError)):
            array[index]
    with pytest.raises(ValueError, match="a copy"):
        np.asarray(array, copy=False)


HEADER = npy.header
SQUARE = HEADER((16, 16), np.dtype("f4")) + bytes(1024)


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (np.ones((2, 2), complex), r"is complex128, .*; store its \.real and its \.imag"),
        (np.ones((2, 2), int), "is int64, stored matrices are float16"),
        (np.array([[1, "a"]], object), "cannot be read as .npy: .*objects"),
        (np.zeros((2, 2), "f4,f8"), "bytes without a meaning"),
        (np.ones((2, 2), ">f4"), "foreign byte order"),
        (np.ones(4), "has 2 dimensions"),
        (np.ones((0, 3)), "2 dimensions of 1"),
        (b"1,2\n3,4", "cannot be read as .npy"),
        (np.asfortranarray(np.ones((2, 2))), "lies column by column; store it by rows"),
        (lambda path: None, "there is no file"),
        (os.mkdir, "no zarr array"),
        (zarr.create_group, "no zarr array"),
        (lambda p: zarr.create_array(p, shape=(4, 4), chunks=(2, 2), dtype="i4"), "is int32"),
        (SQUARE[:-17], "cannot be read as .npy: .*cut short"),
        (SQUARE + b"x", r"1152 bytes .* has 1153: it is damaged"),
        (SQUARE.replace(b"16), }", b"16,   "), "cannot be read as .npy"),
        (HEADER((10**6, 10**6), np.dtype("f8")), "cannot be read as .npy: .*cut short"),
        (b"\x93NUMPY\x03\x00" + bytes(120), "cannot be read as .npy"),
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
        ("c.bin", ((2, 2), "f4"), r"or \.zarr; got 'c\.bin'"),
        ("c.npy", ((2, 2), "f4", (1, 1)), "has no chunks"),
        ("c.npy", ((2, 2, 2), "f4"), "2 dimensions"),
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
    array, whole = create_array(tmp_path / "c.npy", (4, 4), "f4"), ((0, 4), (0, 4))
    for region, out, words in [
        (((0, 5), (0, 4)), np.empty((5, 4), "f4"), "do not go together"),
        (whole, np.empty((4, 4)), "is read into float32 by rows"),
        (whole, np.empty((4, 4), "f4", order="F"), "by rows"),
    ]:
        with pytest.raises(ConfigError, match=words):
            array.read(region, out)
    with pytest.raises(ConfigError, match="do not go together"):
        array.write(((0, 2), (0, 4)), np.empty((4, 2), "f4"))


@pytest.mark.parametrize("kind", ["npy-C", "zarr-3"])
def test_a_changed_file_has_another_identity(tmp_path, kind):
    array = open_array(store(tmp_path, values(), kind))
    before = array.identity()
    assert array.identity() == before
    array.write(((20, 21), (3, 4)), np.full((1, 1), 5e5, "f4"))
    array.sync(((20, 21), (3, 4)))
    assert array.identity() != before


@pytest.mark.parametrize("kind", ["zarr-2", "zarr-3", "zarr-sharded"])
def test_a_missing_chunk_is_no_zeros_and_zeros_that_are_written_are_there(tmp_path, kind):
    x = values()
    path = store(tmp_path, x, kind)
    array = open_array(path)
    file, *_ = zarr_chunks.files(array, ((11, 12), (5, 6)))
    os.remove(file)
    words = rf"{path} is \(23, 17\) in chunks of .*{os.path.relpath(file, path)} is missing; write"
    with pytest.raises(ConfigError, match=words):
        array[11, 5]
    with pytest.raises(ConfigError, match=words):  # the rest of the chunk would be made up
        array.write(((11, 12), (5, 6)), np.ones((1, 1)))
    np.testing.assert_array_equal(array[:5], x[:5])
    array.write(((0, 23), (0, 17)), np.zeros(SHAPE, "f4"))
    assert not open_array(array.path)[:, :].any()


def test_a_chunk_that_was_damaged_is_refused(tmp_path):
    array = create_array(tmp_path / "c.zarr", SHAPE, "f4", (5, 4))
    array.write(((0, 23), (0, 17)), values())
    file, *_ = zarr_chunks.files(array, ((11, 12), (5, 6)))
    held = bytearray(Path(file).read_bytes())
    held[len(held) // 2] ^= 1
    Path(file).write_bytes(held)
    with pytest.raises(ConfigError, match="chunk c/2/1 is damaged: it does not decode"):
        array[11, 5]


def test_a_disk_that_is_full_says_so(tmp_path, monkeypatch):
    array = create_array(tmp_path / "c.npy", SHAPE, "f4")

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwritev", full)
    words = rf"{array.path} cannot be written: its disk is full: .* more are needed, .* are free"
    with pytest.raises(ConfigError, match=words):
        array.write(((0, 1), (0, 1)), np.ones((1, 1)))
