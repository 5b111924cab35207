"""Rank functions: what they bring, laws, bytes as predicted, and ranks that disagree."""

import threading
import time
from contextlib import nullcontext
from functools import reduce
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from oracles.apart import apart

import tiledask as td
from tiledask.distributed.cluster.clocks import now
from tiledask.distributed.ranks.group import Group
from tiledask.distributed.ranks.threads import run_threads
from tiledask.errors import CollectiveError, ConfigError, DeadlineError, PlacementError

OPS = {"sum": np.add, "max": np.maximum, "min": np.minimum}
DTYPES = "float64", "float32", "float16", "bfloat16", "int32", "complex128"


def array(rank, shape, dtype="float64", scale=1):
    """Whole numbers, so that any order of summation gives the same; times ``scale``."""
    x = np.random.default_rng(rank).integers(-9, 9, shape) * scale
    return x.astype(td.tile.as_dtype(dtype))


def group_of(rank, checked, axis=0):
    """The ranks along ``axis``; unless ``checked`` those of a program, whose calls were."""
    whole = rank.group(axis)
    return whole if checked else Group(rank, whole.axes, whole.members, checked=False)


def run(program, shape, *args, **options):
    """Its Ranks, whose bytes and messages are those predicted."""
    done = run_threads(program, shape, *args, timeout=240, **options)
    wrong = [(r, r.counted, r.predicted) for r in done.records.mismatches]
    assert not wrong
    assert done.traffic.total == sum(r.received for r in done.records)
    assert done.traffic.count == sum(r.messages for r in done.records)
    return done


# -- what each collective brings -----------------------------------------------------------------


