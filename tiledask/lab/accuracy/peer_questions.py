"""Questions of the published cases to any planner: a quantity of a model in a run, in plain words.

    read(plan.json) -> Question(case, quantity, key, published, model, run) ...

A question that no program can be asked, because its case says too little, says why itself.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tiledask.errors import ConfigError
from tiledask.lab.accuracy.stacks import group_of, run_of, seconds_measured
from tiledask.plan.inputs.model import Model
from tiledask.plan.inputs.recipes import load_recipe
from tiledask.plan.timing.flops import step_flops

__all__ = ["GB", "GIB", "Question", "questions", "read"]

GB, GIB = 10**9, 2**30
DAY = 86400
Facts = dict[str, Any]

NO_SHAPE = "the case gives a number of parameters, no model"
NO_LAYOUT = "the case gives neither devices nor layout"
GPT = {"mlp": "gelu", "vocab": 51200, "tied": True, "learned_pos": 2048}
"""Megatron-LM's model, where a case does not say otherwise; 51200 is GPT-2's vocabulary padded."""
HEADS = 96
"""Where the BLOOM log does not state the heads, those of its other rows of this width."""
HEADS_OF = {12288: 96, 20480: 128}
"""SC21's models of 174.6 and 529.6 billion parameters."""


@dataclass(frozen=True)
class Question:
    """One number of one case, and what a program needs to know to predict it."""

    case: str
    source: str
    """The table, log or paper, in few words."""
    quantity: str
    key: str
    """Which of the case's expected numbers."""
    published: float
    """In bytes, seconds, GPU hours or parameters; for "fits" 1 (ran) or 0 (out of memory)."""
    model: Facts = field(default_factory=dict)
    """hidden, layers, heads, kv_heads, ffn, vocab, gated, tied, learned_pos, experts, top_k."""
    run: Facts = field(default_factory=dict)
    """gpu, gpus, tp, pp, dp, cp, batch, microbatch, seq, zero, recompute, sequence_parallel,
    interleave, flash, dropout, fp8, grad_bytes, overlap; None where the case does not say."""
    candidates: tuple[Facts, ...] = ()
    """Layouts to choose from, and their measured_ms."""
    cannot: str = ""
    """Why no program can be asked."""


def read(path: Path) -> list[Question]:
    """Every question of a file of published cases."""
    return list(questions(json.loads(Path(path).read_text())))


def questions(cases: Iterable[Facts]) -> Iterator[Question]:
    """The questions of published cases; kinds that ask nothing of a planner ask nothing here.

    >>> [zero] = questions([{"id": "u", "kind": "memory_exact", "inputs": {"params": 7e9},
    ...                      "expected": {"bf16_with_fp32_grad_accum_gb": 140}}])
    >>> zero.quantity, zero.published, zero.cannot
    ('state bytes', 140000000000, 'the case gives a number of parameters, no model')
    """
    cases = list(cases)
    shapes = {
        case["id"].removeprefix("params-"): case["inputs"]
        for case in cases
        if case["kind"] == "params_exact" and "hidden" in case["inputs"]
    }
    for case in cases:
        for asked in KINDS.get(case["kind"], lambda *_: ())(case, shapes):
            of_today = case["kind"] == "step_time" or "gpu" in case["inputs"]
            name = source(case["id"])
            name = group_of(case) if of_today and name == case["id"] else name
            yield Question(case["id"], name, *asked[:3], **asked[3])


SOURCES = {
    "params-": "checkpoints",
    "hf-": "checkpoints",
    "pythia-": "Pythia",
    "sc21-t1-": "SC21 Table 1",
    "sc21-t2-": "SC21 Table 2",
    "sc21-time-": "SC21, 1T",
    "kor-fig1-": "Korthikanti Fig. 1",
    "kor-t4-": "Korthikanti Table 4",
    "kor-t5-": "Korthikanti Table 5",
    "zero-t1-": "ZeRO Table 1",
    "ultrascale-": "Ultra-Scale Playbook",
    "ds-": "DeepSpeed",
    "mleng-": "ml-engineering",
    "bloom-": "BLOOM log",
    "bs-104b-": "BigScience 104B",
    "titan-": "torchtitan",
    "mtnlg-": "MT-NLG",
    "llama3-t4-": "Llama 3 Table 4",
    "mcore-": "Megatron-Core",
    "llama1-": "LLaMA",
    "hours-": "Llama 2 and 3",
    "vtrain-": "vTrain",
}


