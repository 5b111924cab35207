"""The bench of tile kernels: its flow on NumPy end to end, and that it reports what goes wrong.

Holds `tiledask.lab.bench.tiles.bench`, `tiledask.lab.bench.tiles.clock`,
`tiledask.lab.bench.tiles.device`, `tiledask.lab.bench.tiles.goals`,
`tiledask.lab.bench.tiles.jobs`, `tiledask.lab.bench.tiles.peers`,
`tiledask.lab.bench.tiles.rounds`, `tiledask.lab.bench.tiles.shown`,
`tiledask.lab.bench.tiles.trial`, `tiledask.lab.bench.tiles.two_level` and
`tiledask.lab.bench.tiles.ways`.
"""

import io
import json
import subprocess
import sys
import time
from dataclasses import asdict
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console

from tiledask.errors import KernelError
from tiledask.lab.bench.tiles import bench, clock, goals, rounds, shown, two_level
from tiledask.lab.bench.tiles.bench import Bench
from tiledask.lab.bench.tiles.clock import Burst, CpuClock, GpuClock, Stopped
from tiledask.lab.bench.tiles.jobs import Contest
from tiledask.lab.bench.tiles.rounds import Contender, Gemm, contest, ratio
from tiledask.lab.bench.tiles.trial import trial
from tiledask.lab.bench.tiles.ways import NUMPY, kernel_way, ways_of
from tiledask.plan.inputs.hardware import load_device
from tiledask.tile import probe

SMALL = Gemm(96, 80, 64, "fp32")
LATER = 1000.0


def until(seconds: float = LATER) -> float:
    return time.monotonic() + seconds


def by(name: str, compute) -> Contender:
    """A contender that calls compute(a, b, out)."""
    return Contender(name, lambda work, sets: lambda i: compute(*sets[i]))


def right(a, b, out):
    np.matmul(a, b, out=out)


def one(way: Contender, work: Gemm = SMALL, **options) -> dict:
    options = {"until": until(), "rounds": 2, "seed": 0} | options
    return contest(work, [way], CpuClock(), **options)[0]


@pytest.mark.parametrize("precision", ["fp32", "fp64", "fp16", "bf16"])
@pytest.mark.parametrize("orders", ["CC", "CF", "FC", "FF"])
def test_every_type_and_layout_is_drawn_as_asked_and_a_right_product_passes(precision, orders):
    work = Gemm(150, 70, 90, precision, orders)
    (s,) = rounds.draw(work, 1, "numpy", 3)
    assert (s.a.shape, s.b.shape, s.out.shape) == ((150, 90), (90, 70), (150, 70))
    assert [x.dtype.name for x in s] == [work.dtype.name] * 3
    assert [x.flags.c_contiguous for x in (s.a, s.b)] == [o == "C" for o in orders]
    assert not np.array_equal(s.a[:64, :64], s.b[:64, :64])
    assert 0.9 < np.std(s.a.astype(float)) < 1.1
    row = one(way := kernel_way(work, "blas"), work)
    assert way.why_not == ""
    assert row["state"] == "timed"
    assert 0 <= row["error"] < work.limit == rounds.LIMITS[precision](90)