def everything(rank, checked, shape, dtype, algorithm, op, keep, scale=1):
    """All kinds of collectives; dimensions shorter than the group leave parts without rows."""
    g, x, how = group_of(rank, checked), array(rank.index, shape, dtype, scale), {}
    n, r, how["algorithm"] = g.size, g.rank, algorithm
    with rank.step(3), rank.label("layer"):
        made = [g.all_reduce(x, op, label="sum", keep=keep, **how)]
        made += [g.reduce(x, n // 2, op, **how), g.broadcast(x, n - 1, **how)]
        if shape:
            made.append(g.reduce_scatter(x, -1, op, label="scatter", keep=keep, **how))
            made.append(g.all_gather(x[: r % 3], label="gather", keep=keep, **how))
            made.append(g.all_to_all(x, 0, -1, **how))
        own = [c % 3 for c in range(n)]
        made.append(g.reduce_scatter(np.arange(sum(own)), extents=own, **how))
        parts = r + np.arange(n)  # of rank r, r + d numbers for rank d
        made.append(g.all_to_all(np.repeat(10 * r + np.arange(n), parts), extents=parts, **how))
        if n > 1:
            g.send(x, (r + 1) % n, label="shift", keep=keep)
            made.append(g.recv((r - 1) % n, label="shift"))
    return made


def expected(r, n, shape, dtype, op):
    """What NumPy makes of all arrays, for rank r."""
    xs, ends = [array(s, shape, dtype) for s in range(n)], np.cumsum([0, *np.arange(n) % 3])
    total = reduce(OPS[op], xs)
    made = [total, total if r == n // 2 else None, xs[n - 1]]
    if shape:
        made.append(np.array_split(total, n, axis=-1)[r])
        made.append(np.concatenate([x[: s % 3] for s, x in enumerate(xs)]))
        made.append(np.concatenate([np.array_split(x, n)[r] for x in xs], axis=-1))
    made.append(n * np.arange(ends[r], ends[r + 1]))
    made.append(np.repeat(10 * np.arange(n) + r, r + np.arange(n)))
    return [*made, xs[r - 1]] if n > 1 else made


def bits(arrays):
    return [None if a is None else (a.dtype, np.shape(a), a.tobytes()) for a in arrays]


def rows(done):
    """Its records, but for the time."""
    return [record._replace(begin=0.0, end=0.0) for record in done.records]


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 9),
    st.lists(st.integers(0, 5), max_size=3).map(tuple),
    st.sampled_from(DTYPES),
    st.sampled_from([None, "ring", "tree", "direct"]),
    st.sampled_from([*OPS]),
    st.booleans(),
)
@example(9, (5, 3), "float16", None, "sum", True)
@example(3, (50_000,), "float64", "tree", "sum", True)
@example(4, (300, 300), "float32", "ring", "max", False)
def test_each_collective_is_what_numpy_makes_of_all_arrays(n, shape, dtype, algorithm, op, keep):
    op = "sum" if dtype == "complex128" else op
    given = shape, dtype, algorithm, op, keep
    checked, of_program = (run(everything, n, each, *given) for each in (True, False))
    for r, made in enumerate(checked.results):
        assert bits(made) == bits(of_program.results[r]) == bits(expected(r, n, shape, dtype, op))
    assert rows(checked) == rows(of_program)


@pytest.mark.cluster
@pytest.mark.parametrize("hosts", [1, 2])
@pytest.mark.parametrize("checked", [False, True])
def test_on_workers_as_on_threads_to_the_bit(cluster, hosts, checked):
    """Large enough to be read from their owners' memory, too."""
    for shape, dtype in (((7, 5), "bfloat16"), ((300, 400), "float32")):
        given, mesh = (shape, dtype, None, "sum", not checked, np.pi), td.Mesh(cluster, (4,))
        with apart(cluster, hosts) if hosts > 1 else nullcontext():
            done = td.run_ranks(everything, mesh, checked, *given, timeout=240)
        here = run(everything, 4, True, *given)
        assert [*map(bits, done.results)] == [*map(bits, here.results)]
        assert (rows(done), done.traffic) == (rows(here), here.traffic)
        begun = [r.begin for r in done.records]
        assert max(begun) - min(begun) < 60.0
        assert abs(max(begun) - now()) < 60.0  # one clock, that of the day


def test_groups_lie_along_the_axes_of_the_mesh():
    def program(rank):
        groups = [rank.group(axis) for axis in (1, 0, (2, 0))]
        assert rank.group((0, 2)) is groups[2]
        assert all(g.members[g.rank] == rank.index for g in groups)
        return [(g.members, g.all_reduce(10.0**rank.index).item()) for g in groups]

    done = run(program, (2, 2, 2))
    members = (1, 3), (3, 7), (2, 3, 6, 7)
    assert done.results[3] == [(each, sum(10.0**rank for rank in each)) for each in members]
    assert {r.axes for r in done.records} == {(1,), (0,), (0, 2)}


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=6),
    *(st.integers(0, 4), st.integers(0, 4), st.booleans()),
)
@example([3, 3, 2], 1, 2, True)
@example([1], 2, 0, False)
def test_halos_of_thin_shards_and_their_adjoint(extents, before, after, checked):
    ends = np.cumsum([0, *extents])
    whole = array(2, (ends[-1], 3))

    def program(rank):
        g, x = group_of(rank, checked), whole[ends[rank.index] : ends[rank.index + 1]]
        wide = g.halo_exchange(x, 0, before, after, extents=extents)
        y = array(10 + rank.index, wide.shape)
        back = g.halo_reduce(y, 0, before, after, extents=extents)
        assert back.shape == x.shape
        return wide, np.vdot(wide, y), np.vdot(x, back)

    results = run(program, len(extents)).results
    for r, (wide, *_) in enumerate(results):
        start = max(0, ends[r] - before) if extents[r] else ends[r]
        stop = ends[r + 1] + after if extents[r] else ends[r]
        np.testing.assert_array_equal(wide, whole[start:stop])
    assert sum(a for _, a, _ in results) == sum(b for *_, b in results)


def test_pairs_wait_for_nobody_else():
    shift = lambda rank: rank.group().sendrecv(rank.index, (rank.index + 1) % 4, rank.index - 1 & 3)  # noqa: E731
    done = run(shift, 4)
    assert (done.results, done.records.barriers) == ([3, 0, 1, 2], {})


# -- laws ----------------------------------------------------------------------------------------


def test_directly_sums_are_those_in_rank_order():
    xs = [np.random.default_rng(r).standard_normal(1001).astype(np.float32) for r in range(7)]
    done = run(lambda rank: rank.group().all_reduce(xs[rank.index], algorithm="direct"), 7)
    expected = sum(xs[1:], xs[0])
    assert done.results[0].tobytes() == expected.tobytes()
    other = run(lambda rank: rank.group().all_reduce(xs[rank.index], algorithm="ring"), 7)
    assert other.results[0].tobytes() != expected.tobytes()  # or the test above shows nothing


