"""Step times that were measured, against the estimate: whole steps, layers, choices of a layout."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

from tiledask.lab.accuracy.exact import gpt, layout
from tiledask.lab.accuracy.memory import bloom, titan, titan_framework
from tiledask.lab.accuracy.rows import PublishedRow, PublishedSource, published
from tiledask.plan.data import shipped_json
from tiledask.plan.fitting.fit import fits
from tiledask.plan.fitting.memory import MemoryEstimate, estimate_memory
from tiledask.plan.fitting.overhead import default_overhead
from tiledask.plan.inputs.hardware import ClusterSpec, load_cluster, load_device
from tiledask.plan.inputs.layout import Layout
from tiledask.plan.inputs.load import load_model
from tiledask.plan.inputs.model import Model
from tiledask.plan.inputs.recipes import Recipe, load_recipe
from tiledask.plan.timing.calibration import Calibration, calibration_of, frameworks, uncounted
from tiledask.plan.timing.flops import step_flops
from tiledask.plan.timing.step import StepEstimate, estimate_step

__all__ = ["BLOOM", "TITAN", "StackRun", "calibrated", "left_out", "log_runs", "rankings",
           "times", "unexplained", "without"]  # fmt: skip

A100, MIXED = load_device("A100-80GB"), load_recipe("mixed-adam-16")
CHUNKS = {"sc21-t1-76.1B": 3, "sc21-t1-145.6B": 2, "sc21-t1-529.6B": 3}
"""Interleaving of the runs, from Megatron-LM's script run_table_1.sh; 1 in the others."""


DEEPSPEED = "megatron-deepspeed"
"""The framework of runs by Megatron-DeepSpeed: MT-NLG's and BLOOM's."""


BLOOM = "BLOOM-176B log, step times"
TITAN = "torchtitan, seconds a step"
ZERO_3 = "SC21 Table 2, ZeRO-3"
GOAL, REPORTED = {"mean": 0.05, "worst": 0.12}, {"mean": float("inf")}
GOALS = {BLOOM: {"mean": 0.035, "worst": 0.12}, TITAN: {"mean": 0.035, "worst": 0.12}}
GOALS[ZERO_3] = REPORTED


class StackRun(NamedTuple):
    """What ``estimate_step`` is asked about a case."""

    model: Model
    layout: Layout
    cluster: str | ClusterSpec
    recipe: str | Recipe
    sequence: int
    framework: str | None

    def step(self, calibration: Calibration | None = None) -> StepEstimate:
        """The estimate; by the framework, or by ``calibration`` in its place."""
        framework = None if calibration else self.framework
        return estimate_step(*self[:5], calibration=calibration, framework=framework)

    @property
    def refused(self) -> str:
        """A note where the ledger has no room for what ran; else nothing."""
        verdict = fits(*self[:5], framework=self.framework).verdict
        return "its memory is refused" if verdict == "no" else ""

    def seconds(self, calibration: Calibration | None = None) -> float:
        """Those of a step."""
        return self.step(calibration).total


class LayerRun(StackRun):
    """The same, where one layer was measured."""

    def seconds(self, calibration: Calibration | None = None) -> float:
        """Those of a forward and a backward pass of it."""
        return sum(self.step(calibration).layer_seconds)


@cache
def calibrated() -> frozenset[str]:
    """Rows that the constants of a device were fitted to."""
    return frozenset(
        case
        for name in frameworks()
        for case in calibration_of(A100, MIXED, framework=name).calibrated
    )


@cache
def times() -> tuple[PublishedSource, ...]:
    """Seconds of a step or a layer, by source."""
    cases, found = published(), []
    for name, prefix, rows, remark in _SOURCES:
        of = [row for id, case in cases.items() if id.startswith(prefix) for row in rows(case)]
        said = [row for row in of if row.case not in unexplained()]
        goal = GOALS.get(name, GOAL)
        found.append(PublishedSource.of(name, said, remark=remark + without(name), **goal))
        if len(said) < len(of):
            rest = [row for row in of if row not in said]
            found.append(PublishedSource.of(f"{name}, not explained", rest, **REPORTED))
    return tuple(found)


@cache
def left_out() -> dict[str, list[float]]:
    """(rows, mean, worst) of each group where a model's rows were left out of the fit that
    estimates them; as `refit.py` found it."""
    found: dict[str, list[float]] = shipped_json("calibration", "left_out.json")
    return found