def source(case: str) -> str:
    """A case's source by the start of its id; an unknown one is its own."""
    return next((SOURCES[start] for start in SOURCES if case.startswith(start)), case)


# what a case says -----------------------------------------------------------------------


def shape(inputs: Facts, **more: Any) -> Facts:
    """The model of a case, every key set."""
    given = GPT | more | inputs
    heads = given.get("heads") or HEADS
    return {
        "hidden": given["hidden"],
        "layers": given["layers"],
        "heads": heads,
        "kv_heads": given.get("kv_heads", heads),
        "ffn": given.get("ffn", 4 * given["hidden"]),
        "vocab": given["vocab"],
        "gated": given["mlp"] == "swiglu",
        "tied": given["tied"],
        "learned_pos": given["learned_pos"],
        "experts": given.get("experts", 0),
        "top_k": given.get("top_k", 0),
    }


def run(inputs: Facts, **more: Any) -> Facts:
    """The run of a case, every key set."""
    given = inputs | more
    tp, pp, cp = (given.get(key) or 1 for key in ("tp", "pp", "cp"))
    dp = given.get("dp") or given.get("fsdp") or given.get("gpus", tp * pp * cp) // (tp * pp * cp)
    return {
        "gpu": given.get("gpu", "A100-80GB"),
        "gpus": given.get("gpus", tp * pp * cp * dp),
        "tp": tp,
        "pp": pp,
        "dp": dp,
        "cp": cp,
        "batch": given.get("global_batch"),
        "microbatch": given.get("micro_batch"),
        "seq": given.get("seq"),
        "zero": given.get("zero", 0),
        "recompute": given.get("recompute"),
        "interleave": given.get("interleave", 1),
        "sequence_parallel": given.get("sequence_parallel", False),
        "flash": given.get("flash", False),
        "dropout": given.get("dropout", True),
        "fp8": given.get("fp8", False),
        "grad_bytes": given.get("grad_bytes", 4),
        "overlap": given.get("overlap", False),
    }


def seconds_of(tflops: float, model: Facts, at: Facts) -> float:
    """Seconds a step takes if each device does ``tflops``, counted as Megatron-LM's log does."""
    ours = Model(
        hidden=model["hidden"],
        layers=model["layers"],
        heads=model["heads"],
        kv_heads=model["kv_heads"],
        ffn=model["ffn"],
        vocab=model["vocab"],
        mlp="swiglu" if model["gated"] else "gelu",
    )
    return step_flops(ours, at["batch"], at["seq"]).model / (at["gpus"] * tflops * 1e12)


# the questions of each kind of case -----------------------------------------------------


def parameters(case: Facts, shapes: Facts) -> Iterator[tuple]:
    inputs = case["inputs"]
    for key in ("params", "active_params", "non_embedding_params", "trainable_params"):
        if key in case["expected"]:
            about = {"model": shape(inputs)} if "hidden" in inputs else {"cannot": NO_SHAPE}
            yield "parameters", key, case["expected"][key], about
    if "gpu_hours" in case["expected"]:
        said = "the case gives no batch and no sequence"
        yield "GPU hours", "gpu_hours", case["expected"]["gpu_hours"], {"cannot": said}


def sizes_and_times(case: Facts, shapes: Facts) -> Iterator[tuple]:
    """SC21 Table 1."""
    expected, about = case["expected"], {"model": shape(case["inputs"])}
    about["run"] = run(case["inputs"])
    yield "parameters", "params_billion", expected["params_billion"] * 1e9, about
    yield "iteration seconds", "iteration_s_derived", expected["iteration_s_derived"], about