def test_what_was_passed_may_be_changed_and_what_came_is_ones_own_unless_it_is_kept():
    def program(rank, sent):
        g, of_program, came = rank.group(), group_of(rank, checked=False), []
        for make in (g.all_reduce, g.all_gather, g.reduce_scatter, g.all_to_all, g.broadcast):
            x = np.ones(8)
            came.append(make(x))
            x += 100
            g.barrier()
            came[-1] += rank.index
        for keep in (True, False):
            if rank.index == 0:
                of_program.send(sent, 1, keep=keep)
            else:
                assert np.shares_memory(of_program.recv(0), sent) == keep
        return [x.tolist() for x in came]

    for r, came in enumerate(run(program, 2, np.zeros(4)).results):
        assert came == [[2.0 + r] * 8, [1.0 + r] * 16, [2.0 + r] * 4, *[[1.0 + r] * 8] * 2]


# -- records -------------------------------------------------------------------------------------


def test_every_collective_is_written_down():
    def program(rank):
        g = rank.group()
        for step in range(2):
            with rank.step(step), rank.label("layer 3"):
                with rank.label("forward"):
                    g.all_reduce(np.ones(6, np.float32))
                    g.all_gather(np.ones(2))
                g.all_reduce(np.ones(6, np.float32), algorithm="ring", label="backward")
        g.barrier()

    records = run(program, 3).records
    assert len(records) == 3 * 7
    assert records.barriers == {0: 3, 1: 3, None: 1}
    first = records[0]
    what = first.kind, first.algorithm, first.group, first.axes, first.dtype, first.payload
    assert what == ("all_reduce", "direct", (0, 1, 2), (0,), "float32", 24)
    assert (first.label, first.step, first.barrier) == ("layer 3/forward", 0, 0)
    assert first.counted == (2 * 24 * 2 / 3, 2 * 24 * 2 / 3, 4)
    mine = [r for r in records if r.rank == 1]
    assert all(a.begin <= a.end <= b.begin for a, b in pairwise(mine))
    backward = records.where("backward")
    assert {(r.label, r.algorithm) for r in backward} == {("layer 3/backward", "ring")}
    assert records.where(kind="barrier", rank=2).totals()[()][:4] == (1, 0, 0, 2)
    assert records.totals("kind")["all_reduce"][:4] == (12, 12 * 32, 12 * 32, 48)
    assert records.totals("label", "step")["layer 3/forward", 1].calls == 6
    assert [t.calls for t in records.totals("rank").values()] == [7, 7, 7]


# -- ranks that disagree -------------------------------------------------------------------------


def errors_of(program, shape, timeout=240):
    """(by rank what it raised, what the caller got)."""
    raised = {}

    def noted(rank):
        try:
            return program(rank)
        except BaseException as error:
            raised[rank.index] = error
            raise

    with pytest.raises(BaseException) as caught:  # noqa: PT011
        run_threads(noted, shape, timeout=timeout)
    return raised, caught.value


def assert_says(error, words):
    for word in words.split(" | "):
        assert word in str(error), f"{word!r} is not in {error}"


def another(rank):
    g = rank.group()
    g.barrier()
    with rank.label("layer 2/backward" if rank.index == 1 else "layer 2/forward"):
        (g.all_gather if rank.index == 1 else g.all_reduce)(np.ones(4))


def returns_early(rank):
    rank.group().all_reduce(1.0)
    if rank.index != 2:
        with rank.label("head/backward"):
            rank.group().all_reduce(1.0)


def odd_one(call):
    """Rank 1 does that, where the others add four numbers up."""

    def program(rank):
        g = rank.group()
        call(g) if rank.index == 1 else g.all_reduce(np.ones(4))
        g.barrier()

    return program


DISAGREE = [
    (another, "all_gather number 2 | all_reduce number 2 | rank 1 | 2/forward | 2/backward"),
    (returns_early, "waits for rank 2 | rank 2 has returned | number 2 | head/backward | number 1"),
    (odd_one(lambda g: g.all_reduce(np.ones(5))), "shape: | (4,) | (5,)"),
    (odd_one(lambda g: g.all_reduce(np.ones(4, "f4"))), "dtype: | float64 | float32"),
    (odd_one(lambda g: g.all_reduce(np.ones(4), "max")), "op: | sum | max"),
    (odd_one(lambda g: g.all_reduce(np.ones(4), algorithm="ring")), "algorithm: | direct | ring"),
    (odd_one(lambda g: g.send(np.ones(4), 0)), "they differ in kind: | all_reduce"),
]


