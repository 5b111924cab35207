"""Layouts to the frameworks' own words and back."""

import json
import re
from dataclasses import fields
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tiledask as td
from tiledask import load_recipe
from tiledask.errors import ConfigError
from tiledask.plan.data import names
from tiledask.plan.frameworks.exchange import WRITTEN

ACCEPTED = json.loads((Path(__file__).parent / "own/accepted.json").read_text())
CASES = ACCEPTED.pop("cases")
POSTED = json.loads((Path(__file__).parent / "own/posted.json").read_text())
TRAINS = [name for name in names("recipes") if load_recipe(name).trains]

SAID = {
    "megatron": lambda n: {
        "data_parallel_size": n.dp,
        "tensor_model_parallel_size": n.tp,
        "pipeline_model_parallel_size": n.pp,
        "context_parallel_size": n.cp,
        "expert_model_parallel_size": n.ep,
        "virtual_pipeline_model_parallel_size": {1: None}.get(n.interleave, n.interleave),
        "global_batch_size": n.sequences,
        "use_distributed_optimizer": n.zero > 0,
        "use_megatron_fsdp": n.zero > 1,
    },
    "torchtitan": lambda n: {
        "tensor_parallel_degree": n.tp,
        "pipeline_parallel_degree": n.pp,
        "context_parallel_degree": n.cp,
        "data_parallel_shard_degree": n.dp if n.zero else 1,
        "global_batch_size": n.sequences,
    },
    "deepspeed": lambda n: {
        "train_batch_size": n.sequences,
        "gradient_accumulation_steps": n.microbatches,
        "stage": n.zero,
        "autotp_size": n.tp if n.tp > 1 else 0,
    },
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("framework", sorted(ACCEPTED))
def test_what_is_exported_is_what_the_framework_read(framework, case):
    """The very text that its own parser was given, and there it means the layout: Megatron-LM of
    August 2026, torchtitan 0.2.2, DeepSpeed 0.19.6. Another text is given to them first."""
    model, layout, recipe, sequence = CASES[case]
    layout = td.Layout(**layout)
    found = td.export_config(model, layout, framework, recipe=recipe, sequence=sequence)
    kept = ACCEPTED[framework][case]
    assert found.text == kept["text"], "it is not known that this text is read"
    parts = [part for part in kept["read"].values() if isinstance(part, dict)]
    read = {k: v for part in (*parts, kept["read"]) for k, v in part.items()}
    said = SAID[framework](layout)
    assert {name: read[name] for name in said} == said
    if (framework, case) == ("megatron", "latent, uneven"):
        assert json.loads(read["layers"]) == [[n] for n in layout.chunk_layers(61)]


@cache
def plans(model, cluster, batch):
    return td.search(model, cluster, batch, space=td.Space(zero=(0, 1, 2, 3)))


WHERE = (
    ("llama-3.1-8b", "64xH100", 128),
    ("gpt2-xl", "16xA100-80GB", 48),
    ("qwen3-30b-a3b", "64xH200", 64),
    ("deepseek-v2-lite", "32xH100", 64),
    ("qwen2.5-7b", "28xH100", 56),
)


def back(framework, model, layout, recipe, sequence):
    """What comes back; asserted to be what was there but for what the notes name."""
    found = td.export_config(model, layout, framework, recipe=recipe, sequence=sequence)
    devices = None if framework == "deepspeed" else layout.devices
    named = None if framework == "megatron" else model
    read = td.import_config(framework, found.text, model=named, devices=devices)
    layers, lost = td.load_model(model).layers, {*found.lost}
    for field in fields(td.Layout):
        if field.name not in {*lost, "partition"}:
            mine, theirs = getattr(layout, field.name), getattr(read.layout, field.name)
            assert theirs == mine, (field.name, str(layout), found.text)
    if not lost & {"partition", "pp", "interleave"}:
        assert read.layout.chunk_layers(layers) == layout.chunk_layers(layers)
    if "recipe" not in lost:
        assert read.recipe == recipe
    if framework != "deepspeed":
        assert read.sequence == sequence
    return lost


@given(st.sampled_from(sorted(WRITTEN)), st.sampled_from(WHERE), st.data())
def test_what_is_exported_is_read_as_the_same_layout(framework, where, data):
    found = plans(*where)
    layout = found._plan(data.draw(st.integers(0, len(found) - 1))).layout
    recipe = data.draw(st.sampled_from(TRAINS))
    back(framework, where[0], layout, recipe, found.sequence)


CUT = (
    {"pp": 4, "microbatches": 8, "partition": "7, 9, 9, 7"},
    {"pp": 2, "microbatches": 8, "interleave": 4, "partition": (0, 3, 8, 12, 16, 20, 24, 28, 32)},
    {"pp": 4, "microbatches": 8, "schedule": "zb-v"},
    {"pp": 4, "microbatches": 8, "schedule": "dualpipev", "partition": "items"},
    {"dp": 4, "zero": 3, "recompute": "selective_op", "flash_attention": True},
    {"pp": 2, "microbatches": 8, "interleave": 4, "flash_attention": True},
)


@pytest.mark.parametrize("layout", CUT, ids=str)
@pytest.mark.parametrize("framework", sorted(WRITTEN))
def test_cuts_and_orders_of_pipelines_come_back(framework, layout):
    lost = back(framework, "llama-3.1-8b", td.Layout(**layout), "fsdp-adam", 4096)
    assert framework != "torchtitan" or layout != CUT[-1] or not lost


@pytest.mark.parametrize("name", names("models"))
def test_a_model_comes_back_from_megatrons_flags(name):
    """With as many parameters, unless a note names what Megatron's layers cannot be."""
    model = td.load_model(name)
    found = td.export_config(model, td.Layout(), "megatron", sequence=model.learned_pos or 2048)
    read = td.import_config("megatron", found.text, devices=1).model
    differs = {"biases", "norm", "qk_norm", "embedding_norm"} & set(found.lost)
    assert differs or read.parameters == model.parameters
    assert read.active_parameters == model.active_parameters or differs


SCRIPT = """torchrun --nproc_per_node 8 --nnodes 4 pretrain_gpt.py \\
  --num-layers 24 --hidden-size 2048 --num-attention-heads 16 --seq-length 1024 \\
  --max-position-embeddings 1024 --tensor-model-parallel-size 4 --sequence-parallel \\
  --pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 6 \\
  --micro-batch-size 2 --global-batch-size 64 --fp16 --recompute-activations \\
  --use-distributed-optimizer --lr=1e-4 --train-iters 100 --data-path my-data  # a comment
"""
ARRAYS = """#!/bin/bash
GPUS=8; NODES=${NNODES:-2}   # don't ask
MODEL=(
    --num-layers 4 --hidden-size 256 --num-attention-heads 8 --seq-length 512
    --vocab-size 4000 --geglu --moe-layer-freq "([0]*1+[1]*3)" --num-experts 4
    --attention-backend unfused
)
STEP=" \
  --micro-batch-size 1 --global-batch-size $((GPUS * NODES * 2)) --bf16 \
"
if [ "$FAST" = 1 ]; then
    STEP+=" --fp8-format hybrid"
fi
EXTRA=(--lr 1e-4 --fp8-param-gather)
cmd="torchrun --nproc_per_node $GPUS --nnodes $NODES pretrain_gpt.py ${MODEL[@]} $STEP"
$cmd ${EXTRA[@]} --data-path $1 --tensor-model-parallel-size ${TP:=2} | tee log
"""


TITAN = """[model]\nname = "llama3"\nflavor = "8B"\nconverters = {converters}
[training]\nbatch_size = 2\ntensor_parallel_degree = 2\n{layers}
[experimental]\npipeline_parallel_degree = 2\n{more}"""
COMPILED = "[compile]\nenable = true\n"
OLD = {
    ("[]", "", ""): "torchtitan-eager",
    ('["float8"]', "", COMPILED): "torchtitan-fused-loss",
    ("[]", "", f'{COMPILED}components = ["model"]'): "torchtitan",
    ("[]", "compile = true", ""): "torchtitan",  # the loss was not
}


@pytest.mark.parametrize("written", OLD)
def test_older_names_float8_and_what_is_compiled_are_read(written):
    converters, layers, more = written
    text = TITAN.format(converters=converters, layers=layers, more=more)
    found = td.import_config("torchtitan", text, devices=16)
    assert str(found.layout).startswith("dp=4 tp=2 pp=2 microbatches=2 zero=3")
    assert found.recipe == ("fsdp-adam-fp8" if "float8" in converters else "fsdp-adam-pipeline")
    assert found.framework == OLD[written]


ADAMS = {
    "megatron": "--bf16 --optimizer adam",
    "torchtitan": '[model]\nflavor = "8B"\n[optimizer]\nname = "AdamW"',
    "deepspeed": '{"bf16": {"enabled": true}, "optimizer": {"type": "AdamW", "params": {}}}',
}


@pytest.mark.parametrize(("optimizer", "other"), [("adamw", False), ("Lion", True)])
@pytest.mark.parametrize("framework", WRITTEN)
def test_an_optimizer_with_other_states_than_adams_is_said(framework, optimizer, other):
    text = re.sub("(?i)adamw?", optimizer, ADAMS[framework])
    found = td.import_config(framework, text, model="llama-3.1-8b", devices=8).assumed
    assert any(words.startswith("computed with Adam's states (") for words in found) == other


@pytest.mark.parametrize(
    ("half", "recipe"),
    [
        ('"bf16": {"enabled": "true"}', "mixed-adam-16"),
        ('"bfloat16": {"enabled": true}', "mixed-adam-16"),
        ('"fp16": {"enabled": "auto"}, "bf16": {"enabled": "auto"}', "mixed-adam-16"),
        ('"bf16": {"enabled": true}, "data_types": {"grad_accum_dtype": "float32"}', "deep"),
        ('"steps_per_print": 10', "fp32-adam"),
    ],
)
def test_the_precision_is_read_or_said(half, recipe):
    found = td.import_config("deepspeed", f"{{{half}}}", model="gpt2", devices=2)
    assert found.recipe.startswith(recipe)
    said = any("bf16" in line for line in found.assumed)
    assert said == ("auto" in half or recipe == "fp32-adam")


ENDS = "--account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split"
CUTS = "--pipeline-model-parallel-size 4 --pipeline-model-parallel-layout Et*10|(t*8|)*2t*6L"


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("--pipeline-model-parallel-size 4 --decoder-first-pipeline-num-layers 5", (5, 9, 9, 9)),
        (CUTS, (10, 8, 8, 6)),
        (f"--pipeline-model-parallel-size 2 {ENDS}", (16, 16)),
        ("--use-torch-fsdp2", {"zero": 3}),
        ("--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads", {"zero": 2}),
        ("--expert-tensor-parallel-size 2 --num-experts 8", {"expert_tp": 0}),
        ("--attention-backend local", {"flash_attention": False}),
    ],
)
def test_what_several_flags_say_together_is_read(flags, expected):
    layout = td.import_config("megatron", flags, model="llama-3.1-8b", devices=8).layout
    if isinstance(expected, tuple):
        assert layout.chunk_layers(32) == expected
    else:
        assert expected.items() <= vars(layout).items()


