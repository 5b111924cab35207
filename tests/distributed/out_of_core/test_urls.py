"""Stored arrays by URL: the same elements, damage and records as on a disk, in any store.

Holds `tiledask.distributed.out_of_core.place`, `tiledask.distributed.out_of_core.folder`,
`tiledask.distributed.out_of_core.by_url` and `tiledask.distributed.out_of_core.zarr_store`.
"""

import functools
import http.server
import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import fsspec
import numpy as np
import pytest
import zarr
from fsspec.implementations.memory import MemoryFileSystem
from oracles.disk_store import forget, register
from oracles.waiting import wait_until

from tiledask.distributed.out_of_core import by_url, zarr_store
from tiledask.distributed.out_of_core.by_url import UrlFolder
from tiledask.distributed.out_of_core.stored import create_array, open_array, records_of, unfinished
from tiledask.distributed.out_of_core.stream_tiles import StreamJob, StreamProduct, stream_tiles
from tiledask.distributed.out_of_core.streamed import multiply_stored
from tiledask.distributed.out_of_core.unfinished import StoppedError, StreamRecords, TileRecord
from tiledask.errors import ConfigError
from tiledask.plan.products.streaming import Cuts, Problem, plan_cuts

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


def test_a_chunk_costs_one_request(memory, monkeypatch):
    array = stored("memory://x.zarr", values(), (5, 4))
    asked = []
    for name in ("cat_file", "info", "exists", "pipe_file"):
        real = getattr(MemoryFileSystem, name)

        def counted(self, path, *rest, real=real, **more):
            asked.append(path)
            return real(self, path, *rest, **more)

        monkeypatch.setattr(MemoryFileSystem, name, counted)
    array[2:9, 1:9]
    assert sorted(path for path in asked if "/c/" in path) == [
        f"/x.zarr/c/{i}/{j}" for i in range(2) for j in range(3)
    ]
    asked.clear()
    array.write(((5, 10), (4, 8)), np.ones((5, 4)))
    assert [path for path in asked if "/c/" in path] == ["/x.zarr/c/1/1"]


def test_a_url_is_not_replaced_unasked_and_then_with_its_records(memory):
    array = create_array("memory://x.zarr", SHAPE, "f4", 5)
    create_array("memory://x.zarr.other.zarr", SHAPE, "f4", 5)
    records = StreamRecords(records_of(array), "run")
    records.begin({})
    with pytest.raises(ConfigError, match=r"memory://x\.zarr exists; .* overwrite=True"):
        create_array("memory://x.zarr", (3, 3), "f4")
    assert create_array("memory://x.zarr", (3, 3), "f8", overwrite=True).shape == (3, 3)
    assert not records.exist
    assert sorted(name for name, _ in array.folder.files()) == ["c/0/0", "zarr.json"]
    assert not open_array("memory://x.zarr.other.zarr")[:, :].any()


def test_a_header_that_cannot_be_put_leaves_nothing(memory, monkeypatch):
    put = MemoryFileSystem.pipe_file

    def refused(self, path, *rest, **more):
        if path.endswith("zarr.json"):
            raise PermissionError("read only")
        put(self, path, *rest, **more)

    monkeypatch.setattr(MemoryFileSystem, "pipe_file", refused)
    with pytest.raises(ConfigError, match=r"x\.zarr/zarr\.json cannot be written \(PermissionErr"):
        create_array("memory://x.zarr", SHAPE, "f4", 5)
    assert not memory.find("/")