def without(group: str) -> str:
    """What a page says of a group's rows where their model was left out; nothing of others."""
    if group not in left_out():
        return ""
    count, mean, worst = left_out()[group]
    found = f"mean {100 * mean:.1f} %, worst {100 * worst:.1f} % ({count} rows)"
    return f" Each model estimated without its own rows: {found}."


def rankings() -> PublishedSource:
    """How much longer than the best measured layout the estimate's first choice takes."""
    rows = (_ranking(case) for case in published().values() if case["kind"] == "ranking")
    return PublishedSource.of(
        "vTrain: the measured time of the first choice over the best", rows, mean=0.02, worst=0.02
    )


def seconds_of(i: dict[str, Any], tflops: float, recomputed: bool) -> float:
    """Seconds of a step in which each GPU does ``tflops``; SC21's eq. (3) counts a forward pass
    more than the model needs, Llama 3's report only the scores that a causal mask leaves."""
    model = _megatron(i) if "hidden" in i else load_model("llama-3.1-405b")
    batch = i.get("global_batch") or i["dp"] * i["batch_per_dp"]
    flop = step_flops(model, batch, i["seq"], "full" if recomputed else "none")
    counted = flop.causal if "model" in i else flop.hardware
    return counted / (tflops * 1e12 * i["gpus"])


def _megatron(i: dict[str, Any], **more: Any) -> Model:
    return gpt(i, **{"learned_pos": 2048, **more})


def _cluster(i: dict[str, Any]) -> ClusterSpec:
    return load_cluster(f"{i['gpus']}x{i['gpu'].replace('H100-80GB', 'H100')}")


def _seconds(
    model: Model,
    i: dict[str, Any],
    split: Layout,
    recipe: str = "mixed-adam-16",
    framework: str | None = None,
) -> float:
    return estimate_step(model, split, _cluster(i), recipe, i["seq"], framework=framework).total


def _row(
    case: dict[str, Any], measured: float, ours: float, kind: str = "", note: str = ""
) -> PublishedRow:
    name = f"{case['id']}:{kind}" if kind else case["id"]
    quantity = f"step, {kind}" if kind else "step"
    return PublishedRow(
        case["id"], quantity, measured, ours, "s", calibration=name in calibrated(), note=note
    )


def _sc21_table_1(case: dict[str, Any]) -> Iterator[PublishedRow]:
    yield _sc21(case, case["inputs"], case["expected"]["achieved_tflops_per_gpu"])


