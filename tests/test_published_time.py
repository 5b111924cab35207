"""Published step times against the estimate: rows that set the constants, and rows that check."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tiledask.plan.flops import step_flops
from tiledask.plan.hardware import load_cluster
from tiledask.plan.layout import Layout
from tiledask.plan.memory import estimate_memory
from tiledask.plan.model import Model
from tiledask.plan.overhead import default_overhead
from tiledask.plan.rates import load_calibration
from tiledask.plan.specs import load_model
from tiledask.plan.step import estimate_step

PATH = Path(__file__).parents[1] / "data" / "published" / "plan.json"
CASES = {case["id"]: case for case in json.loads(PATH.read_text())}
CALIBRATED = {name for part in ("a100", "h100") for name in load_calibration(part).calibrated}

CHUNKS = {"sc21-t1-76.1B": 3, "sc21-t1-145.6B": 2, "sc21-t1-529.6B": 3}
"""Interleaving of the runs, from Megatron-LM's script run_table_1.sh; 1 in the others."""


def starting(*prefixes):
    return [name for name in CASES if name.startswith(prefixes)]


def gpt(inputs, **more):
    """A GPT of Megatron-LM."""
    h = inputs["hidden"]
    heads = inputs.get("heads") or {12288: 96, 20480: 128}[h]
    vocab = inputs.get("vocab", 51200)
    sizes = {"hidden": h, "layers": inputs["layers"], "heads": heads, "ffn": 4 * h, "vocab": vocab}
    return Model(**{**sizes, "learned_pos": 2048, "dropout": True, **more})


def seconds_of(inputs, tflops, recomputed):
    """Seconds of a step in which each GPU does ``tflops``; SC21's eq. (3) counts a forward
    pass more than the model needs."""
    model = gpt(inputs) if "hidden" in inputs else load_model("llama-3.1-405b")
    batch = inputs.get("global_batch") or inputs["dp"] * inputs["batch_per_dp"]
    flop = step_flops(model, batch, inputs["seq"], "full" if recomputed else "none")
    counted = flop.causal if "model" in inputs else flop.hardware
    return counted / (tflops * 1e12 * inputs["gpus"])


def estimated(model, inputs, recipe="mixed-adam-16", gpu=None, **layout):
    gpu = gpu or inputs["gpu"].replace("H100-80GB", "H100")
    step = estimate_step(
        model, Layout(**layout), load_cluster(f"{inputs['gpus']}x{gpu}"), recipe, inputs["seq"]
    )
    return step.total