@pytest.mark.parametrize("case", POSTED, ids=lambda case: case["source"])
def test_what_people_post_is_read_or_named(tmp_path, case):
    """In the shape of scripts and files that people posted: what decides is read, or said."""
    expected = dict(case["expected"])
    path = tmp_path / "posted.sh"
    for name, lines in {path.name: case["text"], **case.get("beside", {})}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("\n".join(lines))
    given = {"model": case.get("model"), "devices": case.get("devices")}
    if words := expected.get("refused"):
        with pytest.raises(ConfigError, match=re.escape(words)):
            td.import_config(case["framework"], path, **given)
        return
    found = td.import_config(case["framework"], path, **given)
    layout, recipe, said = vars(found.layout), load_recipe(found.recipe), " | ".join(found.assumed)
    at = {name: tuple(v) if isinstance(v, list) else v for name, v in expected["layout"].items()}
    assert at.items() <= layout.items()
    assert (recipe.name, found.sequence) == (expected["recipe"], expected["sequence"])
    assert found.framework == expected["by"]
    model = {"layers": "layers", "kv_heads": "kv_heads", "parameters": "parameters"}
    for name in model.keys() & expected.keys():
        assert getattr(found.model, name) == expected[name]
    assert [*found.model.dense_layers] == expected.get("dense", [*found.model.dense_layers])
    assert [words for words in expected.get("said", ()) if words not in said] == []
    assert [words for words in expected.get("unsaid", ()) if words in said] == []
    if "not looked at" not in str(expected):
        assert "not looked at" not in said
    states = {state.tensor: state.bytes for state in recipe.states}
    assert all(f"{states[t]} B" in recipe.name for t in states if f"{t} of" in recipe.name)
    td.fits(found.model, found.layout, "8xH100", recipe, found.sequence, framework=found.framework)