def test_what_a_store_refuses_is_no_damage(memory, monkeypatch):
    array = stored("memory://x.zarr", values(), 5)

    def refused(self, path, *rest, **more):
        raise PermissionError("Forbidden")

    monkeypatch.setattr(MemoryFileSystem, "cat_file", refused)
    words = r"x\.zarr/.* cannot be read \(PermissionError: Forbidden\); .*credentials"
    with pytest.raises(ConfigError, match=words):
        open_array("memory://x.zarr")
    with pytest.raises(ConfigError, match=words):
        array[0, 0]
    read = zarr_store.FsspecStore.get
    monkeypatch.undo()

    async def of_chunks(self, key, *rest, **more):
        if key.startswith("c/"):
            raise ConnectionResetError("gone")
        return await read(self, key, *rest, **more)

    monkeypatch.setattr(zarr_store.FsspecStore, "get", of_chunks)
    with pytest.raises(ConfigError, match=r"x\.zarr/c/0/0 cannot be read \(ConnectionResetError"):
        array[0, 0]


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Files and lists of their names, as any web server."""

    def log_message(self, *_):
        pass


def test_arrays_on_a_web_server_are_read(tmp_path):
    pytest.importorskip("aiohttp")
    x = values()
    zarr.create_array(
        tmp_path / "x.zarr", shape=SHAPE, dtype="f4", chunks=(5, 4), compressors=None
    )[:] = x
    serves = functools.partial(Quiet, directory=tmp_path)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), serves) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        array = open_array(f"{url}/x.zarr")
        np.testing.assert_array_equal(array[:, :], x)
        assert array.identity()["files"] == 26
        (tmp_path / "x.zarr" / CHUNK[3]).unlink()
        for read in (lambda: open_array(array.path), lambda: array[10, 1]):
            with pytest.raises(ConfigError, match=rf"{CHUNK[3]}.* is missing; write it"):
                read()
        with pytest.raises(ConfigError, match=r"cannot be written \(ClientResponseError: 501"):
            create_array(f"{url}/y.zarr", SHAPE, "f4")
        server.shutdown()


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
    records = StreamRecords(records_of(array), "run", options)
    shown = repr(found), found._repr_html_(), json.dumps(found.identity()), repr(records)
    assert not any("hunter2" in text for text in shown)
    hash(found)


# -- records and leases --------------------------------------------------------------------------


@pytest.fixture
def quick(monkeypatch):
    """Leases that go stale in 2 s: 40 beats, which a busy machine does not all miss."""
    monkeypatch.setattr(by_url, "_BEAT", 0.05)
    monkeypatch.setattr(by_url, "_STALE", 2.0)
    monkeypatch.setattr(by_url, "_POLL", 0.01)


FOLDER = "memory://c.zarr.tiledask"


def test_records_are_objects_beside_the_result(memory):
    records = StreamRecords(FOLDER, "first")
    with records.claimed():
        assert not records.exist
        records.begin({"cuts": [1, 2]})
        records.strike(REGION)  # there is nothing to strike out
        assert records.tile(REGION) is None
        records.keep(REGION, TileRecord(12, 99))
        with records.working(0) as check:
            check()
    with pytest.raises(StoppedError, match="stopped"):
        records.check()
    later = StreamRecords(FOLDER, "second")
    assert sorted(memory.find("/")) == [f"/c.zarr.tiledask/{x}.json" for x in ("plan", "tile-3-0")]
    assert later.plan() == {"cuts": [1, 2]}
    assert later.tile(REGION) == TileRecord(12, 99)
    later.strike(REGION)
    assert later.tile(REGION).summed == 0
    memory.pipe("/c.zarr.tiledask/tile-3-0.json", b"{")
    with pytest.raises(ConfigError, match=r"memory://c\.zarr.*tile-3-0\.json is damaged"):
        later.tile(REGION)
    with later.claimed():
        later.forget()
    assert not memory.find("/")


def test_a_lease_is_one_process_s_as_long_as_it_lives(memory, quick):
    folder = UrlFolder("memory://f", None)
    with folder.locked("lock", 0.0) as held:
        first = folder.read("lock")
        with pytest.raises(TimeoutError), folder.locked("lock", 0.0):
            pass  # of one that goes stale before it is seen to live it could be had
        wait_until(lambda: folder.read("lock") != first, "it to be renewed")
        assert held()
        assert folder.still_held(["lock", "none"], 0.1) == "lock"
    assert not folder.exists("lock")
    assert folder.still_held(["lock"], 0.0) is None


def test_what_a_dead_process_held_is_taken_over(memory, quick):
    folder = UrlFolder("memory://f", None)
    folder.write("lock", b"somebody 3")
    folder.write("slot-0.lock", b"somebody 3")
    assert folder.still_held(["slot-0.lock"], 0.1) == "slot-0.lock"
    assert folder.still_held(["slot-0.lock"], 200.0) is None
    assert not folder.exists("slot-0.lock")
    began = time.monotonic()
    with folder.locked("lock", 0.0) as held:
        assert time.monotonic() - began >= by_url._STALE
        assert held()


def test_who_cannot_renew_its_lease_stops_before_another_takes_it(memory, quick, monkeypatch):
    records = StreamRecords(FOLDER, "run")
    with records.claimed(), records.working(2) as check:
        check()
        monkeypatch.setattr(UrlFolder, "write", lambda *_: 1 / 0)  # the network
        with pytest.raises(StoppedError, match="slot 2 was away too long"):
            wait_until(check)


def test_who_lost_its_lease_sees_it(memory, quick):
    folder = UrlFolder("memory://f", None)
    with folder.locked("lock", 0.0) as held:
        folder.write("lock", b"another 0")
        wait_until(lambda: not held(), "it to see that")
    assert folder.read("lock") == b"another 0"


def test_a_store_without_conditional_puts_will_do(memory, quick, monkeypatch):
    put = MemoryFileSystem.pipe_file

    def plain(self, path, value, mode="overwrite"):
        if mode != "overwrite":
            raise NotImplementedError("a header that is not implemented")
        put(self, path, value)

    monkeypatch.setattr(MemoryFileSystem, "pipe_file", plain)
    folder = UrlFolder("memory://f", None)
    with folder.locked("lock", 0.0), pytest.raises(TimeoutError), folder.locked("lock", 0.0):
        pass


def test_one_client_at_a_time_and_the_next_stops_the_workers_of_a_dead_one(memory, quick):
    first, log = StreamRecords(FOLDER, "first"), []

    def works():
        with suppress(StoppedError), first.working(0) as check:
            while True:
                check()
                time.sleep(0.01)
        log.append("stopped")

    with first.claimed():
        first.begin({})
        with (
            pytest.raises(ConfigError, match=r"another process is working on memory://c\.zarr r"),
            StreamRecords(FOLDER, "second").claimed(),
        ):
            pass
        worker = threading.Thread(target=works)
        worker.start()
        while not first._files.exists("slot-0.lock"):
            time.sleep(0.01)
    worker.join(240)
    assert log == ["stopped"]
    # as a client leaves it that was killed, and its worker was not
    first._files.write("client.lock", b"first 3")
    first._files.write("run", b"first")
    worker = threading.Thread(target=works)
    worker.start()
    while not first._files.exists("slot-0.lock"):
        time.sleep(0.01)
    with StreamRecords(FOLDER, "third").claimed():
        assert log == ["stopped", "stopped"]
        assert StreamRecords(FOLDER, "third").exist
    worker.join(240)


# -- products ------------------------------------------------------------------------------------


def test_a_worker_s_part_of_a_product_is_taken_up(memory):
    cuts, half = Cuts((0, 4, 6), (0, 5), 4), 4
    x, y = values((6, 8), 1, "f8"), values((8, 5), 2, "f8")
    a, b = stored("memory://a.zarr", x, 4), stored("memory://b.zarr", y, 4)
    c = create_array("memory://c.zarr", (6, 5), "f8", (4, 5))
    records = StreamRecords(records_of(c), "now")
    first, second = cuts.regions
    with records.claimed():
        c.write(first, 1000 + x[:4, :half] @ y[:half])  # it stays if the sum is taken up
        records.keep(first, TileRecord(half, 0))
        plan = plan_cuts(Problem(a.form, b.form, c.form, 8), cuts, 1, 10**9)
        left = plan.remaining({first: half})
        job = StreamJob.of(left, 0, StreamProduct(a, b, c, "blas", None), records, "numpy", 30.0)
        assert stream_tiles(job) == left.bytes_read
        assert {records.tile(region).summed for region in (first, second)} == {8}
    expected = x @ y
    expected[:4] += 1000
    np.testing.assert_array_equal(c[:, :], expected)


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
def test_a_worker_that_cannot_go_there_says_so(cluster, disk):
    a = stored(f"{disk}/a.zarr", values((9, 9)), 5)
    cluster.run(forget)
    words = rf"fsspec cannot go to {disk}/a\.zarr \(ValueError: Protocol not known"
    with pytest.raises(ConfigError, match=words):
        multiply_stored(a, a, f"{disk}/c.zarr", cluster)
    cluster.run(register)
    c = multiply_stored(a, a, f"{disk}/c.zarr", cluster)
    np.testing.assert_array_equal(c[:, :], a[:, :] @ a[:, :])


K = 450


SLOW = {"kernel": "tiled", "tile": 5, "checkpoint": 0.0, "memory_limit": "9MB"}
"""Options under which a small product takes a while."""


def interrupted(a, b, c, cluster):
    """Name -> up to which k it is summed, of every tile that a product had recorded: it was
    interrupted when two were finished."""
    told, records = [], StreamRecords(records_of(c), "", c.storage_options)

    def recorded():
        found = {}
        for name in records._names("tile-"):
            with suppress(FileNotFoundError):
                found[name] = records._read(name)["summed"]
        return found

    def interrupt(*_):
        if not told and [*recorded().values()].count(K) >= 2:
            told.append(True)
            signal.raise_signal(signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            multiply_stored(a, b, c, cluster, progress=interrupt, **SLOW)
    finally:
        signal.signal(signal.SIGUSR1, before)
    return recorded()


def whole_and_resumed(a, b, url, cluster, damage, **options):
    """C, once its product was interrupted, damaged, resumed and found to be right."""
    c = create_array(url, (K, K), a.dtype, 50, **options)
    finished = [name for name, k in interrupted(a, b, c, cluster).items() if k == K]
    at = StreamRecords(records_of(c), "", c.storage_options)._read(finished[0])["region"]
    damage(c, tuple(map(tuple, at)))
    assert unfinished(c)
    with pytest.warns(UserWarning, match="1 of .* do not have their checksum"):
        d = multiply_stored(a, b, c, cluster, **SLOW)
    assert d.resumed_tiles == len(finished) - 1
    assert d.plan.tiles
    assert d.bytes_read.predicted == d.bytes_read.measured
    expected = (a[:, :].astype("f8") @ b[:, :].astype("f8")).astype(a.dtype)
    np.testing.assert_array_equal(d[:, :], expected)
    assert not unfinished(d)
    with pytest.raises(ConfigError, match="exists and is no unfinished product; overwrite=True"):
        multiply_stored(a, b, url, cluster, **options)
    return d


def one_element(c, region):
    """Another one, in that tile of C."""
    (top, bottom), (left, right) = region
    block = c[top:bottom, left:right]
    block[0, 0] += 1
    c.write(region, block)


def operands(folder, **options):
    return (
        stored(f"{folder}/{name}.zarr", values((K, K), seed, "f8"), 50, **options)
        for seed, name in enumerate("ab")
    )


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.parametrize("scheme", ["file", "disk"])
def test_a_product_by_url_is_resumed(cluster, disk, tmp_path, scheme):
    url = f"{scheme}://{tmp_path}"
    d = whole_and_resumed(*operands(url), f"{url}/c.zarr", cluster, one_element)
    assert sorted(os.listdir(tmp_path)) == ["a.zarr", "b.zarr", "c.zarr"]
    by_path = open_array(tmp_path / "c.zarr")
    assert by_path[:, :].tobytes() == d[:, :].tobytes()


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


CLIENT = """
import json, sys
sys.path.insert(0, sys.argv[1])
import tiledask as td
from oracles.disk_store import register

