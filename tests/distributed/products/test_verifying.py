"""verify=True: no false alarm, no damage that is not seen, and what is damaged made again.

Holds `tiledask.distributed.arrays.block_sums`,
`tiledask.distributed.products.verifying.by_blocks`,
`tiledask.distributed.products.verifying.by_signs`,
`tiledask.distributed.products.verifying.exact_rows`,
`tiledask.distributed.products.verifying.on_entry` and
`tiledask.distributed.products.verifying.tiles`.
"""

import os
import signal
import uuid
import warnings
from dataclasses import replace
from itertools import product
from unittest import mock

import dask.array as da
import numpy as np
import pytest

import tiledask as td
from tiledask import Replicate, Shard
from tiledask.distributed.arrays.block_sums import changed, sum_of
from tiledask.distributed.cluster import worker as on_worker
from tiledask.distributed.products import lazy_tasks
from tiledask.distributed.products.verifying.by_blocks import Comparing
from tiledask.distributed.products.verifying.by_signs import compare, expected_of, weighers
from tiledask.distributed.products.verifying.exact_rows import ExactRows
from tiledask.distributed.products.verifying.on_entry import check_verify
from tiledask.distributed.products.verifying.tiles import TileCheck
from tiledask.errors import ConfigError, DamagedBlockError, PlacementError
from tiledask.plan.products.placement import Partial, Tiling
from tiledask.plan.products.product import algorithms, plan_product
from tiledask.plan.products.regions import slices
from tiledask.tile.backend import accumulator, as_dtype

ALL = (Shard(0), Shard(1), Replicate())
GRID = (Shard(0), Shard(1))
TYPES = ("float32", "float64", "float16", "bfloat16")


def rms(c):
    return float(np.sqrt(np.mean(np.square(c, dtype=float))))


def wide(x):
    return x.astype(accumulator(x.dtype))


def weighed(plan, a, b, c, seed, operands=True):
    keys = [(f"a-{uuid.uuid4()}", f"b-{uuid.uuid4()}") for _ in range(plan.ranks)]
    for rank, weigher in enumerate(weighers(plan, seed, keys, operands)):
        blocks = a[slices(plan.a.regions[rank])], b[slices(plan.b.regions[rank])]
        yield weigher.weigh(*blocks, c[rank])


def compared(plan, a, b, c, seed, known=False):
    """What the ranks of ``plan`` find, whose blocks are those of a, b and, by rank, of c; when
    they look over c alone, if what it has to give is ``known``."""
    found = list(weighed(plan, a, b, c, seed))
    expected = expected_of(plan, found)
    if known:
        found = list(weighed(plan, a, b, c, seed, operands=False))
    return compare(plan, found, expected)


def blocks_of(plan, c):
    return [np.array(c[slices(region)]) for region in plan.result.regions]


# -- no false alarm ------------------------------------------------------------------------------


def drawn(rng, kind, dtype):
    """Two small matrices that are hard to tell rounding in."""
    m, k, n = rng.integers(1, 40, 3)
    a, b = rng.standard_normal((m, k)), rng.standard_normal((k, n))
    if kind == "rows":
        a *= 10.0 ** rng.integers(-4, 5, (m, 1))
    elif kind == "terms":
        scale = 10.0 ** rng.integers(-4, 5, k)
        a, b = a * scale, b / scale[:, None]
    elif kind == "all":
        a *= 10.0 ** rng.integers(-3, 4, a.shape)
        b *= 10.0 ** rng.integers(-3, 4, b.shape)
    elif kind == "positive":
        a, b = np.abs(a), np.abs(b)
    elif kind == "equal":
        a[...], b[...] = 1.1, 1.3
    elif kind == "cancelling":  # what is added is taken away again, nearly
        half = k // 2
        a[:, half : 2 * half] = -a[:, :half] * (1 + 1e-3 * rng.standard_normal((m, half)))
        b[half : 2 * half] = b[:half]
    elif kind == "tiny":
        a, b = a * 1e-25, b * 1e-20
    elif kind == "huge":
        a, b = a * 1e25, b * 1e20
    with np.errstate(over="ignore"):
        return a.astype(as_dtype(dtype)), b.astype(as_dtype(dtype))