def test_scripts_are_read_with_torchruns_devices_arrays_and_conditions():
    found = td.import_config("megatron", SCRIPT)
    layout = "dp=4 tp=4 pp=2 microbatch=2 microbatches=8 zero=1 sequence_parallel=True "
    assert str(found.layout) == layout + "recompute=selective interleave=2 flash_attention=True"
    assert (found.recipe, found.sequence, found.model.layers) == ("mixed-adam-16", 1024, 24)
    assert (found.model.ffn, found.model.learned_pos) == (8192, 1024)
    assert not any("not looked at" in line for line in found.assumed)
    found = td.import_config("megatron", ARRAYS)
    assert (found.layout.dp, found.layout.tp, found.layout.microbatches) == (8, 2, 4)
    assert (found.model.layers, found.model.dense_layers, found.model.mlp) == (4, (0,), "swiglu")
    assert found.recipe == "mixed-adam-18-fp8"  # as the condition adds, and that is said
    assert any("conditions are not judged: STEP" in line for line in found.assumed)
    other = td.import_config("megatron", ARRAYS.replace("--geglu", "--spec a b"), model="gpt2")
    assert other.model.name == "gpt2"


MEGATRON = {
    "gpt": "Megatron's flags look like",
    ARRAYS.replace("$((GPUS * NODES * 2))", "$GBS"): "'$GBS'; nothing in it sets that variable",
    ARRAYS.replace("GPUS * NODES * 2", "1 << 99999"): "'$<sum>'; nothing in it sets that variable",
    ARRAYS.replace("--geglu", "--spec a b"): "--spec, for layers that are not read",
    SCRIPT.replace("--fp16", "--use-kda 1"): "--use-kda",
    ARRAYS.replace("([0]*1+[1]*3)", "([0]*1+[1]*4)"): "list of 4 zeros and ones",
}
GIVEN = {
    "--tensor-model-parallel-size 3": "copies of 3 devices, which do not divide 8",
    "--micro-batch-size 3 --global-batch-size 32": "32 sequences a step, no multiple of 8",
    "--pipeline-model-parallel-size 8": "12 layers do not divide over 8 stages",
    "--pipeline-model-parallel-layout Et*4|t*7L --micro-batch-size 1": "2 stages with 11",
    "--pipeline-model-parallel-layout X|t": "has E, t, m, L and | in it",
    "--recompute-granularity some": "is selective or full",
    "--pipeline-model-parallel-size 4 --decoder-first-pipeline-num-layers 15": "4 stages with 12",
}
WRONG = [
    (("axolotl", "--a 1"), {}, "configurations of megatron, torchtitan, deepspeed"),
    (("torchtitan", "[model"), {}, "the TOML cannot be read"),
    (("torchtitan", "[a]\nb = 1"), {}, "has tables such as [model]"),
    (("deepspeed", "{"), {}, "the JSON cannot be read"),
    (("deepspeed", Path("nowhere.json")), {}, "is no file"),
    *((("megatron", flags), {}, words) for flags, words in MEGATRON.items()),
    *((("megatron", f), {"model": "gpt2", "devices": 8}, words) for f, words in GIVEN.items()),
]


@pytest.mark.parametrize(("asked", "given", "words"), WRONG)
def test_what_cannot_be_read_says_why(asked, given, words):
    with pytest.raises(ConfigError, match=re.escape(words)):
        td.import_config(*asked, **given)


def test_there_is_no_other_framework_and_what_is_offloaded_is_said():
    with pytest.raises(ConfigError, match="is exported to megatron, torchtitan"):
        td.export_config("gpt2", td.Layout(), "axolotl")
    found = td.export_config("gpt2", td.Layout(dp=2), "megatron", recipe=td.offload())
    assert "states offloaded to cpu are not written" in found.lost["offload"]