def test_the_reference_has_a_row_of_each_128_and_the_exact_product():
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((700, 30)), rng.standard_normal((30, 5000))
    found = rounds.reference(a, b, "numpy", 1)
    assert (found.rows // 128).tolist() == list(range(6))
    np.testing.assert_allclose(found.values, (a @ b)[found.rows])
    rows = [tuple(rounds.reference(a, b, "numpy", seed).rows) for seed in range(5)]
    assert len(set(rows)) == 5


def test_an_error_is_relative_and_one_element_without_a_number_is_enough():
    a, b = np.eye(300), np.full((300, 20), 2.0)
    found = rounds.reference(a, b, "numpy", 0)
    out = a @ b
    assert rounds.error_of(out, found, "numpy") == 0
    assert rounds.error_of(1.01 * out, found, "numpy") == pytest.approx(0.01)
    outside = next(i for i in range(300) if i not in found.rows)
    out[outside, 7] = np.nan
    assert np.isnan(rounds.error_of(out, found, "numpy"))


def tf32(a, b, out):
    """The product of operands cut to 10 bits of mantissa."""
    cut = [(x.view("u4") & np.uint32(0xFFFFE000)).view("f4") for x in (a, b)]
    np.matmul(*cut, out=out)


def without_a_tile(a, b, out):
    out[:64] = (a @ b)[:64]
    out[64:, 16:] = (a @ b)[64:, 16:]


def without_the_last_step(a, b, out):
    np.matmul(a[:, :-1], b[:-1], out=out)


def of_one_set(work, sets):
    return lambda i: right(*sets[0][:2], sets[i].out)


@pytest.mark.parametrize(
    ("way", "why"),
    [
        (by("tf32", tf32), "a relative error of"),
        (by("a tile is left out", without_a_tile), "elements that are no number"),
        (by("k ends early", without_the_last_step), "a relative error of"),
        (by("nothing", lambda a, b, out: None), "elements that are no number"),
        (Contender("always the first set", of_one_set), "a relative error of"),
    ],
    ids=lambda x: getattr(x, "name", ""),
)
def test_a_wrong_contender_is_reported_and_not_timed(way, why):
    row = one(way)
    assert row["state"] == "wrong"
    assert why in row["why"]
    assert "is right" in row["why"]
    assert row["all seconds"] == []
    assert "median" not in row


def test_what_is_right_in_another_way_or_where_it_is_asked_for_is_timed():
    transposed = by("transposed", lambda a, b, out: right(b.T, a.T, out.T[:80, :96]))
    for way, precision in ((transposed, "fp32"), (by("tf32", tf32), "tf32")):
        assert one(way, Gemm(96, 80, 64, precision))["state"] == "timed"


def test_who_fails_or_cannot_take_part_is_listed_with_the_reason_and_others_go_on():
    def breaks(a, b, out):
        raise RuntimeError("out of\n  luck")

    ways = [by("breaks", breaks), Contender("absent", None, "it is not here"), by("right", right)]
    rows = contest(SMALL, ways, CpuClock(), until(), 2, 0)
    said = ["breaks: failed, RuntimeError: out of luck", "absent: skipped, it is not here"]
    found = [f"{r['way']}: {r['state']}, {r['why']}" for r in rows]
    assert found == [*said, "right: timed, "]
    assert goals.missing(rows) == [f"{each} ({SMALL})" for each in said]


def test_a_device_that_stops_during_a_check_is_no_fault_of_one_contender_alone():
    class Hangs(CpuClock):
        def wait(self, what):
            raise Stopped(f"waited 30 s for {what}")

    with pytest.raises(Stopped, match="waited 30 s for right"):
        contest(SMALL, [by("right", right), by("next", right)], Hangs(), until(), 2, 0)


def test_contenders_take_turns_over_all_sets_in_orders_drawn_anew():
    calls: list[tuple[str, int]] = []

    def noting(name):
        def prepare(work, sets):
            def run(i):
                calls.append((name, i))
                right(*sets[i])

            return run

        return Contender(name, prepare)

    class Counted(CpuClock):
        def warm(self, run, sets, what):
            return Burst(2 * sets, sets)

    names = ["a", "b", "c"]
    rows = contest(SMALL, [noting(n) for n in names], Counted(), until(), 8, 0)
    checks, timed = calls[:6], calls[6:]
    assert checks == [(n, i) for n in names for i in (0, 1)]
    bursts = [timed[i : i + 4] for i in range(0, len(timed), 4)]
    assert all([i for _, i in burst] == [0, 1, 0, 1] for burst in bursts)
    rounds = [tuple(b[0][0] for b in bursts[i : i + 3]) for i in range(0, 24, 3)]
    assert all(sorted(order) == names for order in rounds)
    assert len(set(rounds)) > 2
    assert [(r["rounds"], r["products in a burst"], r["sets"]) for r in rows] == [(8, 4, 2)] * 3


def test_a_slower_contender_is_measured_slower():
    def slow(a, b, out):
        time.sleep(0.005)
        right(a, b, out)

    fast, late = contest(SMALL, [by("fast", right), by("slow", slow)], CpuClock(), until(), 3, 0)
    assert late["min"] >= 0.005
    assert ratio(late, fast)["ratio"] == pytest.approx(fast["median"] / late["median"])
    assert late["min"] <= late["median"] <= late["max"]
    assert late["TFLOP/s"] == pytest.approx(SMALL.flops / late["median"] / 1e12)


def test_ratios_are_of_medians_and_their_spread_is_of_rounds():
    base = {"all seconds": [2.0, 4.0, 6.0, 8.0, 10.0], "median": 6.0}
    row = {"all seconds": [1.0, 1.0, 3.0, 4.0, 20.0], "median": 3.0}
    # round by round 2, 4, 2, 2, 0.5
    names = "ratio", "least", "lower quartile", "upper quartile", "largest"
    assert ratio(row, base) == dict(zip(names, (2.0, 0.5, 2.0, 2.0, 4.0), strict=True))
    assert ratio(row, row)["ratio"] == 1


@pytest.mark.long
def test_time_that_is_over_ends_the_rounds_but_not_before_the_first():
    ways = [by("right", right)]
    rows = contest(SMALL, ways, CpuClock(), until(0.3), 10**6, 0)
    assert 1 <= rows[0]["rounds"] < 10**6
    over = contest(SMALL, ways, CpuClock(), until(-1), 5, 0)
    assert (over[0]["state"], over[0]["why"]) == ("left out", "its part of the time was over")


class FakeGpu:
    """NumPy, and of CuPy what a clock asks for. Its time is the host's, or ``at`` alone, and then a
    fill takes 1 ms."""

    Error = type("Error", (Exception,), {})

    def __init__(self, l2: int, free: int, at: float | None = None):
        self.at, self.never, self.broken, self.freed, gpu = at, False, False, 0, self

        class Event:
            def __init__(self, disable_timing=False):
                self.at = 0.0

            def record(self):
                self.at = time.perf_counter() if gpu.at is None else gpu.at

            def synchronize(self):
                if gpu.broken:
                    raise gpu.Error("illegal address")
                while gpu.never:
                    time.sleep(0.01)

        runtime = SimpleNamespace(
            getDeviceProperties=lambda i: {"l2CacheSize": l2},
            memGetInfo=lambda: (free, 80 * 10**9),
            CUDARuntimeError=self.Error,
        )
        self.cuda = SimpleNamespace(
            runtime=runtime,
            Event=Event,
            Device=lambda: SimpleNamespace(id=0),
            get_elapsed_time=lambda begin, end: 1e3 * (end.at - begin.at),
        )

    def empty(self, *shape):
        return np.empty(*shape) if self.at is None else SimpleNamespace(fill=self._fill)

    def _fill(self, value):
        self.at += 1e-3

    def get_default_memory_pool(self):
        return SimpleNamespace(free_bytes=lambda: 0, free_all_blocks=self._free)

    def _free(self):
        self.freed += 1

    def __getattr__(self, name):
        return getattr(np, name)


@pytest.fixture
def gpu(monkeypatch):
    """GpuClock on one of 50 MB of L2, 64 GB free."""
    cp = FakeGpu(50_000_000, 64 * 10**9, at=0.0)
    monkeypatch.setattr(clock, "namespace", lambda name: cp)
    return GpuClock()


def test_bursts_on_a_gpu_last_ten_milliseconds_behind_fills_that_cover_their_launch(gpu):
    assert gpu.fill == pytest.approx(1e-3)

    def run(i):
        gpu.cp.at += 200e-6
        time.sleep(1e-3)  # asking takes longer than doing

    plan = gpu.warm(run, 2, "a kernel")
    assert (plan.products, plan.sets) == (50, 2)
    assert plan.fills >= 100  # 50 launches of 1 ms or more
    took = gpu.burst(run, Burst(4, 2, 3), "a kernel")
    assert took.seconds == pytest.approx(200e-6)
    assert took.launch >= 1e-3


def test_sets_hold_more_than_l2_and_no_more_than_memory(gpu):
    assert gpu.sets_of(25_000_000) == 8  # four times L2
    assert gpu.sets_of(10**9) == 2
    with pytest.raises(KernelError, match=r"2 sets of operands are 24 GB.* 64 GB are free"):
        gpu.sets_of(12 * 10**9)


def test_a_kernel_that_never_ends_or_breaks_its_context_stops_the_bench_with_its_name(
    gpu, monkeypatch
):
    monkeypatch.setattr(clock, "DEADLINE", 0.05)
    gpu.cp.never = True
    with pytest.raises(Stopped, match=r"waited 0.05 s for wgmma, bf16 .*--without"):
        gpu.wait("wgmma, bf16 4096")
    gpu.cp.never, gpu.cp.broken = False, True
    with pytest.raises(Stopped, match=r"after wgmma failed .*illegal address.*--without"):
        gpu.still_alive("wgmma", RuntimeError("launch"))


CHILD = """
import json, sys, time
for name, precision in json.loads(sys.argv[2]):
    if name == "hangs":
        time.sleep(600)
    if name == "dies":
        sys.exit("a fault with a name")
    print(json.dumps("it is wrong" if name == "fails" else ""), flush=True)
"""


@pytest.mark.slow
def test_a_trial_finds_who_hangs_who_dies_and_who_fails_and_lets_the_others_go_on():
    pairs = [(n, "bf16") for n in ("good", "hangs", "dies", "fails", "fine")]
    refused = trial(pairs, "numpy", patience=15.0, command=(sys.executable, "-c", CHILD))
    assert trial([("tiled", "fp32"), ("blas", "fp32")], "numpy", patience=240.0) == {}
    assert refused == {
        ("hangs", "bf16"): "a small product did not end within 15 s",
        ("dies", "bf16"): "its process ended with status 1: a fault with a name",
        ("fails", "bf16"): "it is wrong",
    }


JOBS = (
    Contest((Gemm(64, 64, 64, "fp32"),), ("tiled", "blas", "torch", "no_such_kernel")),
    Contest(tuple(Gemm(64, 64, 64, "fp32", orders) for orders in ("CF", "FC", "FF")), ("blas",)),
)


def whole(jobs=JOBS, seconds=LATER, rounds=3, **options):
    console = Console(record=True, width=80, file=io.StringIO())
    run = Bench("numpy", jobs, seconds, rounds, console=console, **options)
    facts = run.run()
    run.print_end()
    return facts, console.export_text()


@pytest.mark.long
def test_the_flow_on_numpy_end_to_end():
    facts, text = whole()
    states = {(r["way"], r["orders"]): r["state"] for r in facts["rows"]}
    assert states[NUMPY, "CC"] == states["tiled", "CC"] == states["blas", "FF"] == "timed"
    assert states["no_such_kernel", "CC"] == "skipped"
    assert [g["speed"] for g in facts["goals"]] == ["blas / numpy.matmul"]
    assert facts["left out"] == []
    unknown = "td.tile.kernels has no kernel 'no_such_kernel'"
    for said in (unknown, "on a CPU", "by layout", "noise", "says nothing of GPUs"):
        assert said in text
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text


def test_facts_have_every_field_and_survive_a_file_and_who_is_left_out():
    facts, text = whole(JOBS[:1], without=("tiled",))
    assert ", ".join(facts) == (
        "arrays, device, peers, settings, rounds at most, seconds at most, without, clocks, "
        "ladder, goals, rows, two level, left out, stopped"
    )
    timed = next(r for r in facts["rows"] if r["state"] == "timed")
    assert ", ".join(timed) == (
        "work, way, m, n, k, dtype, precision, orders, state, why, all seconds, error, "
        "error limit, rounds, products in a burst, sets, min, median, max, TFLOP/s, launch"
    )
    assert len(timed["all seconds"]) == timed["rounds"] == 3
    assert json.loads(json.dumps(facts)) == facts
    assert facts["settings"]["CUPY_TF32"] == "unset"
    assert {r["way"]: r["why"] for r in facts["rows"]}["tiled"] == "--without names it"
    assert "--without names it" in text


def test_a_budget_that_is_spent_is_said_and_the_first_work_comes_first():
    facts, text = whole(seconds=0.0)
    assert facts["rows"] == []
    assert len(facts["left out"]) == 4
    assert all("the 0 s of --seconds were over" in line for line in facts["left out"])
    assert "left out: fp32 64 cubed" in text
    assert "No goal could be measured." in text


def breaking(monkeypatch, words, error):
    """Bursts that raise ``error`` at the work of these words."""
    real = CpuClock.burst

    def burst(self, run, plan, what):
        if words in what:
            raise error
        return real(self, run, plan, what)

    monkeypatch.setattr(CpuClock, "burst", burst)


def test_a_work_that_breaks_is_left_out_with_its_reason_and_the_next_one_runs(monkeypatch):
    breaking(monkeypatch, "A by rows, B by columns", MemoryError("no room"))
    facts, _ = whole()
    assert facts["left out"] == ["fp32 64 cubed, A by rows, B by columns: MemoryError: no room"]
    assert {r["orders"] for r in facts["rows"]} == {"CC", "FC", "FF"}


def test_a_device_that_stops_ends_the_bench_with_what_it_has(monkeypatch):
    breaking(monkeypatch, "columns", Stopped("waited 30 s for blas, which does not end"))
    kept = []
    facts = Bench("numpy", JOBS, LATER, 2, console=Console(quiet=True)).run(kept.append)
    assert facts["stopped"].startswith("waited 30 s for blas")
    assert len(kept) == 1
    assert {r["orders"] for r in facts["rows"]} == {"CC"}
    assert "it was under way when the device stopped" in facts["left out"][0]


def test_without_a_gpu_one_sentence_says_why_and_what_to_do(monkeypatch, capsys):
    if probe().usable:
        pytest.skip("there is a usable GPU")
    assert bench.main([]) == 1
    said = capsys.readouterr().out
    assert probe().reason in said
    assert "BENCH_ARGS='--arrays numpy'" in said


@pytest.mark.parametrize("name", ["CUPY_TF32", "NVIDIA_TF32_OVERRIDE"])
def test_a_setting_that_rounds_float32_unasked_is_refused(monkeypatch, capsys, name):
    monkeypatch.setenv(name, "1")
    assert bench.main(["--arrays", "numpy"]) == 1
    assert f"unset {name}" in capsys.readouterr().out


BARE = """
import sys
for name in ("dask", "distributed", "dask_cuda", "zarr", "ortools", "numba", "threadpoolctl",
             "psutil", "pynvml", "jinja2", "bokeh", "IPython", "torch", "triton",
             "tiledask.distributed"):
    sys.modules[name] = None
from tiledask.lab.bench.tiles import bench as tiles
from tiledask.lab.bench.tiles.jobs import Contest, Gemm
tiles.JOBS = {"numpy": (Contest((Gemm(64, 64, 64, "fp32"),), ("tiled", "blas", "torch")),
                        Contest((Gemm(64, 64, 64, "fp32"),), workers=(1,)))}
sys.exit(tiles.main(["--arrays", "numpy", "--rounds", "2", "--record", sys.argv[1]]))
"""


@pytest.mark.long
def test_a_machine_that_has_little_more_than_numpy_and_rich_is_enough(tmp_path):
    file = tmp_path / "new" / "tiles.json"
    done = subprocess.run(
        [sys.executable, "-c", BARE, str(file)], capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr[-2000:]
    kept = json.loads(file.read_text())
    assert {"command", "date", "machine", "versions", "rows", "goals", "device"} <= set(kept)
    assert kept["command"] == "python -m tiledask.lab.bench.tiles --record FILE.json"
    assert "no Dask here" in kept["two level"][0]["why"]
    assert "no Dask here" in done.stdout
    assert "torch cannot be imported here" in done.stdout
    assert kept["device"]["kind"] == "CPU"


@pytest.mark.cluster
def test_two_levels_beside_the_library_alone():
    work = Gemm(512, 256, 128, "fp32")
    rows = two_level.two_level(work, (2,), CpuClock(), until(), 2)
    assert [r["state"] for r in rows] == ["timed"], rows
    (row,) = rows
    assert row["way"] == "td.matmul, 2 workers"
    assert 0 < row["error"] < work.limit
    assert len(row["all seconds"]) == len(row["alone, all seconds"]) == 2
    assert row["algorithm"]


def test_panels_are_the_same_however_rows_are_shared_out():
    make = two_level._Panels("float32", 1, 40, "numpy")
    whole = make((slice(0, 1000), slice(0, 40)))
    cut = [0, 100, 300, 777, 1000]
    parts = [make((slice(i, j), slice(0, 40))) for i, j in pairwise(cut)]
    np.testing.assert_array_equal(whole, np.concatenate(parts))
    assert len(np.unique(whole)) > 39_000
    other = two_level._Panels("float32", 0, 40, "numpy")((slice(0, 1000), slice(0, 40)))
    assert not np.array_equal(whole, other)


@pytest.fixture
def stand_in(monkeypatch):
    cp = FakeGpu(10_000, 10**9)
    for module in (clock, rounds):
        monkeypatch.setattr(module, "namespace", lambda name: cp)
    found = {"kind": "GPU", "name": "made up", "described": asdict(load_device("H200"))}
    monkeypatch.setattr(bench, "facts_of", lambda arrays: found)
    monkeypatch.setattr(bench, "clocks", lambda arrays: {"SM MHz": 1980.0})
    monkeypatch.setattr(
        bench, "trial", lambda pairs, *_, **__: {p: "it hung" for p in pairs if p[0] == "tiled"}
    )
    return cp


@pytest.mark.slow
def test_the_flow_of_a_gpu_without_one(stand_in, monkeypatch, tmp_path, capsys):
    jobs = (
        Contest((Gemm(64, 64, 64, "fp32"),), ("blas", "tiled", "torch")),
        Contest((Gemm(64, 64, 64, "tf32"),), ("blas",)),
        Contest((Gemm(20_000, 64, 20_000, "fp32"),), ("blas",)),
    )
    monkeypatch.setattr(bench, "JOBS", {"cupy": jobs, "numpy": jobs})
    monkeypatch.setattr(bench, "_refusal", lambda arrays: "")
    file = tmp_path / "gpu.json"
    assert bench.main(["--rounds", "3", "--record", str(file)]) == 0
    kept, said = json.loads(file.read_text()), capsys.readouterr().out
    state = {(r["way"], r["precision"]): (r["state"], r["why"]) for r in kept["rows"]}
    assert state["cuBLAS", "fp32"] == state["cuBLAS, again", "fp32"] == ("timed", "")
    assert state["tiled", "fp32"] == ("skipped", "in a trial it hung")
    assert state["blas", "tf32"] == ("skipped", "blas does not multiply float32 as TF32")
    assert "times that is needed" in " ".join(kept["left out"][0].split())
    assert kept["clocks"][0]["before"] == {"SM MHz": 1980.0}
    assert stand_in.freed == 3
    assert "Predicted, before anything ran" in said
    assert said.index("Predicted, before") < said.index("medians of 3 rounds")
    assert (tmp_path / "gpu.png").read_bytes().startswith(b"\x89PNG")


def made_up(way: str, precision: str, seconds: float, n: int = 4096, orders: str = "CC") -> dict:
    work = Gemm(n, n, n, precision, orders)
    facts = {"work": str(work), "way": way, "m": n, "n": n, "k": n, "state": "timed", "rounds": 3}
    facts |= {"precision": precision, "orders": orders, "TFLOP/s": work.flops / seconds / 1e12}
    return facts | {"all seconds": [seconds] * 3} | dict.fromkeys(("min", "median", "max"), seconds)


@pytest.mark.parametrize("again", [1.0, 2.0])
def test_a_machine_that_had_other_work_is_said_to(again):
    console = Console(record=True, width=200, file=io.StringIO())
    run = Bench("numpy", JOBS, LATER, 1, console=console)
    times = {"numpy.matmul": 1.0, "blas": 1.0, "numpy.matmul, again": again}
    run.rows = [made_up(way, "fp32", seconds) for way, seconds in times.items()]
    run.print_end()
    said = "up to 50 % faster or slower than itself" in console.export_text()
    assert said == (again == 2.0)


ROWS = [
    made_up(way, precision, seconds)
    for precision, times in {
        "fp32": {"smem_tiled": 40e-3, "sgemm_warptiled": 3e-3, "cuBLAS": 2.7e-3},
        "tf32": {"mma_multistage": 1e-3},
        "bf16": {
            "mma_multistage": 5e-4,
            "cuBLAS": 2e-4,
            "cuBLAS, again": 1.96e-4,
            "wgmma_ws_persistent": 1.95e-4,
            "torch": 1.9e-4,
        },
    }.items()
    for way, seconds in times.items()
] + [made_up("wgmma_ws_persistent", "bf16", 1.0, orders="CF")]


def test_goals_are_met_or_not_by_what_was_measured():
    steps = goals.ladder(ROWS, {}, 4096, "cupy")
    beside = {"work": "w", "state": "timed", "median": 1.0, "alone, median": 0.94}
    two = [beside | {"workers": w} for w in (1, 2)]
    found = {g["speed"]: (round(g["reached"], 3), g["met"]) for g in goals.goals(ROWS, two, steps)}
    assert found == {
        "wgmma_ws_persistent / cuBLAS": (1.026, True),
        "wgmma_ws_persistent / cuBLAS, stretch": (1.026, False),
        "wgmma_ws_persistent / torch": (0.974, False),
        "sgemm_warptiled / cuBLAS": (0.9, False),
        "mma_multistage / smem_tiled, tf32 / fp32": (40.0, True),
        "mma_multistage / smem_tiled, bf16 / fp32": (80.0, True),
        "one worker / the library alone": (0.94, False),
    }
    assert goals.noise(ROWS, str(Gemm(4096, 4096, 4096, "bf16"))) == pytest.approx(2 / 98)


def test_the_ladder_says_what_each_step_gains_predicted_and_measured():
    bounds = goals.predictions(4096, load_device("H200"), "cupy")
    assert set(bounds) == set(goals.LADDER["cupy"])
    steps = goals.ladder(ROWS, bounds, 4096, "cupy")
    assert [s["kernel"] for s in steps][-1] == "wgmma_ws_persistent"
    last, before = steps[-1], steps[-2]
    assert last["predicted"] == bounds["wgmma_ws_persistent", "bf16"].flops_per_second
    assert last["gain predicted"] == pytest.approx(last["predicted"] / before["predicted"])
    assert last["gain measured"] == pytest.approx(5e-4 / 1.95e-4)
    assert steps[0]["gain measured"] is None


def test_a_gpu_that_cannot_run_a_step_has_no_bound_for_it():
    bounds = goals.predictions(4096, load_device("A100-80GB"), "cupy")
    assert ("wgmma_ws_persistent", "bf16") not in bounds
    assert goals.predictions(4096, None, "numpy") == {}


def gpu_record() -> dict:
    device = load_device("H200")
    bounds = goals.predictions(4096, device, "cupy")
    steps = goals.ladder(ROWS, bounds, 4096, "cupy")
    kept = {"device": {"name": "NVIDIA H200", "described": asdict(device)}, "ladder": steps}
    return json.loads(json.dumps(kept))


def test_the_picture_has_a_line_and_a_cross_for_every_step():
    axes = shown.figure(gpu_record()).axes[0]
    drawn = {line.get_gid() for line in axes.lines}
    for kernel, precision in goals.LADDER["cupy"]:
        assert {f"{kernel} {precision}", f"{kernel} {precision} measured"} <= drawn
    assert shown.figure({"device": {"described": None}, "ladder": []}) is None


def test_the_tables_of_a_gpu_fit_eighty_columns_and_cut_no_word():
    console = Console(record=True, width=80, file=io.StringIO())
    steps = gpu_record()["ladder"]
    rows = [r for r in ROWS if r["precision"] == "bf16" and r["orders"] == "CC"]
    late = made_up("Triton", "bf16", 1.0) | {"state": "left out", "why": "no time"}
    console.print(shown.product_table([*rows, late], "cupy"))
    console.print(shown.layouts_table([*rows, late, ROWS[-1]], "cupy"))
    console.print(shown.ladder_table(steps, "NVIDIA H200", "cupy"))
    text = console.export_text()
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= 80
    assert all(said in text for said in ("1.026", "1.00 ✓", "left out"))


def test_the_library_comes_first_and_again_last_and_what_a_kernel_does_not_take_is_said():
    ways = ways_of(SMALL, ("tiled", "Triton"), "numpy")
    assert [w.name for w in ways] == [NUMPY, "tiled", "Triton", NUMPY + ", again"]
    said = kernel_way(Gemm(8, 8, 8, "tf32"), "tiled").why_not
    assert said == "tiled does not multiply float32 as TF32"
    if not probe().usable:
        assert probe().reason in kernel_way(Gemm(8, 8, 8, "bf16"), "cublas").why_not


@pytest.mark.gpu
@pytest.mark.skipif(not probe().usable, reason=f"no usable GPU: {probe().reason}")
def test_on_a_gpu_the_contest_runs():
    work = Gemm(512, 384, 256, "bf16")
    ways = ways_of(work, ("torch", "Triton"), "cupy")
    rows = contest(work, ways, clock.clock_for("cupy"), until(), 3, 0)
    assert {r["state"] for r in rows if r["way"].startswith("cuBLAS")} == {"timed"}
