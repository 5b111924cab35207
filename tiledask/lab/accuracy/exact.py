"""Numbers that papers print and arithmetic reproduces: parameters, states, activations."""

from collections.abc import Callable, Iterator
from typing import Any

from tiledask.lab.accuracy.deepspeed_estimate import deepspeed_estimate
from tiledask.lab.accuracy.rows import PublishedRow, PublishedSource, published
from tiledask.plan.fitting.activations import layer_bytes
from tiledask.plan.fitting.memory import estimate_memory
from tiledask.plan.inputs.layout import Layout
from tiledask.plan.inputs.load import load_cluster, load_model
from tiledask.plan.inputs.model import Model
from tiledask.plan.inputs.recipes import load_recipe, state_bytes

__all__ = ["activations", "counts", "gpt", "layout", "states"]

GIB = 2**30
TECHNIQUES = {
    "seq": {"sequence_parallel": True},
    "sel": {"recompute": "selective"},
    "seqsel": {"sequence_parallel": True, "recompute": "selective"},
    "full": {"recompute": "full"},
}
"""Of Korthikanti et al., figure 7."""


def gpt(inputs: dict[str, Any], **more: Any) -> Model:
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


_STATED = ("dp", "tp", "pp", "cp", "zero", "interleave", "recompute", "sequence_parallel")


def layout(inputs: dict[str, Any], **more: Any) -> Layout:
    """The layout of a case, as far as it states one, and ``more``."""
    said = {name: inputs[name] for name in _STATED if name in inputs}
    at_once = said.get("dp", 1) * inputs.get("micro_batch", 1)
    said["microbatch"] = inputs.get("micro_batch", 1)
    said["microbatches"] = inputs.get("global_batch", at_once) // at_once
    return Layout(**said | more)


Said = tuple[Any, ...]
"""The quantity, its key in what is expected, what we say; unit, how far off it may be, a note."""


def _rows(of: Callable[[str, dict, dict], Iterator[Said]]) -> Iterator[PublishedRow]:
    """A row for all that ``of`` says of the cases: by its id, its inputs, and the whole case."""
    for name, case in published().items():
        for quantity, key, ours, *rest in of(name, case["inputs"], case):
            unit, allowed, note = (*rest, *("", 0, "")[len(rest) :])
            says = case["expected"][key]
            yield PublishedRow(name, quantity, says, ours, unit, allowed, note=note)


def counts() -> PublishedSource:
    """Parameters."""
    return PublishedSource.of("parameter counts", _rows(_counts))


def _counts(name: str, i: dict, case: dict) -> Iterator[Said]:
    if name.startswith("params-"):
        model = Model(**i)
        if "params" in case["expected"]:
            yield "parameters", "params", model.parameters
        if "active_params" in case["expected"]:
            yield "active", "active_params", model.active_parameters
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


def states() -> PublishedSource:
    """Weights, gradients and optimizer states."""
    return PublishedSource.of(
        "states: ZeRO Table 1, Korthikanti Fig. 1, Ultra-Scale Playbook, DeepSpeed's own estimate",
        _rows(_states),
    )


def _states(name: str, i: dict, case: dict) -> Iterator[Said]:
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
        held = matrices * split.stage_layers(0, model.layers) * each / GIB
        yield "states of matrices", "weights_grads_optimizer_gib", held, "GiB", 1e-6
    elif name.startswith("ultrascale"):
        for recipe, key in (
            ("mixed-adam-16", "fp32_or_bf16_no_fp32_grad_gb"),
            ("mixed-adam-20", "bf16_with_fp32_grad_accum_gb"),
        ):
            held = sum(state_bytes(int(i["params"]), recipe).values())
            yield recipe, key, held / 1e9, "GB", 0.5
    elif name.startswith("ds-zero3"):
        yield from _deepspeed(i)
    elif name == "ds-issue-4527":
        own = deepspeed_estimate(
            int(i["total_params"]),
            int(i["largest_layer_params"]),
            gpus_per_node=i["gpus"],
            offload_optimizer=True,
            offload_weights=True,
        )
        yield "DeepSpeed's estimate", "estimator_gpu_gib", own.device / GIB, "GiB", 0.005
    elif name.startswith("usable-"):
        found = load_cluster("1x" + i["gpu"]).device.memory_mib
        yield "usable", "total_mib", found, "MiB", 0


def _deepspeed(i: dict) -> Iterator[Said]:
    for key, host, options in (
        ("none_none", "none", {}),
        ("offload_opt", "opt", {"offload_optimizer": True}),
        ("offload_both", "both", {"offload_optimizer": True, "offload_weights": True}),
    ):
        found = deepspeed_estimate(
            int(i["total_params"]),
            int(i["largest_layer_params"]),
            gpus_per_node=i["gpus_per_node"],
            nodes=i["nodes"],
            **options,
        )
        yield f"device, {key}", f"gpu_{key}_gib", found.device / GIB, "GiB", 0.006
        yield f"host, {host}", f"cpu_{host}_init1_gib", found.host / GIB, "GiB", 0.006


def activations() -> PublishedSource:
    """Activations kept for the backward pass."""
    return PublishedSource.of(
        "activations: Korthikanti Fig. 1, Fig. 7, Table 2, section 5; Llama at 32k",
        _rows(_activations),
    )


def _activations(name: str, i: dict, case: dict) -> Iterator[Said]:
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
        memory = estimate_memory(
            load_model("llama-3.1-8b"),
            Layout(recompute="full", flash_attention=True),
            sequence=i["seq"],
        )
        kept = memory.ledger.by_tensor(0, "backward")["activations"] / GIB
        logits = memory.ledger.by_tensor(0, "forward")["logits"] / GIB
        yield "checkpoints", "checkpoints_gib", kept, "GiB", 0.5
        yield "logits", "logits_fp32_gib", logits, "GiB", 0.005


def _layer(i: dict) -> Model:
    """A model of one layer, of the sizes in Korthikanti's letters."""
    return gpt({"hidden": i["h"], "heads": i["a"], "layers": 1, "vocab": 1})


def _first_stage(i: dict, **how: Any) -> int:
    """Bytes of the class "activations" on the first stage."""
    memory = estimate_memory(gpt(i), layout(i, **how), "mixed-adam-18", i["seq"])
    return memory.ledger.by_tensor(0, "forward")["activations"]
