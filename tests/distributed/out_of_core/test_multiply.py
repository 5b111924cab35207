"""Products of stored matrices: right, counted to the byte, within memory, and never lost."""

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import zarr
from oracles.waiting import wait_until

from tiledask.distributed.out_of_core import multiply
from tiledask.distributed.out_of_core import stored as stored_arrays
from tiledask.distributed.out_of_core.multiply import multiply_stored
from tiledask.distributed.out_of_core.stored import open_array
from tiledask.errors import ConfigError, DeadlineError, DoesNotFitError, KernelError, PlacementError
from tiledask.plan.products.streaming import plan_cuts

pytestmark = pytest.mark.cluster


def integers(shape, seed=0, dtype="f4", scale=1):
    """Small integers: sums are exact in every order; times ``scale`` they are rounded otherwise."""
    x = np.random.default_rng(seed).integers(-4, 5, shape) * scale
    return x.astype(dtype)


def stored(path, x, lies="C"):
    """``x`` in a .npy file, or in zarr chunks of that extent."""
    if lies == "C":
        np.save(f"{path}.npy", x)
        return open_array(f"{path}.npy")
    zarr.create_array(f"{path}.zarr", shape=x.shape, dtype=x.dtype, chunks=(lies, lies))
    array = open_array(f"{path}.zarr")
    array.write(((0, x.shape[0]), (0, x.shape[1])), x)
    return array


def operands(folder, m, k, n, dtype="f4", lies=("C", "C"), scale=1):
    a, b = integers((m, k), 1, dtype, scale), integers((k, n), 2, dtype, scale)
    return stored(folder / "a", a, lies[0]), stored(folder / "b", b, lies[1])


def check(c, a, b):
    right = (np.asarray(a).astype("f8") @ np.asarray(b).astype("f8")).astype(a.dtype)
    np.testing.assert_array_equal(np.asarray(c), right)
    assert c.bytes_read.predicted == c.bytes_read.measured
    assert not os.path.exists(f"{c.path}.tiledask")


SLOW = {"memory_limit": "9MB", "kernel": "tiled", "tile": 5}
"""Options under which a small product takes a while."""


def records(path):
    """The tiles that are recorded as finished, in the order in which they were."""
    with suppress(FileNotFoundError):
        return json.loads(Path(f"{path}.tiledask").read_text())["tiles"]
    return []


def resumed(c):
    """How many tiles an earlier run had finished."""
    return len([*c.plan.cuts.regions]) - sum(map(len, c.plan.tiles))


SIZES = [((1, 1, 1), "f4"), ((1, 300, 2), "f4"), ((130, 1, 70), "f4"), ((257, 129, 300), "f4")]
SIZES += [((30, 4000, 20), "f2")]  # halves are summed in float32, panel by panel


@pytest.mark.few(3)
@pytest.mark.parametrize("lies", [("C", "C", "npy"), ("C", 30, "npy"), (40, 33, "zarr")])
@pytest.mark.parametrize(("sizes", "dtype"), SIZES)
def test_ragged_sizes_in_every_form(cluster, tmp_path, monkeypatch, sizes, dtype, lies):
    monkeypatch.setattr(stored_arrays, "CHUNK", 50)
    m, k, n = sizes
    a, b = operands(tmp_path, m, k, n, dtype, lies[:2])
    least = 8_600_000 + (0 if lies == ("C", "C", "npy") else 100_000)
    c = multiply_stored(a, b, tmp_path / f"c.{lies[2]}", cluster, memory_limit=least)
    check(c, a, b)
    assert c.plan.cuts.panel < 4000