if __name__ == "__main__":
    register()
    options = json.loads(sys.argv[3])
    with td.start_cluster(workers=2, device="cpu", quiet=True) as cluster:
        cluster.run(register)
        a, b, c = (td.open_array(f"{sys.argv[2]}/{x}.zarr", storage_options=options) for x in "abc")
        td.matmul(a, b, out=c, cluster=cluster, **json.loads(sys.argv[4]))
"""


def taken_up_after_a_kill(cluster, url, folder, **options):
    """C, whose first client was killed when it had some tiles."""
    a, b = operands(url, **options)
    c = create_array(f"{url}/c.zarr", (K, K), "f8", 50, **options)
    (folder / "client.py").write_text(CLIENT)
    given = json.dumps(options.get("storage_options") or {}), json.dumps(SLOW)
    tests = Path(__file__).parents[2]
    client = subprocess.Popen([sys.executable, folder / "client.py", tests, url, *given])
    records = StreamRecords(records_of(c), "", c.storage_options)
    recorded = lambda: [records._read(name)["summed"] for name in records._names("tile-")]  # noqa: E731
    try:
        wait_until(lambda: K in recorded())
    finally:
        client.kill()
        client.wait()
    finished, began = recorded().count(K), time.monotonic()
    d = multiply_stored(a, b, c, cluster, **SLOW)
    # nothing but their leases says that client and workers are dead
    assert time.monotonic() - began - d.seconds > 20
    assert d.resumed_tiles >= finished >= 1
    assert d.plan.tiles
    np.testing.assert_array_equal(d[:, :], a[:, :] @ b[:, :])
    assert not UrlFolder(records_of(d), d.storage_options).exists()


@pytest.mark.slow
@pytest.mark.cluster
def test_a_client_that_dies_is_taken_up_by_another(cluster, disk, tmp_path):
    taken_up_after_a_kill(cluster, disk, tmp_path)


@pytest.fixture(scope="module")
def s3():
    """(URL of a bucket, storage_options) of an S3 server on this machine."""
    why = "pip install s3fs 'moto[server]' for a server of S3 on this machine"
    pytest.importorskip("s3fs", reason=why)
    server = pytest.importorskip("moto.server", reason=why).ThreadedMotoServer("127.0.0.1", 0)
    server.start()
    try:
        _, port = server.get_host_and_port()
        options = {"endpoint_url": f"http://127.0.0.1:{port}", "key": "me", "secret": "hunter2"}
        fsspec.filesystem("s3", **options).mkdir("bucket")
        yield "s3://bucket", options
    finally:
        server.stop()


@pytest.mark.slow
@pytest.mark.cluster
def test_products_on_s3_are_resumed(cluster, s3, tmp_path, monkeypatch):
    url, options = s3
    a, b = operands(url, storage_options=options)
    by_path = multiply_stored(a, b, tmp_path / "c.npy", cluster)
    d = whole_and_resumed(a, b, f"{url}/c.zarr", cluster, one_element, storage_options=options)
    assert d[:, :].tobytes() == by_path[:, :].tobytes()

    def one_chunk(c, region):
        (top, _), (left, _) = region
        name = f"c/{top // c.chunks[0]}/{left // c.chunks[1]}"
        c.folder.write(name, c.folder.read(name)[:-1])

    whole_and_resumed(a, b, f"{url}/d.zarr", cluster, one_chunk, storage_options=options)
    names = {name.split("/")[0] for name, _ in UrlFolder(url, options).files()}
    assert names == {"a.zarr", "b.zarr", "c.zarr", "d.zarr"}


@pytest.mark.slow
@pytest.mark.cluster
def test_a_client_that_dies_is_taken_up_on_s3(cluster, s3, tmp_path):
    url, options = s3
    taken_up_after_a_kill(cluster, f"{url}/killed", tmp_path, storage_options=options)


@pytest.mark.slow
def test_what_s3_has_not_or_does_not_let_in(s3, monkeypatch):
    url, options = s3
    with pytest.raises(ConfigError, match=r"s3://bucket/none\.zarr names no zarr array"):
        open_array(f"{url}/none.zarr", storage_options=options)
    with pytest.raises(ConfigError, match=r"there is no such bucket .* name another"):
        create_array("s3://nobody/a.zarr", (2, 2), "f4", storage_options=options)
    elsewhere = {**options, "endpoint_url": "http://127.0.0.1:9"}
    with pytest.raises(ConfigError, match=r"cannot be read \(EndpointConnectionError: ") as refused:
        open_array(f"{url}/a.zarr", storage_options=elsewhere)
    assert "hunter2" not in str(refused.value)


@pytest.mark.slow
@pytest.mark.parametrize("form", [2, 3, "sharded"])
def test_regions_on_s3(s3, form):
    url, options = s3
    x, path = values(seed=form if form != "sharded" else 9), f"{url}/{form}.zarr"
    more = {"shards": (10, 8)} if form == "sharded" else {}
    kind = 2 if form == 2 else 3
    zarr.create_array(
        path,
        shape=SHAPE,
        dtype="f4",
        chunks=(5, 4),
        zarr_format=kind,
        storage_options=options,
        fill_value=99,
        **more,
    )[:] = x
    array = open_array(path, storage_options=options)
    before = array.identity()
    np.testing.assert_array_equal(array[:, :], x)
    array.write(((4, 19), (3, 17)), 7 * x[4:19, 3:17])
    x[4:19, 3:17] *= 7
    np.testing.assert_array_equal(zarr.open_array(path, mode="r", storage_options=options)[:], x)
    assert array.identity() != before
    assert open_array(path, storage_options=options) == array
    file, before = CHUNK[form], array.identity()
    other = fsspec.filesystem("s3", skip_instance_cache=True, **options)  # as another process
    other.rm(f"bucket/{form}.zarr/{file}")
    assert array.identity()["files"] == before["files"] - 1
    for read in (lambda: open_array(path, storage_options=options), lambda: array[10, 1]):
        with pytest.raises(ConfigError, match=rf"{file}.* is missing; write it"):
            read()


@pytest.mark.slow
def test_one_of_two_has_a_lease_on_s3(s3, monkeypatch):
    monkeypatch.setattr(by_url, "_BEAT", 0.1)
    monkeypatch.setattr(by_url, "_STALE", 2.0)
    folder, had, had_not = UrlFolder(s3[0] + "/leases", s3[1]), [], []
    barrier = threading.Barrier(4)

    def tries():
        barrier.wait()
        try:
            with folder.locked("lock", 0.0):
                had.append(True)
                wait_until(lambda: len(had) + len(had_not) == 4)
        except TimeoutError:
            had_not.append(True)

    threads = [threading.Thread(target=tries) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(240)
    assert len(had) == 1
    folder.write("lock", b"dead 1")
    with folder.locked("lock", 0.0):
        pass
    assert not folder.exists("lock")