KINDS = ("plain", "rows", "terms", "all", "positive", "equal", "cancelling", "tiny", "huge")


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.parametrize("part", range(10))
def test_no_false_alarm_in_ten_thousand_draws(part):
    again = alone = 0
    for seed in range(1000 * part, 1000 * (part + 1)):
        rng = np.random.default_rng(seed)
        a, b = drawn(rng, KINDS[seed % len(KINDS)], TYPES[seed % len(TYPES)])
        with np.errstate(over="ignore", invalid="ignore"):
            c = wide(a) @ wide(b)
        mesh = (1, 2) if seed % 2 else (1, 1)
        placed = [Tiling(x.shape, mesh, (Replicate(), Shard(1))) for x in (a, b)]
        plan = plan_product("summa", *placed)
        blocks, columns = blocks_of(plan, c), ((0, c.shape[1]),)
        off = [rows + columns for rows in compared(plan, a, b, blocks, seed).wrong.values()]
        # of C's size a few rows tell less: then all is looked at, and this is what is found
        alone += not compared(plan, a, b, blocks, seed, known=True).right
        whole, deep = ((0, c.shape[0]), *columns), (0, a.shape[1])
        pieces = [((whole[0], deep), a)], [((deep, whole[1]), b)]
        check = TileCheck()
        check.begin(whole, c, adds=False)
        check.add(*pieces)
        if (row := check.off(c)) is not None:
            off.append(row)
        for row in off:  # equal numbers are rounded alike: told from damage by a look in float64
            again, exact = again + 1, ExactRows(row)
            exact.add(*pieces)
            assert exact.explain(c[slices(row)]), seed
    assert again <= 10
    assert alone <= 10


def test_sums_in_any_order_are_within_rounding():
    """Naive sums of equal numbers are as far off as rounding comes: told from damage in float64."""
    k = 4096
    a, b = np.full((2, k), 1.1, "f4"), np.full((k, 3), 1.3, "f4")
    c = np.zeros((2, 3), "f4")
    for i in range(k):
        c += a[:, i, None] * b[i]
    row = ((0, 1), (0, 3))
    exact = ExactRows(row)
    exact.add([(((0, 2), (0, k)), a)], [(((0, k), (0, 3)), b)])
    assert exact.explain(c[:1])
    c[0, 1] *= 1.01
    assert not exact.explain(c[:1])


# -- every damage is seen ------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.few(2)
@pytest.mark.parametrize("mesh", [(2, 2), (2, 3), (4,)])
@pytest.mark.parametrize("shapes", [((7, 5), (5, 6)), ((130, 40), (40, 70)), ((5,), (5, 6)),
                                    ((7, 5), (5,)), ((3, 70, 8), (8, 9))])  # fmt: skip
def test_one_damaged_element_is_seen_and_located_in_every_plan(mesh, shapes):
    rng = np.random.default_rng(len(mesh))
    a, b = (rng.standard_normal(shape).astype("f4") for shape in shapes)
    c, tried = a @ b, 0
    for placed in product(*[ALL] * len(mesh) * 2):
        of_a, of_b = placed[: len(mesh)], placed[len(mesh) :]
        for algorithm in algorithms:
            try:
                tilings = Tiling(a.shape, mesh, of_a), Tiling(b.shape, mesh, of_b)
                plan = plan_product(algorithm, *tilings)
            except PlacementError:
                continue
            if any(isinstance(p, Partial) for p in plan.result.placements):
                continue
            blocks, tried = blocks_of(plan, c), tried + 1
            assert compared(plan, a, b, blocks, tried).right
            rank = int(rng.choice([r for r, block in enumerate(blocks) if block.size]))
            at = int(rng.integers(blocks[rank].size))
            blocks[rank].reshape(-1)[at] += rng.choice([-1, 1]) * 1e-2 * rms(c)
            found = compared(plan, a, b, blocks, tried)
            assert list(found.wrong) == [rank], (algorithm, tilings)
            assert not compared(plan, a, b, blocks, tried, known=True).right
            columns = plan.result.regions[rank][-1] if b.ndim > 1 else (0, 1)
            if a.ndim == 2:  # the rows that are said have the element
                row = plan.result.regions[rank][0][0] + at // (columns[1] - columns[0])
                ((start, stop),) = found.wrong[rank]
                assert start <= row < stop
    assert tried


@pytest.mark.slow
@pytest.mark.parametrize(("n", "dtype"), [(1024, "float32"), (2048, "float32"), (4096, "float32"),
                                          (1024, "float64"), (1024, "float16"),
                                          (1024, "bfloat16")])  # fmt: skip
