"""What a worker does for a product of stored matrices, in this process.

Holds `tiledask.distributed.out_of_core.stream_tiles`.
"""

from threading import Event

import numpy as np
import pytest

from tiledask.distributed.out_of_core.checksums import checksum
from tiledask.distributed.out_of_core.stored import StoredArray, create_array, records_of
from tiledask.distributed.out_of_core.stream_tiles import (
    StreamJob,
    StreamProduct,
    stream_tiles,
)
from tiledask.distributed.out_of_core.unfinished import StreamRecords, TileRecord
from tiledask.plan.products.streaming import Cuts, Problem, plan_cuts


@pytest.mark.long
def test_what_is_read_at_a_time_is_counted_whoever_is_done_first(tmp_path, monkeypatch):
    """The partial sum is read on one thread, the panels on another: here A within C's read."""
    cuts, half = Cuts((0, 6), (0, 5), 4), 4
    a, b, c = (
        create_array(tmp_path / f"{name}.npy", shape, "f8")
        for name, shape in (("a", (6, 8)), ("b", (8, 5)), ("c", (6, 5)))
    )
    for array in (a, b):
        array.write(tuple((0, n) for n in array.shape), np.ones(array.shape))
    ((region),) = cuts.regions
    records = StreamRecords(records_of(c), "now")
    begun, panel, read = Event(), Event(), StoredArray.read

    def slowly(array, where, out):
        if array.path == c.path:
            begun.set()
            assert panel.wait(240)
        elif array.path == a.path:
            assert begun.wait(240)
        else:  # B's panel comes after A's, which is counted by now
            panel.set()
        return read(array, where, out)

    with records.claimed():
        c.write(region, a[:, :half] @ b[:half, :])
        check = checksum(c, region, lambda rows, columns: c[rows, columns])
        records.keep(region, TileRecord(half, check))
        plan = plan_cuts(Problem(a.form, b.form, c.form, 8), cuts, 1, 10**9)
        left = plan.remaining({region: half})
        product = StreamProduct(a, b, c, "blas", None)
        job = StreamJob.of(left, 0, product, records, "numpy", 30.0)
        monkeypatch.setattr(StoredArray, "read", slowly)
        assert stream_tiles(job) == left.bytes_read == 8 * (6 * 5 + 6 * half + half * 5)
    np.testing.assert_array_equal(c[:, :], np.full((6, 5), 8.0))
