"""Numbers that papers print and arithmetic reproduces: parameters, states, activations."""

from collections.abc import Callable, Iterator
from typing import Any

from tiledask.plan.fitting.activations import layer_bytes
from tiledask.plan.fitting.memory import estimate_memory
from tiledask.plan.inputs.layout import Layout
from tiledask.plan.inputs.load import load_cluster, load_model
from tiledask.plan.inputs.model import Model
from tiledask.plan.inputs.recipes import load_recipe, state_bytes

__all__ = ["EXACT", "gpt", "layout"]

GIB = 2**30
TECHNIQUES: dict[str, dict[str, Any]] = {
    "seq": {"sequence_parallel": True},
    "sel": {"recompute": "selective"},
    "seqsel": {"sequence_parallel": True, "recompute": "selective"},
    "full": {"recompute": "full"},
}
"""Of Korthikanti et al., figure 7."""
STATED = ("dp", "tp", "pp", "cp", "zero", "interleave", "recompute", "sequence_parallel")
Case = dict[str, Any]


def gpt(inputs: Case, **more: Any) -> Model:
    """A GPT with dropout, as Megatron-LM's, of the sizes in a case."""
    h = inputs["hidden"]
    sizes = {
        "hidden": h,
        "layers": inputs["layers"],
        "ffn": 4 * h,
        "heads": inputs.get("heads") or {12288: 96, 20480: 128}[h],
        "vocab": inputs.get("vocab", 51200),
    }
    return Model(**{**sizes, "dropout": True, **more})


def layout(inputs: Case, **more: Any) -> Layout:
    """The layout of a case, as far as it states one, and ``more``."""
    known = {name: inputs[name] for name in STATED if name in inputs}
    at_once = known.get("dp", 1) * inputs.get("micro_batch", 1)
    known["microbatch"] = inputs.get("micro_batch", 1)
    known["microbatches"] = inputs.get("global_batch", at_once) // at_once
    return Layout(**known | more)


Numbers = Iterator[tuple[Any, ...]]
"""The quantity, its key in what is expected, ours; unit, how far off it may be, a note."""


def _counts(name: str, i: Case, case: Case) -> Numbers:
    if name.startswith("params-"):
        model = Model(**i)
        ours = {"params": model.parameters, "active_params": model.active_parameters}
        words = {"params": "parameters", "active_params": "active"}
        yield from ((words[key], key, ours[key]) for key in words if key in case["expected"])
    elif name.startswith("hf-safetensors-trap"):
        model = load_model("llama-2-" + name.rsplit("-", 1)[1])
        yield "parameters", "trainable_params", model.parameters
        yield "buffers", "buffer_elements", i["hf_safetensors_total"] - model.parameters
    elif name.startswith("pythia-"):
        model = load_model(name)
        rest = model.parameters - 2 * model.vocab * model.hidden
        yield "without embeddings", "non_embedding_params", rest
    elif name.startswith("sc21-t1-"):
        billions = gpt(i, learned_pos=i["seq"]).parameters / 1e9
        yield "parameters", "params_billion", billions, "billion", 0.05
    elif name == "bloom-layer-sizes":
        model = load_model("bloom-176b")
        yield "embedding", "embedding_params", model.embedding[0].count()
        yield "a layer", "layer_params", model.item_parameters[1]
    elif name == "bloom-checkpoint":
        weights = state_bytes(load_model("bloom-176b").parameters, "fp16-weights")["weights"]
        yield "weights", "bf16_weights_gib", weights / GIB, "GiB", 1e-9


def _states(name: str, i: Case, case: Case) -> Numbers:
    if name.startswith("zero-t1"):
        for zero, key in ((1, "os_gb"), (2, "os_g_gb"), (3, "os_g_p_gb")):
            held = sum(state_bytes(int(i["params"]), "mixed-adam-16", zero, i["dp"]).values())
            # the paper rounds some cells and cuts others
            allowed = case["tolerance"]["rel"] * case["expected"][key] + 0.01
            yield f"ZeRO-{zero}", key, held / 1e9, "GB", allowed
    elif name.endswith("-state"):
        model, split = gpt(i), Layout(tp=i["tp"], pp=i["pp"])
        each = load_recipe(f"mixed-adam-{i['bytes_per_param']}").bytes_per_parameter
        matrices = sum(w.count(split.tp) for w in model.layer if w.kind == "matrix")
        gib = matrices * split.stage_layers(0, model.layers) * each / GIB
        yield "states of matrices", "weights_grads_optimizer_gib", gib, "GiB", 1e-6
    elif name.startswith("ultrascale"):
        for recipe, key in (
            ("mixed-adam-16", "fp32_or_bf16_no_fp32_grad_gb"),
            ("mixed-adam-20", "bf16_with_fp32_grad_accum_gb"),
        ):
            held = sum(state_bytes(int(i["params"]), recipe).values())
            yield recipe, key, held / 1e9, "GB", 0.5
    elif name.startswith("ds-zero3"):
        for key, host, away in (("none_none", "none", 0), ("offload_opt", "opt", 1),
                                ("offload_both", "both", 2)):  # fmt: skip
            device, of_host = _deepspeed(i, i["gpus_per_node"], i["nodes"], away)
            yield f"device, {key}", f"gpu_{key}_gib", device / GIB, "GiB", 0.006
            yield f"host, {host}", f"cpu_{host}_init1_gib", of_host / GIB, "GiB", 0.006
    elif name == "ds-issue-4527":
        device, _ = _deepspeed(i, i["gpus"], 1, 2)
        yield "DeepSpeed's estimate", "estimator_gpu_gib", device / GIB, "GiB", 0.005
    elif name.startswith("usable-"):
        yield "usable", "total_mib", load_cluster("1x" + i["gpu"]).device.memory_mib, "MiB", 0


