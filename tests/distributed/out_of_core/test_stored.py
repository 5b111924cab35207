"""Matrices in files: every region as NumPy would read it, and nothing believed unchecked."""

import io
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

from tiledask.distributed.out_of_core import stored
from tiledask.distributed.out_of_core.stored import create_array, open_array
from tiledask.errors import ConfigError
from tiledask.plan.products.streaming import read_bytes

SHAPE = (23, 17)
WHOLE = ((0, 23), (0, 17))
ZARR = ("zarr-2", "zarr-3", "zarr-sharded")


def values(shape=SHAPE, dtype="f4", seed=0):
    return np.random.default_rng(seed).integers(-99, 100, shape).astype(dtype)


def store(path, x, kind):
    """The path of ``x``, saved by NumPy or zarr themselves."""
    if kind == "npy":
        np.save(path / "x.npy", x)
        return str(path / "x.npy")
    more = {"shards": (10, 8)} if kind == "zarr-sharded" else {}
    more |= {"chunks": (5, 4), "zarr_format": 2 if kind == "zarr-2" else 3}
    zarr.create_array(f"{path}/x.zarr", shape=x.shape, dtype=x.dtype, **more)[:] = x
    return f"{path}/x.zarr"


spans = st.tuples(st.integers(0, 23), st.integers(0, 23)).map(sorted).map(tuple)


@pytest.mark.few(4)
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
@pytest.mark.parametrize("kind", ["npy", *ZARR])
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
        assert read == read_bytes(region, array.grid, array.dtype.itemsize)
        if write:
            out = np.asarray(values(out.shape, dtype, seed=top), order=order)
            array.write(region, out.astype("f8") if wide else out)
            x[top:bottom, left:right] = out

    before = array.stamp()
    array.write(((20, 21), (3, 4)), np.full((1, 1), 99, "f4"))
    x[20, 3] = 99
    assert array.stamp() != before
    check()
    np.testing.assert_array_equal(np.asarray(array), x)
    by_its_own = np.load(array.path) if kind == "npy" else zarr.open_array(array.path)[:]
    np.testing.assert_array_equal(by_its_own, x)


@pytest.mark.parametrize("name", ["c.npy", "folder/c.zarr"])
def test_a_new_array_is_all_zeros(tmp_path, monkeypatch, name):
    monkeypatch.setattr(stored, "CHUNK", 20)
    array = create_array(tmp_path / name, SHAPE, "float64")
    assert open_array(array.path) == array == pickle.loads(pickle.dumps(array))
    assert array.chunks == ((20, 17) if name.endswith("zarr") else None)
    np.testing.assert_array_equal(np.asarray(array), np.zeros(SHAPE))
    with pytest.raises(ConfigError, match=r"exists; td\.open_array opens it"):
        create_array(array.path, SHAPE, "f8")
    Path(f"{array.path}.tiledask").touch()
    os.rename(array.path, tmp_path / "old")
    create_array(array.path, (5, 5), "f4")
    assert open_array(array.path).shape == (5, 5)
    assert not os.path.exists(f"{array.path}.tiledask")


def test_a_new_npy_file_takes_no_space_and_halves_are_rounded_as_they_are_written(tmp_path):
    array = create_array(tmp_path / "big.npy", (40_000, 50_000), "f2")
    assert os.stat(array.path).st_blocks * 512 < 10**5 < array.nbytes == 4 * 10**9
    array.write(((39_999, 40_000), (49_996, 50_000)), np.array([[1.0001, 1e9, -1e9, 2049]]))
    last = array[39_999:, 49_995:]
    assert last.tolist() == [[0, 1, np.inf, -np.inf, 2048]]


def test_indexing(tmp_path):
    x = values()
    array = open_array(store(tmp_path, x, "npy"))
    for index in [np.s_[3], np.s_[-1, 2], np.s_[:4], np.s_[2:5, -3:], np.s_[:, 4], np.s_[9:2, :]]:
        np.testing.assert_array_equal(array[index], x[index], strict=True)
    for index in [np.s_[::2], np.s_[1, 2, 3], np.s_[23], np.s_[:, 17]]:
        with pytest.raises((IndexError, ValueError)):
            array[index]
    with pytest.raises(ValueError, match="a copy"):
        np.asarray(array, copy=False)