@pytest.mark.few(2)
@pytest.mark.parametrize("dtype", ["f2", "f8"])
@pytest.mark.parametrize("name", ["c.npy", "c.zarr"])
def test_a_result_is_created_and_never_overwritten_unasked(cluster, tmp_path, dtype, name):
    a, b = operands(tmp_path, 100, 90, 80, dtype, lies=("C", 32))
    c = multiply_stored(a, b, tmp_path / name, cluster, memory_limit="60MB")
    check(c, a, b)
    np.testing.assert_array_equal(np.asarray(open_array(tmp_path / name)), np.asarray(c))
    assert c.seconds > 0
    one = stored(tmp_path / "e", np.eye(80, 7, dtype=dtype))
    for kernel in ("tiled", "loops"):
        d = multiply_stored(c, one, tmp_path / f"{kernel}.npy", cluster, kernel=kernel)
        np.testing.assert_array_equal(np.asarray(d), np.asarray(c)[:, :7])
    with pytest.raises(ConfigError, match=r"exists and is no unfinished product; overwrite=True"):
        multiply_stored(a, b, c.path, cluster)
    check(multiply_stored(a, b, c.path, cluster, overwrite=True), a, b)
    check(multiply_stored(a, b, open_array(c.path), cluster), a, b)  # what is given is to be filled


@pytest.mark.few(1)
@pytest.mark.parametrize(("n", "lies"), [(2500, ("C", "C", "npy")), (2048, (400, 400, "zarr"))])
def test_memory_far_below_the_operands_is_enough(cluster, tmp_path, monkeypatch, n, lies):
    monkeypatch.setattr(stored_arrays, "CHUNK", 400)
    limit = min(40_000_000, n * n * 8)
    a, b = operands(tmp_path, n, n, n, "f8", lies[:2])
    assert 3 * a.nbytes > 2.5 * limit
    c = multiply_stored(a, b, tmp_path / f"c.{lies[2]}", cluster, memory_limit=limit)
    check(c, a, b)
    predicted, measured = c.memory.predicted, c.memory.measured.per_place
    assert predicted.peak <= limit
    for slot, peak in predicted.per_place.items():
        rows = [row for row in predicted.rows if (row.place, row.moment) == (slot, "always")]
        panels_and_tile = sum(row.bytes for row in rows)
        assert 0.4 * peak < panels_and_tile
        assert 0.9 * panels_and_tile < measured[slot] <= peak


CLIENT = """
import sys
import tiledask as td

if __name__ == "__main__":
    with td.start_cluster(workers=2, device="cpu", quiet=True) as cluster:
        a, b, c = sys.argv[1:4]
        td.matmul(td.open_array(a), td.open_array(b), out=c, cluster=cluster, memory_limit="9MB",
                  kernel="tiled", tile=12)
"""


def test_a_client_that_dies_is_taken_up_by_another(cluster, tmp_path, monkeypatch):
    a, b = operands(tmp_path, 600, 600, 600, "f8", scale=np.pi)
    target = tmp_path / "c.npy"
    (tmp_path / "client.py").write_text(CLIENT)
    client = subprocess.Popen([sys.executable, tmp_path / "client.py", a.path, b.path, target])
    wait_until(lambda: len(records(target)) >= 2)
    client.send_signal(signal.SIGKILL)
    client.wait()
    begun = records(target)
    d = multiply_stored(a, b, target, cluster, timeout=200, **SLOW | {"tile": 12})
    assert resumed(d) == len(begun) >= 2
    assert d.bytes_read.predicted == d.bytes_read.measured
    same_cuts = lambda problem, slots, limit: plan_cuts(problem, d.plan.cuts, slots, limit)  # noqa: E731
    monkeypatch.setattr(multiply, "plan_stream", same_cuts)
    whole = multiply_stored(a, b, tmp_path / "whole.npy", cluster, **SLOW | {"tile": 12})
    assert np.asarray(whole).tobytes() == np.asarray(d).tobytes()


K = 450