@pytest.mark.parametrize(("program", "words"), DISAGREE)
def test_ranks_that_disagree_are_all_told_who_and_where(program, words):
    raised, error = errors_of(program, 3)
    assert raised.keys() >= {0, 1}
    for each in (*raised.values(), error):
        assert isinstance(each, CollectiveError)
        assert_says(each, words)


class Rooted(Exception):
    """Holds what cannot be sent to another process."""

    def __init__(self, words):
        super().__init__(words)
        self.lock = threading.Lock()


@pytest.mark.parametrize("error", [KeyError("w"), Rooted("this and that")])
def test_what_a_rank_raises_is_everybodys_in_words_where_it_cannot_travel(error):
    def program(rank):
        rank.group().barrier()
        if rank.index == 1:
            raise error
        rank.group().barrier()

    raised, caught = errors_of(program, 3)
    assert raised.keys() == {0, 1, 2}
    assert type(raised[0]) is (KeyError if isinstance(error, KeyError) else RuntimeError)
    assert_says(raised[0], *error.args)
    for each in (caught, raised[0]):
        assert "raised by rank 1 outside of its collectives" in "".join(each.__notes__)
    assert isinstance(caught, type(error))
    assert "raise error" in "".join(caught.__notes__)


def test_one_rank_that_raises_when_the_others_have_returned():
    with pytest.raises(ZeroDivisionError):
        run_threads(lambda rank: rank.index or time.sleep(0.2) or 1 / 0, 2, timeout=240)


def test_of_a_circle_the_deadline_says_who_waits():
    """Rows before columns on one rank, columns before rows on the others."""

    def program(rank):
        for axis in (0, 1) if rank.index in (0, 3) else (1, 0):
            rank.group(axis).all_reduce(1.0, label=f"axis {axis}")

    _, error = errors_of(program, (2, 2), timeout=0.5)
    assert isinstance(error, DeadlineError)
    assert_says(error, "until the run's deadline | in all_reduce number 1 | 'axis ")


def test_a_message_that_nobody_takes():
    with pytest.raises(CollectiveError, match=r"of 1 messages .* rank 1 took 0 before it"):
        run_threads(lambda rank: rank.index or rank.group().send(np.ones(3), 1), 2)


REFUSED = [
    ("no algorithm 'star'; there are ring", lambda g: g.all_reduce(1.0, algorithm="star")),
    ("argument 'algoritm'", lambda g: g.all_reduce(1.0, algoritm="ring")),
    ("no operation 'mean'; there are sum", lambda g: g.all_reduce(1.0, "mean")),
    ("root 3 is none of the group's ranks 0..1", lambda g: g.reduce(1.0, root=3)),
    ("dim 0 is none of an array of shape ()", lambda g: g.all_gather(1.0)),
    ("collectives move numbers", lambda g: g.all_reduce(np.array([{}]))),
    ("choose another of 0..1", lambda g: g.send(1.0, g.rank)),
    ("array's 4 along dim 0; got (1, 2)", lambda g: g.reduce_scatter(np.ones(4), extents=[1, 2])),
    ("2 ranks has, got (1,)", lambda g: g.halo_exchange(np.ones(1), 0, 2, 2, extents=[1])),
    ("extents say how many", lambda g: g.halo_reduce(np.ones(1), 0, 2, 2, extents=[3, 3])),
    ("different axes of the mesh", lambda g: g.owner.group((0, 0))),
    ("different axes of the mesh", lambda g: g.owner.group("x")),
]


@pytest.mark.parametrize(("words", "call"), REFUSED)
def test_wrong_arguments_are_said(words, call):
    with pytest.raises((ConfigError, PlacementError, TypeError)) as caught:
        run_threads(lambda rank: call(rank.group()), 2, timeout=240)
    assert words in str(caught.value)


def test_wrong_meshes_are_said():
    with pytest.raises(ConfigError, match="whole numbers of 1 or more"):
        run_threads(lambda rank: None, (2, 0))
    with pytest.raises(ConfigError, match="one value for each of the mesh's 2 ranks, got 3"):
        run_threads(lambda rank, x: x, 2, per_rank=[1, 2, 3])
    with pytest.raises(ConfigError, match="needs a mesh of workers, got int"):
        td.run_ranks(lambda rank: None, 4)