def test_one_hundredth_of_the_rms_is_seen_in_large_blocks(n, dtype):
    rng = np.random.default_rng(n)
    a, b = (rng.standard_normal((n, n)).astype(as_dtype(dtype)) for _ in range(2))
    whole = Tiling((n, n), (1,), (Replicate(),))
    plan, c = plan_product("local", whole, whole), wide(a) @ wide(b)
    assert compared(plan, a, b, [c], 0).right
    for seed in range(20):
        at, size = tuple(rng.integers(n, size=2)), 1e-2 * rms(c)
        before, c[at] = c[at], c[at] + size
        for known in (False, True):
            assert list(compared(plan, a, b, [c], seed, known).wrong) == [0]
        c[at] = before


@pytest.mark.parametrize("dtype", TYPES)
def test_the_sum_of_a_block_sees_every_bit(dtype):
    x = np.arange(15, dtype="f4").reshape(3, 5).astype(as_dtype(dtype))
    for view in (x, x.T, x[:, 1:4], x[1, 2:3].reshape(())):
        y = view.copy(order="K")
        lies = y if y.flags.c_contiguous else y.T
        before, raw = sum_of(y), lies.reshape(-1).view(np.uint8)
        for at in range(len(raw)):
            for bit in range(8):
                raw[at] ^= 1 << bit
                assert sum_of(y) != before
                raw[at] ^= 1 << bit
        assert sum_of(y) == before
    key = f"block-of-{dtype}"
    assert not changed(key, x)
    x.reshape(-1).view(np.uint8)[3] ^= 16
    assert changed(key, x)


# -- lazy ----------------------------------------------------------------------------------------


def damaged_tiles(monkeypatch, times, size):
    """The next ``times`` panels of lazy products leave an element of their tile wrong."""
    left = [times]

    def multiplied(self, begun):
        if left[0]:
            left[0] -= 1
            self.c[(0,) * self.c.ndim] += size

    monkeypatch.setattr(lazy_tasks._TaskLine, "multiplied", multiplied)


def lazy(x, y, **options):
    chunked = (da.from_array(z, chunks=(13,) * z.ndim) for z in (x, y))
    return td.matmul(*chunked, **options)


def now(array):
    return array.compute(scheduler="synchronous")


@pytest.mark.parametrize("shapes", [((50, 70), (70, 40)), ((3, 30, 20), (20, 9)), ((70,), (70, 40)),
                                    ((50, 70), (70,))])  # fmt: skip
@pytest.mark.parametrize("dtype", TYPES)
def test_a_tile_of_a_lazy_product_is_multiplied_again(monkeypatch, dtype, shapes):
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal(shape).astype(as_dtype(dtype)) for shape in shapes)
    expected = now(lazy(x, y))
    assert now(lazy(x, y, verify=True)).tobytes() == expected.tobytes()
    damaged_tiles(monkeypatch, 1, 0.3)
    with pytest.warns(UserWarning, match="of a lazy product was multiplied wrong, and again"):
        assert now(lazy(x, y, verify=True)).tobytes() == expected.tobytes()
    damaged_tiles(monkeypatch, 1, 0.3)
    assert now(lazy(x, y)).tobytes() != expected.tobytes()  # nothing asked for it
    damaged_tiles(monkeypatch, 10**6, 0.3)
    with pytest.raises(DamagedBlockError, match="multiplied wrong twice"):
        now(lazy(x, y, verify=True))


def test_what_verify_may_be_is_said():
    for right in (True, False, "finite"):
        check_verify(right)
    with pytest.raises(ConfigError, match='verify is True, False or "finite"'):
        check_verify("yes")
    x = da.ones((4, 4))
    with pytest.raises(ConfigError, match="verify of a lazy product"):
        td.matmul(x, x, verify="finite")


# -- on workers ----------------------------------------------------------------------------------


def flip(slot, key, at, dask_worker):
    """A bit of a block in the memory of its worker."""
    from tiledask.distributed.cluster.cluster import slot_on

    if slot_on(dask_worker) == slot:
        block = dask_worker.data[key]
        block.setflags(write=True)
        block.reshape(-1).view(np.uint8)[at] ^= 64