def _deepspeed(i: Case, gpus: int, nodes: int, away: int) -> tuple[int, int]:
    """Bytes of a device and of a host as DeepSpeed's own estimator has them of ZeRO-3 (its
    docs/code-docs/source/memory.rst): states, the largest layer gathered, and half as much again
    on the host. ``away``: 1 the optimizer is offloaded, 2 the weights too. It counts neither
    activations nor overhead: an issue (#4527) reports 0.49 GiB estimated and 14.3 measured."""
    states, gathered = int(i["total_params"]), 4 * int(i["largest_layer_params"])
    if not away:
        return gathered + 18 * states // (gpus * nodes), int(gathered * gpus * 1.5)
    device = gathered + (0 if away > 1 else 2 * states // (gpus * nodes))
    return device, int(states * ((18 if away > 1 else 16) / nodes) * 1.5)


def _activations(name: str, i: Case, case: Case) -> Numbers:
    if name.startswith("kor-fig1") and not name.endswith("-state"):
        yield "first stage", "activations_gib", _first_stage(i) / GIB, "GiB", 1e-6
    elif name.startswith("kor-fig7"):
        part = 100 * _first_stage(i, **TECHNIQUES[i["technique"]]) / _first_stage(i)
        points, note = case["tolerance"]["abs_points"], "the figure's numbers are digitised"
        yield "of the tensor-parallel baseline", "percent_of_tp_baseline", part, "%", points, note
    elif name.startswith("kor-t2-"):
        recompute = next((kind for kind in ("full", "selective") if kind in name), "none")
        cut = Layout(
            tp=i["t"], microbatch=i["b"], sequence_parallel="+sp" in name, recompute=recompute
        )
        yield "a layer", "bytes_per_layer", layer_bytes(_layer(i), cut, i["s"]), "B", 0
    elif name == "kor-selective-savings":
        for which, one in i.items():
            model = _layer(one)
            whole = layer_bytes(model, Layout(), one["s"])
            kept = layer_bytes(model, Layout(recompute="selective"), one["s"])
            core = (whole - kept) / (one["s"] * one["h"])
            yield f"5as/h of {which}", f"{which}_5as_over_h", core
            saved = 100 * (1 - kept / whole)
            yield f"saved of {which}", f"{which}_saving_percent", saved, "%", 0.5
    elif name == "mleng-llama8b-activations":
        how = Layout(recompute="full", flash_attention=True)
        ledger = estimate_memory(load_model("llama-3.1-8b"), how, sequence=i["seq"]).ledger
        checkpoints = ledger.by_tensor(0, "backward")["activations"] / GIB
        logits = ledger.by_tensor(0, "forward")["logits"] / GIB
        yield "checkpoints", "checkpoints_gib", checkpoints, "GiB", 0.5
        yield "logits", "logits_fp32_gib", logits, "GiB", 0.005


def _layer(i: Case) -> Model:
    """A model of one layer, of the sizes in Korthikanti's letters."""
    return gpt({"hidden": i["h"], "heads": i["a"], "layers": 1, "vocab": 1})


def _first_stage(i: Case, **how: Any) -> int:
    """Bytes of the class "activations" on the first stage."""
    memory = estimate_memory(gpt(i), layout(i, **how), "mixed-adam-18", i["seq"])
    return memory.ledger.by_tensor(0, "forward")["activations"]


EXACT: dict[str, Callable[[str, Case, Case], Numbers]] = {
    "parameter counts": _counts,
    "states: ZeRO Table 1, Korthikanti Fig. 1, Ultra-Scale Playbook, DeepSpeed's own estimate": (
        _states
    ),
    "activations: Korthikanti Fig. 1, Fig. 7, Table 2, section 5; Llama at 32k": _activations,
}
"""Group -> (id, inputs, case of plan.json) -> its numbers."""