def saved(x):
    file = io.BytesIO()
    np.save(file, x)
    return file.getvalue()


SQUARE = saved(np.zeros((16, 16), "f4"))


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (saved(np.ones((2, 2), complex)), "is complex128, .* convert it with astype"),
        (saved(np.ones((2, 2), int)), "is int64, stored matrices are float16"),
        (saved(np.zeros((2, 2), "f4,f8")), "stored matrices are float16"),
        (saved(np.ones((2, 2), ">f4")), "is >f4, .*byte order"),
        (saved(np.ones(4)), "the 2 dimensions"),
        (saved(np.ones((1, 3)))[:-24].replace(b"(1, 3)", b"(0, 3)"), "the 2 dimensions"),
        (saved(np.asfortranarray(np.ones((2, 2)))), "lies column by column"),
        (b"1,2\n3,4", "cannot be read as .npy"),
        (SQUARE[:-17], "cannot be read as .npy: .*cut short"),
        (SQUARE.replace(b"16), }", b"16,   "), "cannot be read as .npy"),
        (lambda path: None, "cannot be read on .*: No such file"),
        (os.mkdir, "is no zarr array"),
        (zarr.create_group, "is no zarr array"),
        (lambda p: zarr.create_array(p, shape=(4, 4), chunks=(2, 2), dtype="i4"), "is int32, "),
    ],
)
def test_what_is_no_such_matrix_is_refused(tmp_path, made, words):
    path = tmp_path / "x.npy"
    path.write_bytes(made) if isinstance(made, bytes) else made(str(path))
    with pytest.raises(ConfigError, match=words):
        open_array(path)


def test_what_cannot_be_created(tmp_path):
    for name, arguments, words in [
        ("c.bin", ((2, 2), "f4"), r"or \.zarr; got .*c\.bin'"),
        ("c.npy", ((2, 2), "bfloat16"), "is bfloat16"),
        ("c.zarr", ((0, 2), "f4"), "the 2 dimensions"),
    ]:
        with pytest.raises(ConfigError, match=words):
            create_array(tmp_path / name, *arguments)
    assert not os.listdir(tmp_path)


def test_a_region_and_its_elements_go_together(tmp_path):
    array = create_array(tmp_path / "c.npy", (4, 4), "f4")
    for region in [((0, 2), (0, 4)), ((3, 5), (0, 2)), ((3, 1), (0, 2))]:
        with pytest.raises(ConfigError, match="are no region"):
            array.write(region, np.empty((2, 2), "f4"))


@pytest.mark.parametrize("kind", ZARR)
def test_a_missing_chunk_is_no_zeros_and_zeros_that_are_written_are_there(tmp_path, kind):
    x = values()
    path = store(tmp_path, x, kind)
    chunk = path + {"zarr-2": "/2.1", "zarr-3": "/c/2/1", "zarr-sharded": "/c/1/0"}[kind]
    os.remove(chunk)
    array = open_array(path)
    with pytest.raises(ConfigError, match=rf"{chunk}, a chunk, is missing; write"):
        array[11, 5]
    np.testing.assert_array_equal(array[:5], x[:5])
    array.write(WHOLE, np.zeros(SHAPE, "f4"))
    assert not np.asarray(open_array(array.path)).any()


def test_what_was_damaged_since_is_refused(tmp_path):
    array = create_array(tmp_path / "c.zarr", SHAPE, "f4")
    array.write(WHOLE, values())
    chunk = Path(array.path, "c/0/0")
    held = bytearray(chunk.read_bytes())
    held[len(held) // 2] ^= 1
    chunk.write_bytes(held)
    with pytest.raises(ConfigError, match=r"c\.zarr is damaged .*; write it again"):
        array[11, 5]
    array = create_array(tmp_path / "c.npy", SHAPE, "f4")
    os.truncate(array.path, 400)
    with pytest.raises(ConfigError, match=r"c\.npy cannot be read as \.npy.*cut short"):
        array[11, 5]


@pytest.mark.parametrize("name", ["c.npy", "c.zarr"])
def test_a_disk_that_is_full_says_so(small_disk, name):
    array = create_array(small_disk / name, (1000, 1000), "f8")
    with pytest.raises(ConfigError, match=rf"{array.path} cannot be written on .*: No space left"):
        array.write(((0, 1000), (0, 1000)), np.random.default_rng(0).random((1000, 1000)))
