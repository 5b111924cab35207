"""Stored arrays by URL: the same elements, damage and records as on a disk, in any store.

Holds `tiledask.distributed.out_of_core.folder` and `tiledask.distributed.out_of_core.zarr_store`.
"""

import json
import os
from pathlib import Path

import fsspec
import numpy as np
import pytest
import zarr
from fsspec.implementations.memory import MemoryFileSystem
from oracles.disk_store import register

from tiledask.distributed.out_of_core.stored import create_array, open_array, records_of
from tiledask.distributed.out_of_core.streamed import multiply_stored
from tiledask.distributed.out_of_core.unfinished import StreamRecords
from tiledask.errors import ConfigError

SHAPE, WHOLE = (23, 17), ((0, 23), (0, 17))
REGION = ((3, 7), (0, 5))
CHUNK = {2: "2.0", 3: "c/2/0", "sharded": "c/1/0"}
"""Where row 10 and column 1 are, in chunks of 5 x 4 and shards of 10 x 8."""


def values(shape=SHAPE, seed=0, dtype="f4"):
    """Small integers: sums are exact in every order."""
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(dtype)


def stored(url, x, chunks, **options):
    array = create_array(url, x.shape, x.dtype, chunks, **options)
    array.write(tuple((0, n) for n in x.shape), x)
    return array


@pytest.fixture
def memory():
    """fsspec's memory, empty."""
    MemoryFileSystem.store.clear()
    yield MemoryFileSystem()
    MemoryFileSystem.store.clear()


# -- reading and writing -------------------------------------------------------------------------


def test_regions_are_read_and_written_as_numpy_would(memory):
    x = values()
    array = create_array("memory://at/x.zarr/", SHAPE, "f4", (5, 4))
    assert array.path == "memory://at/x.zarr"
    assert not array[:, :].any()
    before = array.identity()
    assert array.identity() == before
    array.write(WHOLE, x)
    array.sync(WHOLE)
    assert array.identity() != before
    region = (4, 19), (3, 17)
    array.write(region, 7 * x[4:19, 3:17])
    x[4:19, 3:17] *= 7
    found = open_array("memory://at/x.zarr")
    assert found == array
    out = np.empty((9, 5), "f4")
    assert found.read(((2, 11), (8, 13)), out) == 3 * 2 * 80
    np.testing.assert_array_equal(out, x[2:11, 8:13])
    np.testing.assert_array_equal(zarr.open_array("memory://at/x.zarr", mode="r")[:], x)
    assert found.allocated() == memory.du("/at/x.zarr") > 0


@pytest.mark.parametrize("form", [2, 3, "sharded"])
def test_what_zarr_has_written_is_read_and_damage_is_seen(memory, form):
    x = values()
    x[10:15, 8:12] = 0  # of shards zarr leaves out what is all fill value
    more = {"shards": (10, 8)} if form == "sharded" else {}
    zarr_format = 2 if form == 2 else 3
    path = "memory://x.zarr"
    zarr.create_array(
        path, shape=SHAPE, dtype="f4", chunks=(5, 4), zarr_format=zarr_format, fill_value=1, **more
    )[:] = x
    array = open_array(path)
    np.testing.assert_array_equal(array[:, :], x)
    file = CHUNK[form]
    held = memory.cat(f"/x.zarr/{file}")
    memory.pipe(f"/x.zarr/{file}", held[:-3])
    with pytest.raises(ConfigError, match=rf"(chunk|shard) {file} .*damaged"):
        array[10, 1]
    memory.rm(f"/x.zarr/{file}")
    for read in (lambda: open_array(path), lambda: array[10, 1]):
        with pytest.raises(ConfigError, match=rf"{file}.* is missing; write it"):
            read()
    assert open_array(path, missing="fill")[10, 1] == 1


def test_a_url_is_not_replaced_unasked_and_then_with_its_records(memory):
    array = create_array("memory://x.zarr", SHAPE, "f4", 5)
    create_array("memory://x.zarr.other.zarr", SHAPE, "f4", 5)
    records = StreamRecords(records_of(array))
    records.begin({})
    with pytest.raises(ConfigError, match=r"memory://x\.zarr exists; .* overwrite=True"):
        create_array("memory://x.zarr", (3, 3), "f4")
    assert create_array("memory://x.zarr", (3, 3), "f8", overwrite=True).shape == (3, 3)
    assert not records.exist
    assert sorted(name for name, _ in array.folder.files()) == ["c/0/0", "zarr.json"]
    assert not open_array("memory://x.zarr.other.zarr")[:, :].any()