@pytest.mark.slow
def test_an_interrupted_product_goes_on_or_says_why_not(cluster, tmp_path):
    """It stops in the middle of tiles, and leaves nothing at work."""
    a, b = operands(tmp_path, K, K, K, "f8", lies=("C", 50))
    c, told = tmp_path / "c.npy", []

    def product(**options):
        return multiply_stored(a, b, c, cluster, **SLOW | options)

    def interrupt(*_):
        if not told and len(records(c)) >= 2:
            told.append(True)
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        product(progress=interrupt)
    finished = records(c)
    quick = [cluster.submit(slot, abs, -slot) for slot in range(cluster.slots)]
    assert cluster.gather(quick, "what runs now", timeout=240) == list(range(cluster.slots))
    assert records(c) == finished

    with pytest.raises(DoesNotFitError, match=r"allowed are 8.5 MB; .* overwrite=True"):
        product(memory_limit="8.5MB")
    with pytest.raises(ConfigError, match=r"B, .*c\.npy, is the result of a product that"):
        multiply_stored(a, open_array(c), tmp_path / "d.npy", cluster)
    with pytest.raises(ConfigError, match=r"another kernel and tile; .* overwrite=True"):
        product(tile=32)
    plan = Path(f"{c}.tiledask")
    right = plan.read_text()
    about = json.loads(right)
    for text in ("{", "[1]", json.dumps(about | {"cuts": [[0, 0], [0, 7], 5]}), right + "x"):
        plan.write_text(text)
        with pytest.raises(ConfigError, match=r"is damaged.*overwrite=True starts over"):
            product()

    plan.write_text(right)
    d = product(memory_limit="1GB")
    assert resumed(d) == len(finished) >= 2
    assert sum(map(len, d.plan.tiles)) > 0
    assert [[*d.plan.cuts.rows], [*d.plan.cuts.columns], d.plan.cuts.panel] == about["cuts"]
    check(d, a, b)

    plan.write_text(right)
    a.write(((0, 1), (0, 1)), np.array([[7.0]]))
    with pytest.raises(ConfigError, match=r"records a product with another A; .* overwrite=True"):
        product()
    d = product(overwrite=True, tile=32)
    assert resumed(d) == 0
    check(d, a, b)
    plan.write_text(right)  # and of a result that is not there nothing is gone on with
    os.remove(c)
    check(product(), a, b)


def test_a_late_product_stops_and_goes_on_and_says_how_far_it_is(cluster, tmp_path):
    a, b = operands(tmp_path, 340, 340, 340)
    told = []  # a rank reports four times a second
    with pytest.raises(DeadlineError, match="not done after"):
        multiply_stored(a, b, tmp_path / "c.npy", cluster, timeout=0.1, **SLOW)
    say = lambda *done: told.append(done)  # noqa: E731
    c = multiply_stored(a, b, tmp_path / "c.npy", cluster, progress=say, **SLOW)
    check(c, a, b)
    panels = sum(map(len, c.plan.tiles)) * len(c.plan.cuts.panels(340))
    assert {total for _, total in told} == {panels}
    assert told == sorted(told)
    assert told[-1][0] == panels > told[0][0]


def test_what_does_not_go_together(cluster, tmp_path):
    a, b = operands(tmp_path, 20, 30, 10)
    out = tmp_path / "c.npy"
    square = stored(tmp_path / "square", integers((30, 30), 3))
    for error, words, (x, y, z), options in [
        (PlacementError, "30 columns and B .* 20 rows", (a, a, out), {}),
        (ConfigError, "is an operand", (a, square, a), {}),
        (PlacementError, "name another file", (a, b, b), {}),
        (KernelError, "no tile to choose", (a, b, out), {"tile": 8}),
        (ConfigError, "a timeout is a number", (a, b, out), {"timeout": -1}),
        (DoesNotFitError, "allowed are 1 MB", (a, b, out), {"memory_limit": "1MB"}),
    ]:
        with pytest.raises(error, match=words):
            multiply_stored(x, y, z, cluster, **options)
        assert not out.exists()
        assert not os.path.exists(f"{out}.tiledask")


def test_an_operand_that_changes(cluster, tmp_path):
    a, b = operands(tmp_path, 400, 400, 400)
    with pytest.raises(ConfigError, match=r"an operand changed while it was multiplied: .* mixes"):
        multiply_stored(a, b, tmp_path / "c.npy", cluster, progress=lambda *_: os.utime(b.path))