def exact_memory(case: Facts, shapes: Facts) -> Iterator[tuple]:
    inputs, expected = case["inputs"], case["expected"]
    if "batch" in inputs and "checkpoints_gib" in expected:
        at = run(
            inputs,
            global_batch=inputs["batch"],
            micro_batch=inputs["batch"],
            recompute="full",
            dropout=False,
        )
        about = {"model": shape(shapes["llama3.1-8b"]), "run": at}
        yield "activation bytes", "checkpoints_gib", expected["checkpoints_gib"] * GIB, about
        return
    for key, number in expected.items():
        if key.startswith("cpu_"):
            continue
        what = "activation bytes" if key == "activations_gib" else "state bytes"
        about = {"cannot": NO_SHAPE}
        if "hidden" in inputs:
            about = {"model": shape(inputs), "run": run({"recompute": "none"} | inputs)}
        yield what, key, number * (GIB if key.endswith("gib") else GB), about


def step_time(case: Facts, shapes: Facts) -> Iterator[tuple]:
    """The programs of today (plan2.json), in the words of stacks.py: fused kernels, what is sent
    hidden behind work."""
    seconds, key = seconds_measured(case), "measured_ms"
    if seconds is None:
        return
    try:
        of = run_of(case)
    except ConfigError as error:
        yield "iteration seconds", key, seconds, {"cannot": str(error)}
        return
    model, split, recipe = of.model, of.layout, load_recipe(of.recipe)
    names = ("hidden", "layers", "heads", "kv_heads", "ffn", "vocab", "tied", "experts", "top_k")
    facts = {name: getattr(model, name) for name in names}
    facts |= {"gated": model.mlp == "swiglu", "learned_pos": model.learned_pos}
    at = run(
        vars(split),
        gpu=case["inputs"]["gpu"],
        gpus=split.devices,
        global_batch=split.sequences,
        micro_batch=split.microbatch,
        seq=of.sequence,
        flash=True,
        dropout=False,
        overlap=True,
        fp8=recipe.product_bytes == 1,
        grad_bytes=recipe.gradient_bytes,
    )
    about = {"cannot": "adapters"} if recipe.adapters else {"model": facts, "run": at}
    yield "iteration seconds", key, seconds, about


def measured_memory(case: Facts, shapes: Facts) -> Iterator[tuple]:
    inputs, expected = case["inputs"], case["expected"]
    if "measured_ms" in expected or "step_s" in expected:
        yield from step_time(case, shapes)
    elif "state_bytes_with_emb" in expected:
        about = {"model": shape(inputs, heads=80), "run": run(inputs, recompute="none")}
        yield "state bytes", "state_bytes_with_emb", expected["state_bytes_with_emb"], about
        said = "the case gives no batch and no sequence"
        key = "measured_with_emb_gb"
        yield "peak bytes", key, expected[key] * GB, {"cannot": said}
    elif "fits" in expected:  # the BLOOM log
        about = {"model": shape(inputs), "run": run(inputs, dropout=False)}
        if expected["fits"]:
            yield "peak bytes", "peak_mem_gb", expected["peak_mem_gb"] * GB, about
            yield "iteration seconds", "iteration_s", expected["iteration_s"], about
        yield "fits", "fits", float(expected["fits"]), about
    elif "mem_gib" in expected:  # torchtitan
        about = {"model": shape(shapes[inputs["model"]]), "run": torchtitan(case)}
        tokens = about["run"]["batch"] * inputs["seq"]
        seconds = tokens / (inputs["gpus"] * expected["tps_per_gpu"])
        yield "peak bytes", "mem_gib", expected["mem_gib"] * GIB, about
        yield "iteration seconds", "tps_per_gpu", seconds, about


def torchtitan(case: Facts) -> Facts:
    """FSDP over what tp, pp and cp leave; operator-level recomputation keeps some products, to
    which "selective" is the nearest; a pipeline's micro-batch is one sequence."""
    inputs = case["inputs"]
    local = inputs["local_batch"]
    recompute = {"selective_op": "selective"}.get(inputs["recompute"], inputs["recompute"])
    return run(
        inputs,
        zero=3,
        global_batch=local * inputs["fsdp"],
        recompute=recompute,
        micro_batch=1 if inputs.get("pp", 1) > 1 else local,
        flash=True,
        dropout=False,
        sequence_parallel=inputs.get("tp", 1) > 1,
        fp8=inputs.get("fp8", False) or case["id"].endswith("-fp8"),
    )