fsspec.register_implementation("lacking", "no_such_package.FS", errtxt="Install s9fs to reach S9")


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("s3://b/a.npy", r"\.npy files are .* on a disk; copy it there .* as zarr"),
        ("lacking://b/a.zarr", "needs a package that is not installed: Install s9fs"),
        ("nowhere://b/a.zarr", "Protocol not known: nowhere"),
        ("s3://bucket", "whole bucket"),
        ("ftp://me:secret@host/a.zarr", "URL on host has a password"),
        ("simplecache::s3://b/a.zarr", "several file systems"),
        (Path("s3://b/a.zarr"), "a URL is given as a string: pathlib has made s3:/b/a.zarr"),
        ("memory://none.zarr", r"names no zarr array .* give the URL .*td\.create_array"),
    ],
)
def test_what_is_no_url_of_an_array_is_refused(memory, path, words):
    with pytest.raises(ConfigError, match=words) as refused:
        open_array(path)
    assert "secret" not in str(refused.value)
    if path != "memory://none.zarr":
        with pytest.raises(ConfigError, match=words):
            create_array(path, (2, 2), "f4", None if str(path).endswith(".npy") else 2)


def test_file_urls_are_paths(tmp_path):
    for name in ("x.npy", "x.zarr"):
        array = create_array(f"file://{tmp_path}/{name}", SHAPE, "f4")
        assert array.path == str(tmp_path / name)
        assert open_array(f"file://{tmp_path}/{name}") == open_array(tmp_path / name)
    with pytest.raises(ConfigError, match="storage_options are what fsspec needs for a URL"):
        open_array(tmp_path / "x.zarr", storage_options={"key": "me"})


def test_options_are_passed_on_and_never_shown(memory, tmp_path):
    register()
    options = {"skip_instance_cache": True, "secret": "hunter2"}
    array = stored(f"disk://{tmp_path}/x.zarr", values(), 5, storage_options=options)
    assert array.folder.fs.storage_options["secret"] == "hunter2"
    found = open_array(array.path, storage_options=options)
    np.testing.assert_array_equal(found[:, :], values())
    records = StreamRecords(records_of(array), options)
    shown = repr(found), found._repr_html_(), json.dumps(found.identity()), repr(records)
    assert not any("hunter2" in text for text in shown)
    hash(found)


# -- records -------------------------------------------------------------------------------------


FOLDER = "memory://c.zarr.tiledask"


def test_records_are_objects_beside_the_result(memory):
    records = StreamRecords(FOLDER)
    with records.claimed():
        assert not records.exist
        records.begin({"cuts": [1, 2]})
        records.strike(REGION)  # there is nothing to strike out
        assert records.tile(REGION) is None
        records.keep(REGION, 99)
    assert sorted(memory.find("/")) == [f"/c.zarr.tiledask/{x}.json" for x in ("plan", "tile-3-0")]
    assert records.plan() == {"cuts": [1, 2]}
    assert records.tile(REGION) == 99
    memory.pipe("/c.zarr.tiledask/tile-3-0.json", b"{")
    with pytest.raises(ConfigError, match=r"memory://c\.zarr.*tile-3-0\.json is damaged"):
        records.tile(REGION)
    records.strike(REGION)
    assert records.tile(REGION) is None
    records.forget()
    assert not memory.find("/")


# -- products ------------------------------------------------------------------------------------


@pytest.mark.cluster
def test_memory_urls_are_no_place_for_workers(cluster, memory, tmp_path):
    a, b = (
        stored("memory://a.zarr", values((9, 9)), 5),
        stored(tmp_path / "b.zarr", values((9, 9)), 5),
    )
    with pytest.raises(ConfigError, match=r"A, memory://a\.zarr, is in the memory of this process"):
        multiply_stored(a, b, tmp_path / "c.npy", cluster)
    with pytest.raises(ConfigError, match=r"the result, memory://c\.zarr, is in the memory"):
        multiply_stored(b, b, "memory://c.zarr", cluster)
    assert not memory.exists("/c.zarr")
    assert not os.path.exists(tmp_path / "c.npy.tiledask")


@pytest.fixture
def disk(cluster, tmp_path):
    """The URL of an empty folder in a store that all workers reach."""
    register()
    cluster.run(register)
    return f"disk://{tmp_path}"


@pytest.mark.cluster
def test_a_product_by_url_has_the_bytes_of_one_by_path(cluster, disk, tmp_path):
    draw = np.random.default_rng(0).standard_normal
    x, y = draw((90, 70)), draw((70, 80))
    stored(tmp_path / "a.zarr", x, 30), stored(tmp_path / "b.zarr", y, 30)
    found = {}
    for scheme in ("", "file://", "disk://"):
        a, b = (open_array(f"{scheme}{tmp_path}/{name}.zarr") for name in "ab")
        out = f"{scheme}{tmp_path}/{scheme[:4]}.zarr"
        c = multiply_stored(a, b, out, cluster, memory_limit="9MB")
        assert c.bytes_read.predicted == c.bytes_read.measured
        assert open_array(out) == c.array
        names = [name for name, _ in c.folder.files()]
        found[scheme] = {name: c.folder.read(name) for name in names}
    assert found[""] == found["file://"] == found["disk://"]
    one = stored(f"disk://{tmp_path}/one.zarr", np.eye(70), 30)
    with pytest.raises(ConfigError, match="is A itself"):
        multiply_stored(a, one, a, cluster)
    with pytest.raises(ConfigError, match="a StoredArray has its own"):
        multiply_stored(a, one, one, cluster, storage_options={"auto_mkdir": True})