def bad_line(slot, times, method, size, dask_worker):
    """On one worker, the next ``times`` panels are damaged as they come ("read"), or what was
    multiplied ("multiplied"); 0 ends that."""
    from tiledask.distributed.cluster.cluster import slot_on
    from tiledask.distributed.products.multiply import _Line

    own = _Line.__dict__
    if not hasattr(_Line, "_right"):
        _Line._right = {"read": own["_read"], "multiplied": own["multiplied"]}
    _Line._read, _Line.multiplied = _Line._right["read"], _Line._right["multiplied"]
    left = [times if slot_on(dask_worker) == slot else 0]

    def read(self, *args):
        part = _Line._right["read"](self, *args)
        if left[0]:
            left[0] -= 1
            part[3, 2] += size
        return part

    def multiplied(self, begun):
        if left[0]:
            left[0] -= 1
            self.stays["C"][3, 2] += size
        _Line._right["multiplied"](self, begun)

    if times:
        setattr(_Line, {"read": "_read"}.get(method, method), locals()[method])


@pytest.fixture
def operands(cluster):
    rng = np.random.default_rng(7)
    mesh = td.Mesh(cluster, (2, 2))
    a, b = (rng.standard_normal(shape).astype("f4") for shape in ((60, 50), (50, 40)))
    yield [td.distribute(x, mesh, GRID) for x in (a, b)]
    cluster.run(bad_line, 0, 0, "", 0.0)


@pytest.mark.cluster
@pytest.mark.few(2)
@pytest.mark.parametrize("algorithm", ["summa", "row_parallel", "2.5d", "cannon"])
def test_nothing_more_moves_and_the_bits_are_the_same(operands, algorithm):
    plain = td.to_numpy(td.matmul(*operands, algorithm=algorithm))
    c = td.matmul(*operands, algorithm=algorithm, verify=True)
    assert (c.verified.blocks, c.verified.repaired) == (4, ())
    assert repr(c).endswith("verified)")
    assert td.to_numpy(c).tobytes() == plain.tobytes()
    assert c.traffic.predicted == c.traffic.measured
    assert c.memory.measured.peak <= c.memory.predicted.peak


@pytest.mark.cluster
def test_operands_that_were_right_are_looked_at_again_when_c_is_not(cluster, operands):
    """A second product of the same operands looks over C alone, as long as that is right."""
    expected = td.to_numpy(td.matmul(*operands, verify=True)).tobytes()
    of_all = Comparing._of_all
    with mock.patch.object(Comparing, "_of_all", autospec=True, side_effect=of_all) as of:
        td.matmul(*operands, verify=True)
        (call,) = of.call_args_list
        assert not any(found.a or found.b for found in call.args[1].values())
        cluster.run(flip, 1, str(operands[0].blocks[1].key), 4 * 11 + 3)
        with pytest.warns(UserWarning, match=r"of A on rank 1, slot 1 was damaged, and was made"):
            c = td.matmul(*operands, verify=True)
        assert of.call_count == 4  # that C is off, in what, and that it is right; the next of which
    assert td.to_numpy(c).tobytes() == expected


@pytest.mark.cluster
def test_a_bit_of_an_operand_that_flips_in_memory_is_found_and_the_block_made_again(
    cluster, operands
):
    expected = td.to_numpy(td.matmul(*operands)).tobytes()
    for which, name in enumerate("AB"):
        block = operands[which].blocks[2]
        cluster.run(flip, 2, str(block.key), 4 * 11 + 3)
        words = rf"the block \[.*\] of {name} on rank 2, slot 2 was damaged, and was made again"
        with pytest.warns(UserWarning, match=words):
            c = td.matmul(*operands, verify=True)
        assert td.to_numpy(c).tobytes() == expected
        assert len(c.verified.repaired) == 1
        assert c.traffic.predicted == c.traffic.measured
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert td.matmul(*operands, verify=True).verified.repaired == ()


@pytest.mark.cluster
@pytest.mark.parametrize(("method", "size"), [("read", 30.0), ("multiplied", 0.5),
                                              ("multiplied", float("nan"))])  # fmt: skip