def training_time(case: Facts, shapes: Facts) -> Iterator[tuple]:
    inputs, expected = case["inputs"], case["expected"]
    if "gpu_hours" in expected:
        # llm-analysis ships an example of these two runs; its answer is the case's second number
        about = {"run": {"example": case["id"]}} if "llm_analysis_prediction" in expected else {}
        yield "GPU hours", "gpu_hours", expected["gpu_hours"], about or {"cannot": NO_LAYOUT}
        return
    if "global_batch" not in inputs:
        published = expected["training_days"] * DAY
        yield "training seconds", "training_days", published, {"cannot": NO_LAYOUT}
        return
    # SC21 Table 2: 96 = 8 x 12 and 280 = 8 x 35 in the paper; everything is recomputed there
    tp = min(8, inputs["model_parallel"])
    at = run(
        inputs,
        tp=tp,
        pp=inputs["model_parallel"] // tp,
        recompute="full",
        zero=3 if inputs["scheme"] == "zero3" else 0,
    )
    steps = inputs["tokens"] / (inputs["global_batch"] * inputs["seq"])
    about = {"model": shape(inputs, heads=HEADS_OF.get(inputs["hidden"], HEADS)), "run": at}
    yield "iteration seconds", "training_days", expected["training_days"] * DAY / steps, about


def throughput(case: Facts, shapes: Facts) -> Iterator[tuple]:
    inputs, expected = case["inputs"], case["expected"]
    model = shape(shapes[inputs["model"]] if "model" in inputs else inputs)
    if "iteration_s_present_work" in expected:  # Korthikanti Table 5
        ways = {"full_recompute": ("full", False), "present_work": ("selective", True)}
        for way, (recompute, sp) in ways.items():
            at = run(inputs, recompute=recompute, sequence_parallel=sp)
            key = f"iteration_s_{way}"
            yield "iteration seconds", key, expected[key], {"model": model, "run": at}
    elif "iteration_s" in expected:  # MT-NLG: everything recomputed
        at = run(inputs, recompute="full")
        about = {"model": model, "run": at}
        yield "iteration seconds", "iteration_s", expected["iteration_s"], about
    else:  # Llama 3 and Megatron-Core on H100: recent kernels, communication overlapped
        batch = inputs.get("global_batch") or inputs["batch_per_dp"] * inputs["dp"]
        at = run(
            inputs,
            global_batch=batch,
            sequence_parallel=inputs["tp"] > 1,
            flash=True,
            dropout=False,
            overlap=True,
            zero=1,
        )
        seconds = seconds_of(expected["tflops_per_gpu"], model, at)
        yield "iteration seconds", "tflops_per_gpu", seconds, {"model": model, "run": at}


def layer_time(case: Facts, shapes: Facts) -> Iterator[tuple]:
    """Korthikanti Table 4: a layer of the 22B model; 12 of its 48, which fit however run."""
    inputs = case["inputs"]
    how = inputs["technique"]
    recompute = {"full_recompute": "full", "sequence": "none"}.get(how, "selective")
    at = run(
        inputs,
        recompute=recompute,
        sequence_parallel="sequence" in how,
        global_batch=inputs["micro_batch"],
    )
    about = {"model": shape(inputs, layers=12), "run": at}
    yield "layer seconds", "layer_combined_ms", case["expected"]["layer_combined_ms"] / 1e3, about


def ranking(case: Facts, shapes: Facts) -> Iterator[tuple]:
    """vTrain: everything recomputed, 1F1B."""
    about = {"model": shape(case["inputs"]), "run": run(case["inputs"], recompute="full")}
    about["candidates"] = tuple(case["candidates"])
    yield "ranking regret", "best_ms", 0.0, about


KINDS = {
    "params_exact": parameters,
    "params_exact+time": parameters,
    "params+throughput": sizes_and_times,
    "memory_exact": exact_memory,
    "measured_memory": measured_memory,
    "step_time": step_time,
    "train_time": training_time,
    "throughput": throughput,
    "layer_time": layer_time,
    "ranking": ranking,
}