def _sc21_table_2(case: dict[str, Any]) -> Iterator[PublishedRow]:
    i = case["inputs"]
    shape = {"tp": 8, "pp": i["model_parallel"] // 8, "dp": i["gpus"] // i["model_parallel"]}
    yield _sc21(case, {**i, **shape}, i["achieved_tflops"])


def _sc21_zero3(case: dict[str, Any]) -> Iterator[PublishedRow]:
    i = case["inputs"]
    split = layout({**i, "dp": i["gpus"]}, zero=3, recompute="full")
    measured = seconds_of(i, i["achieved_tflops"], True)
    yield _row(case, measured, _seconds(_megatron(i), i, split, framework="deepspeed-2021"))


def _sc21(case: dict[str, Any], i: dict[str, Any], tflops: float) -> PublishedRow:
    split = layout(i, recompute="full", interleave=CHUNKS.get(case["id"], 1))
    return _row(case, seconds_of(i, tflops, True), _seconds(_megatron(i), i, split))


@cache
def korthikanti_runs() -> dict[str, tuple[StackRun, float]]:
    """(what ran, its seconds): table 4's layers by case, table 5's steps by "case:kind"."""
    found: dict[str, tuple[StackRun, float]] = {}
    for id, case in published().items():
        i, e = case["inputs"], case["expected"]
        if id.startswith("kor-t4"):
            recompute = {"full_": "full", "selec": "selective"}.get(i["technique"][:5], "none")
            split = layout(i, recompute=recompute, sequence_parallel="sequence" in i["technique"])
            one = _megatron({**i, "layers": 48}), split, load_cluster("8xA100-80GB"), *_KORTHIKANTI
            found[id] = LayerRun(*one), e["layer_combined_ms"] / 1e3
        elif id.startswith("kor-t5"):
            full = layout(i, recompute="full")
            present = layout(i, recompute="selective", sequence_parallel=True)
            run = StackRun(_megatron(i), full, _cluster(i), *_KORTHIKANTI)
            found[f"{id}:full"] = run, e["iteration_s_full_recompute"]
            found[f"{id}:present"] = run._replace(layout=present), e["iteration_s_present_work"]
    return found


_KORTHIKANTI = "mixed-adam-18", 2048, "megatron-2022"


def _korthikanti(case: dict[str, Any]) -> Iterator[PublishedRow]:
    for kind in ("full", "present"):
        run, measured = korthikanti_runs()[f"{case['id']}:{kind}"]
        yield _row(case, measured, run.seconds(), kind)


def _layers(case: dict[str, Any]) -> Iterator[PublishedRow]:
    run, measured = korthikanti_runs()[case["id"]]
    yield PublishedRow(
        case["id"],
        "layer, forward and backward",
        1e3 * measured,
        1e3 * run.seconds(),
        "ms",
        calibration=case["id"] in calibrated(),
    )


def _llama3(case: dict[str, Any]) -> Iterator[PublishedRow]:
    """Interleaved with one layer a chunk: 128 chunks, the first and the last without a layer
    (section 3.3.2 says that these stages have one layer less; the chunks are our reading)."""
    i = case["inputs"]
    model = load_model("llama-3.1-405b")
    split = layout(
        i,
        interleave=8,
        microbatches=i["batch_per_dp"],
        zero=1,
        sequence_parallel=True,
        flash_attention=True,
        partition=(0, *range(model.layers + 1), model.layers),
    )
    measured = seconds_of(i, case["expected"]["tflops_per_gpu"], False)
    run = StackRun(model, split, _cluster(i), "mixed-adam-18", i["seq"], "llama-3")
    yield _row(case, measured, run.seconds(), note=run.refused)


def _megatron_core(case: dict[str, Any]) -> Iterator[PublishedRow]:
    """The table says neither micro-batch nor interleaving: the fastest that fits."""
    i = case["inputs"]
    bare = {"dropout": False, "qkv_bias": False, "out_bias": False, "mlp_bias": False}
    bare |= {"learned_pos": max(2048, i["seq"])}
    model, batch = _megatron(i, **bare), i["global_batch"] // i["dp"]
    found = []
    for microbatch in (b for b in (1, 2, 4) if batch % b == 0):
        for chunks in range(1, model.layers // i["pp"] + 1):
            m = batch // microbatch
            if chunks > 1 and (i["pp"] == 1 or model.layers % (i["pp"] * chunks) or m % i["pp"]):
                continue
            split = layout(
                {**i, "micro_batch": microbatch},
                interleave=chunks,
                zero=1,
                flash_attention=True,
                sequence_parallel=i["tp"] > 1,
            )
            held = estimate_memory(model, split, "mixed-adam-18", i["seq"]).peak
            if held + default_overhead(i["gpus"]).total < 80e9:
                found.append(_seconds(model, i, split, "mixed-adam-18", "megatron-2024"))
    measured = seconds_of(i, case["expected"]["tflops_per_gpu"], False)
    yield _row(case, measured, min(found), note="the fastest micro-batch and chunks that fit")


def _mt_nlg(case: dict[str, Any]) -> Iterator[PublishedRow]:
    i = case["inputs"]
    split = layout(i, recompute="full")
    step = estimate_step(_megatron(i), split, _cluster(i), sequence=i["seq"], framework=DEEPSPEED)
    yield _row(case, case["expected"]["iteration_s"], step.total)


@cache
def log_runs() -> dict[str, tuple[StackRun, float]]:
    """(what ran, its seconds) of the steps of BLOOM's log and of torchtitan, by case."""
    found = {}
    for id, case in published().items():
        i, expected = case.get("inputs", {}), case["expected"]
        if id.startswith("bloom-") and "iteration_s" in expected:
            found[id] = _bloom_run(case), expected["iteration_s"]
        elif id.startswith("titan-"):
            run = _titan_run(case)
            tokens = run.layout.sequences * run.sequence
            found[id] = run, tokens / (expected["tps_per_gpu"] * i["gpus"])
    return found


def _bloom_run(case: dict[str, Any]) -> StackRun:
    """Jean Zay: 4 adapters of 100 Gb/s for 8 GPUs (bigscience, tr11 README)."""
    dgx = _cluster(case["inputs"])
    jean_zay = replace(dgx, between_nodes=replace(dgx.between_nodes, bytes_per_second=6.25e9))
    return _run(bloom(case), jean_zay, DEEPSPEED)


def _titan_run(case: dict[str, Any]) -> StackRun:
    """The layout is the one of its memory."""
    i, memory = case["inputs"], titan(case)
    if "fp8" in case["id"] or i.get("fp8"):
        memory = replace(memory, recipe=replace(memory.recipe, product_bytes=1))
    cluster = load_cluster(f"{i['gpus']}xH100-500W")
    return _run(memory, cluster, titan_framework(case["id"]))


def _run(memory: MemoryEstimate, cluster: ClusterSpec, framework: str) -> StackRun:
    """The step of what memory was estimated of."""
    run = memory.model, memory.layout, cluster, memory.recipe, memory.sequence
    return StackRun(*run, framework)


def _logged(case: dict[str, Any]) -> Iterator[PublishedRow]:
    """torchtitan's tokens a second of each device are said as seconds of a step."""
    if case["id"] in log_runs():
        run, seconds = log_runs()[case["id"]]
        yield _row(case, seconds, run.step().total, note=unexplained().get(case["id"], ""))


@cache
def unexplained() -> dict[str, str]:
    """Why a row contradicts others of its own source, by id: no model can be right on both."""
    found: dict[str, str] = shipped_json("published", "unexplained.json")
    return found


_SOURCES: tuple[tuple[str, str, Callable[[dict[str, Any]], Iterator[PublishedRow]], str], ...] = (
    ("SC21 Table 1", "sc21-t1-", _sc21_table_1, ""),
    ("SC21 Table 2", "sc21-t2-ptd", _sc21_table_2, ""),
    (
        ZERO_3,
        "sc21-t2-zero3",
        _sc21_zero3,
        "DeepSpeed of 2021: each device gathers through its own adapter, matrix by matrix, and "
        "hides the one that it fetches ahead. Nothing but its other collectives was fitted.",
    ),
    (
        "Korthikanti Table 5",
        "kor-t5",
        _korthikanti,
        "Two of the four are published to two and three digits.",
    ),
    ("Korthikanti Table 4", "kor-t4", _layers, "One layer on eight devices, none beside it."),
    (
        "Llama 3 Table 4",
        "llama3-t4",
        _llama3,
        "Eight chunks a stage and FLOP of a causal mask are our reading of the paper. The times "
        "are of layouts that the ledger finds no room for (102 GB of 80 on 16,384 GPUs, 91 with "
        f"FSDP's sharded gradients, zero=2): not counted is {uncounted('llama-3')}.",
    ),
    (
        "Megatron-Core on H100",
        "mcore-h100",
        _megatron_core,
        "The source gives neither micro-batch nor chunks: the fastest that fit are taken.",
    ),
    (
        "MT-NLG",
        "mtnlg",
        _mt_nlg,
        "Ran Megatron-DeepSpeed, with the shares that BLOOM's log gave; with Megatron-LM's, of "
        "SC21, it would be 21 % too fast.",
    ),
    (
        BLOOM,
        "bloom-",
        _logged,
        "Four constants: what a transfer between stages of DeepSpeed's engine takes beside its "
        "bytes (11 ms), what gradients reach of 4 adapters of 100 Gb/s a node, passes over memory "
        "that are not fused, and what products lose whose sizes 32 does not divide (the first "
        "rows' heads are 150 wide, their slices 1800). Which terms there are was chosen with all "
        "rows in view, so the check rows check the constants, not the form; MT-NLG's set none.",
    ),
    (
        TITAN,
        "titan-",
        _logged,
        "PyTorch on an H100 of 96 GB with 2.4 TB/s and 500 W, some rows in FP8, which its tensor "
        "parallelism gathers in 8 bits; as many micro-batches as stages. Pieces of keys that come "
        "round its ring are worked on at 0.74 of the core's share; Llama 3's were not. The form "
        "was chosen with all rows in view. titan-8b-cp2 contradicts cp 4 and 8 and stands apart; "
        "with it the mean is 3.2 %, the worst 21 %.",
    ),
)


def _ranking(case: dict[str, Any]) -> PublishedRow:
    i, best = case["inputs"], case["expected"]["best_ms"]
    model = _megatron({**i, "vocab": 51200})

    def ours(c: dict[str, Any]) -> float:
        split = layout({**i, **c}, recompute="full")
        return _seconds(model, {**i, "gpu": "A100-80GB"}, split)

    pick = min(case["candidates"], key=ours)
    shown = f"dp {pick['dp']} x tp {pick['tp']} x pp {pick['pp']}, b {pick['micro_batch']}"
    return PublishedRow(
        case["id"],
        "first choice",
        best,
        pick["measured_ms"],
        "ms",
        note=f"{shown}, of {len(case['candidates'])}",
    )