def test_what_is_damaged_on_the_way_or_in_c_is_located_and_multiplied_again(
    cluster, operands, method, size
):
    expected = td.to_numpy(td.matmul(*operands, algorithm="summa")).tobytes()
    cluster.run(bad_line, 3, 1, method, size)
    words = r"the block \[30:60, 20:40\] of C on rank 3, slot 3 was damaged"
    with pytest.warns(UserWarning, match=words):
        c = td.matmul(*operands, algorithm="summa", verify=True)
    assert td.to_numpy(c).tobytes() == expected
    assert c.traffic.predicted == c.traffic.measured
    cluster.run(bad_line, 3, 10**6, method, size)
    with pytest.raises(DamagedBlockError, match=r"twice: the block \[30:60, .* rank 3, slot 3"):
        td.matmul(*operands, algorithm="summa", verify=True)
    cluster.run(bad_line, 3, 1, method, size)
    c = td.matmul(*operands, algorithm="summa")  # nothing asked for it
    assert td.to_numpy(c).tobytes() != expected


@pytest.mark.cluster
def test_a_verified_product_is_an_operand_that_is_watched(cluster, operands):
    c = td.matmul(*operands, verify=True)
    expected = td.to_numpy(td.matmul(c.T, c)).tobytes()
    cluster.run(flip, 1, str(c.blocks[1].key), 7)
    square = operands[0].T  # any partner
    with pytest.warns(UserWarning, match="slot 1 was damaged"):
        td.matmul(square, c, verify=True)
    assert td.to_numpy(td.matmul(c.T, c)).tobytes() == expected


@pytest.mark.cluster
@pytest.mark.slow
def test_a_worker_that_died_looks_again(cluster, operands):
    a, b = operands
    c = td.matmul(a, b, verify=True)
    os.kill(cluster.run(on_worker.machine)[1]["pid"], signal.SIGKILL)
    again = td.matmul(a, b, verify=True, timeout=240)
    assert td.to_numpy(again).tobytes() == td.to_numpy(c, timeout=240).tobytes()
    assert again.verified.blocks == 4


@pytest.mark.cluster
def test_blocks_that_are_not_those_of_their_array_are_refused_by_name(cluster, operands):
    a, b = operands
    other = td.distribute(np.ones((60, 52), "f4"), a.mesh, GRID)
    double = td.distribute(np.ones((60, 50)), a.mesh, GRID)
    for wrong, words in ((other, r"\(30, 26\) float32"), (double, r"\(30, 25\) float64")):
        mixed = replace(a, blocks=(*a.blocks[:3], wrong.blocks[3]))
        with pytest.raises(PlacementError, match=rf"block of A on rank 3, slot 3, is {words}"):
            td.matmul(mixed, b)

    def shift(slot, key, dask_worker):
        from tiledask.distributed.cluster.cluster import slot_on

        if slot_on(dask_worker) == slot:
            block = dask_worker.data[key]
            raw = np.empty(block.nbytes + 1, np.uint8)[1:]
            raw[:] = block.reshape(-1).view(np.uint8)
            dask_worker.data[key] = raw.view(block.dtype).reshape(block.shape)

    expected = td.to_numpy(td.matmul(a, b)).tobytes()
    cluster.run(shift, 1, str(b.blocks[1].key))  # as what Dask had put on disk
    assert td.to_numpy(td.matmul(a, b, verify=True)).tobytes() == expected


@pytest.mark.cluster
def test_what_is_not_finite_is_refused_by_name_where_asked(cluster, operands):
    a, b = operands
    x = np.ones((50, 40), "f4")
    x[30, 35] = np.nan
    bad = td.distribute(x, a.mesh, GRID)
    with pytest.raises(PlacementError, match="block of B on rank 3, slot 3, has 1 elements"):
        td.matmul(a, bad, verify="finite")
    assert td.matmul(a, b, verify="finite").verified.blocks == 4
    assert td.matmul(a, bad, verify=True).verified.blocks == 4  # NaN it was, and NaN it is


@pytest.mark.cluster
def test_a_damaged_spool_is_refused_by_name(cluster, operands):
    a, _ = operands
    for damage in ("flipped", "cut", "missing"):
        before = {*cluster.spool.glob("*.npy")}
        x = td.distribute(np.ones((8, 8), "f4"), a.mesh, GRID)
        (file,) = {*cluster.spool.glob("*.npy")} - before
        data = bytearray(file.read_bytes())
        data[-2] ^= 1
        file.write_bytes(data if damage == "flipped" else data[:-40])
        if damage == "missing":
            file.unlink()
        cluster.run(flip, 3, str(x.blocks[3].key), 2)
        words = rf"block \[4:8, 4:8\] of an array cannot be made in slot 3 from {file}"
        with pytest.raises(DamagedBlockError, match=words):
            td.matmul(x, x, verify=True, timeout=240)