def sc21(name):
    i, e = CASES[name]["inputs"], CASES[name]["expected"]
    if "model_parallel" in i:  # table 2: t = 8
        i = {**i, "tp": 8, "pp": i["model_parallel"] // 8}
        i["dp"], tflops = i["gpus"] // i["model_parallel"], i["achieved_tflops"]
    else:
        tflops = e["achieved_tflops_per_gpu"]
    time = estimated(
        gpt(i), i, dp=i["dp"], tp=i["tp"], pp=i["pp"], microbatch=i["micro_batch"],
        microbatches=i["global_batch"] // (i["dp"] * i["micro_batch"]), recompute="full",
        interleave=CHUNKS.get(name, 1),
    )  # fmt: skip
    return time, seconds_of(i, tflops, True)


def korthikanti(name):
    name, kind = name.rsplit(":", 1)
    i, e = CASES[name]["inputs"], CASES[name]["expected"]
    full = kind == "full"
    time = estimated(
        gpt(i), i, "mixed-adam-18", tp=i["tp"], pp=i["pp"], microbatch=i["micro_batch"],
        microbatches=i["global_batch"] // i["micro_batch"], interleave=i["interleave"],
        recompute="full" if full else "selective", sequence_parallel=not full,
    )  # fmt: skip
    return time, e["iteration_s_full_recompute" if full else "iteration_s_present_work"]


def layer_time(name):
    i, e = CASES[name]["inputs"], CASES[name]["expected"]
    technique = i["technique"]
    recompute = {"full_": "full", "selec": "selective"}.get(technique[:5], "none")
    layout = Layout(
        tp=i["tp"], microbatch=i["micro_batch"], recompute=recompute,
        sequence_parallel="sequence" in technique,
    )  # fmt: skip
    model = gpt({**i, "layers": 48})
    step = estimate_step(model, layout, load_cluster("8xA100-80GB"), "mixed-adam-18", i["seq"])
    return sum(step.layer_seconds), e["layer_combined_ms"] / 1e3


def mtnlg(name):
    i, e = CASES[name]["inputs"], CASES[name]["expected"]
    time = estimated(
        gpt(i), i, dp=i["dp"], tp=i["tp"], pp=i["pp"], recompute="full",
        microbatches=i["global_batch"] // i["dp"],
    )  # fmt: skip
    return time, e["iteration_s"]


def llama3(name):
    """Interleaved with one layer a chunk: 128 chunks, the first and the last without a layer
    (section 3.3.2 says that these stages have one layer less; the chunks are our reading)."""
    i, e = CASES[name]["inputs"], CASES[name]["expected"]
    model = load_model("llama-3.1-405b")
    time = estimated(
        model, i, "mixed-adam-18", dp=i["dp"], tp=i["tp"], pp=i["pp"], cp=i["cp"],
        microbatches=i["batch_per_dp"], zero=1, sequence_parallel=True, flash_attention=True,
        interleave=8, partition=(0, *range(model.layers + 1), model.layers),
    )  # fmt: skip
    return time, seconds_of(i, e["tflops_per_gpu"], False)


def mcore(name):
    """The table says neither micro-batch nor interleaving: the fastest that fits."""
    i, e = CASES[name]["inputs"], CASES[name]["expected"]
    bare = {"dropout": False, "qkv_bias": False, "out_bias": False, "mlp_bias": False}
    model, batch = gpt(i, **bare), i["global_batch"] // i["dp"]
    times = []
    for microbatch in (b for b in (1, 2, 4) if batch % b == 0):
        for chunks in range(1, model.layers // i["pp"] + 1):
            layout = {"dp": i["dp"], "tp": i["tp"], "pp": i["pp"], "microbatch": microbatch,
                      "microbatches": batch // microbatch, "interleave": chunks, "zero": 1,
                      "flash_attention": True, "sequence_parallel": i["tp"] > 1}  # fmt: skip
            uneven = model.layers % (i["pp"] * chunks) or layout["microbatches"] % i["pp"]
            if chunks > 1 and (i["pp"] == 1 or uneven):
                continue
            held = estimate_memory(model, Layout(**layout), "mixed-adam-18", i["seq"]).peak
            if held + default_overhead(i["gpus"]).total < 80e9:
                times.append(estimated(model, i, "mixed-adam-18", **layout))
    return min(times), seconds_of(i, e["tflops_per_gpu"], False)


GROUPS = {
    "SC21 table 1": (sc21, starting("sc21-t1-")),
    "SC21 table 2": (sc21, starting("sc21-t2-ptd")),
    "Korthikanti table 5": (korthikanti, [f"{n}:{kind}" for n in starting("kor-t5")
                                          for kind in ("full", "present")]),
    "Korthikanti table 4": (layer_time, starting("kor-t4")),
    "Llama 3 table 4": (llama3, starting("llama3-t4")),
    "Megatron-Core": (mcore, starting("mcore-h100")),
}  # fmt: skip
ROWS = [(group, name) for group, (_, names) in GROUPS.items() for name in names]


@pytest.fixture(scope="module")
def errors():
    """Relative error of each row, estimated / published - 1."""
    found = {}
    for group, name in ROWS:
        time, published = GROUPS[group][0](name)
        found[group, name] = time / published - 1
    return found


def test_the_calibration_rows_exist_and_leave_rows_to_check():
    names = {name for _, name in ROWS}
    assert names >= CALIBRATED
    assert len(CALIBRATED) < len(names) / 2 + 1


@pytest.mark.parametrize(("group", "name"), ROWS)
def test_each_row_within_12_percent(errors, group, name):
    assert abs(errors[group, name]) < 0.12


@pytest.mark.parametrize("calibrated", [True, False])
def test_mean_error_within_5_percent(errors, calibrated):
    rows = [abs(e) for (_, name), e in errors.items() if (name in CALIBRATED) == calibrated]
    assert np.mean(rows) < 0.05


def test_published_utilisations_follow_from_published_times():
    for name in starting("kor-t5"):
        i, e = CASES[name]["inputs"], CASES[name]["expected"]
        flop = step_flops(gpt(i), i["global_batch"], i["seq"], "selective")
        peak = e["iteration_s_present_work"] * i["gpus"] * i["peak_tflops"] * 1e12
        assert 100 * flop.model / peak == pytest.approx(e["mfu_percent"], abs=0.2)
        assert 100 * flop.hardware / peak == pytest.approx(e["hfu_percent"], abs=0.5)


def test_days_of_sc21_table_2():
    """Training days follow from the achieved FLOP/s: eq. (3), through our own count."""
    for name in starting("sc21-t2-ptd"):
        i, e = CASES[name]["inputs"], CASES[name]["expected"]
        steps = i["tokens"] / (i["global_batch"] * i["seq"])
        days = steps * seconds_of(i, i["achieved_tflops"], True) / 86400
        assert days == pytest.approx(e["training_days"], rel=CASES[name]["tolerance"]["rel"])


# what the estimate does not reach ---------------------------------------------------------


@pytest.mark.parametrize("name", starting("mtnlg"))
def test_mt_nlg_ran_slower_than_sc21_with_the_same_layout(name):
    """SC21's table 2 ran the same model on the same machine with t=8, p=35, d=8 at 159 teraFLOP/s;
    MT-NLG, with 240 micro-batches for 280, at 126. Layout and hardware cannot tell them apart:
    DeepSpeed's pipeline is not modelled. The estimate stays with the faster run."""
    time, published = mtnlg(name)
    assert -0.26 < time / published - 1 < -0.15


BLOOM = [n for n in starting("bloom-") if "iteration_s" in CASES[n]["expected"]]


def bloom(name):
    """Jean Zay: 4 adapters of 100 Gb/s for 8 GPUs (bigscience, tr11 README)."""
    i = CASES[name]["inputs"]
    dgx = load_cluster(f"{i['gpus']}xA100-80GB")
    cluster = replace(dgx, between_nodes=replace(dgx.between_nodes, bytes_per_second=6.25e9))
    model = gpt({**i, "heads": i["heads"] or 64}, dropout=False, learned_pos=0, embedding_norm=True)
    layout = Layout(
        dp=i["dp"], tp=i["tp"], pp=i["pp"], microbatch=i["micro_batch"], zero=i["zero"],
        microbatches=i["global_batch"] // (i["dp"] * i["micro_batch"]), recompute="full",
    )  # fmt: skip
    recipe = {2: "mixed-adam-16", 6: "mixed-adam-20"}[i["grad_bytes"]]
    step = estimate_step(model, layout, cluster, recipe, i["seq"])
    return step.total, CASES[name]["expected"]["iteration_s"]


def test_bloom_ran_slower_but_in_the_estimated_order():
    """Megatron-DeepSpeed again: the log's rows are 17 % (median) slower than the estimate, and
    the untuned first ones (head width 150, one micro-batch) up to 42 %."""
    slower = np.array([np.divide(*bloom(name)) - 1 for name in BLOOM])
    assert np.median(slower) == pytest.approx(-0.17, abs=0.04)
    assert slower.min() > -0.43
    assert slower.max() < 0.05


def test_ranking_of_layouts_for_3_6_billion():
    """The estimate's first choice among the layouts that vTrain measured loses 3 % at most."""
    case = CASES["vtrain-rank-3.6B"]
    i, best = case["inputs"], case["expected"]["best_ms"]
    model = gpt({**i, "vocab": 51200})

    def time(c):
        m = i["global_batch"] // (c["dp"] * c["micro_batch"])
        return estimated(
            model, i, gpu="A100-80GB", dp=c["dp"], tp=c["tp"], pp=c["pp"],
            microbatch=c["micro_batch"], microbatches=m, recompute="full",
        )  # fmt: skip

    pick = min(case["candidates"], key=time)
    assert pick["measured_ms"] / best - 1 <= 0.03
