"""verl's commands: the update of the actor, in the words of what it is trained by.

    python3 -m verl.trainer.main_ppo \\
        actor_rollout_ref.actor.megatron.tensor_model_parallel_size=2 \\
        actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4

    -->  --tensor-model-parallel-size 2 --micro-batch-size 4

Of an actor in FSDP they become settings of Hugging Face's trainer. Read alone, as those are.
"""

import re
from typing import Any

from tiledask.errors import ConfigError
from tiledask.plan.data import shipped_json
from tiledask.plan.frameworks import megatron, trainer
from tiledask.plan.frameworks.shell import flags_of, launched
from tiledask.plan.frameworks.table import Imported, Read, Settings
from tiledask.plan.inputs.load import load_model
from tiledask.plan.inputs.model import Model

__all__ = ["COMMAND", "TABLE", "read"]

TABLE = shipped_json("frameworks", "verl.json")
COMMAND = re.compile(r"\bverl\.trainer\b|\bactor_rollout_ref\.\w")
"""What only verl's commands have."""
_LEARNER = re.compile(r"--config-name=\S*megatron|.*(strategy|engine)=megatron|.*actor\.megatron\.")
_PASSED_ON = re.compile(
    r"(?:engine\.(?:override_(?:transformer|ddp)_config\.)?"
    r"|actor\.optim\.override_optimizer_config\.)(\w+)"
)


def read(text: str, model: Model | None, devices: int | None) -> Imported:
    """The model, layout and recipe of the actor's update, or of verl's supervised training."""
    words, notes = launched(text)
    _, flags, _ = flags_of(words, ("nproc_per_node", "nnodes"))
    given = (re.fullmatch(r"\+{0,2}([a-z_]\w*(?:\.\w+)*)=(.*)", word, re.DOTALL) for word in words)
    settings: Settings = {each[1]: each[2] for each in given if each and each[2] != "null"}
    settings |= {word: "" for word in words if word.startswith("verl.trainer.")}
    started = {"nproc_per_node": "trainer.n_gpus_per_node", "nnodes": "trainer.nnodes"}
    settings |= {ours: flags[name] for name, ours in started.items() if name in flags}
    learns = any(name.startswith("actor_rollout_ref.") for name in settings)
    renamed = TABLE["renamed"] + ([] if learns else TABLE["supervised"])
    found = Read("verl's command", settings, devices, TABLE | {"renamed": renamed})
    f = found.facts("update", learns=learns)
    if devices is None and "$" not in f["each"] + f["nodes"]:
        found.devices = found.whole("trainer.n_gpus_per_node", 8) * found.whole("trainer.nnodes", 1)
    if model is None:
        if not f["path"] or "$" in f["path"]:
            raise ConfigError("verl's command does not say its model; name it beside the command")
        model = load_model(f["path"])
    of_megatron = any(map(_LEARNER.match, words))
    f["cp"] = f["cp"] if of_megatron else f["ulysses"]
    copies = found.copies(f["tp"] * f["pp"] * f["cp"] if of_megatron else f["cp"], "give devices=")
    _fill(f, copies, notes)
    theirs, harmless = dict[str, Any](), "|".join(TABLE["harmless"])
    for name, value in found.settings.items():
        passed = of_megatron and not re.fullmatch(harmless, name) and _PASSED_ON.fullmatch(name)
        if passed:
            theirs[passed[1]] = value
            found.used.add(name)
    notes += [*found.unread(), *found.assumed]
    if not of_megatron:
        theirs = {
            "fsdp": "full_shard", "fsdp_config.offload_params": f["offloads"], "bf16": True,
            "fsdp_config.sharding_strategy": "SHARD_GRAD_OP" if f["reshards"] == "False" else "",
            "pure_bf16": f["dtype"] != "fp32",
            "gradient_checkpointing": f["checkpoints"] != "False",
            "context_parallel_size": f["cp"], "cutoff_len": f["sequence"],
            "per_device_train_batch_size": f["micro"], "gradient_accumulation_steps": f["steps"],
            "use_peft": f["rank"] > 0, "lora_rank": f["rank"] or 8, "lora_targets": f["targets"],
        }  # fmt: skip
        return trainer.trained(theirs, notes, "verl", model, found.devices)
    theirs = TABLE["megatron"] | theirs | {
        "micro_batch_size": f["micro"], "global_batch_size": f["sequences"],
        "seq_length": f["sequence"],
    }  # fmt: skip
    return megatron.trained(theirs, notes, [], model, found.devices)


def _fill(f: Settings, copies: int, notes: list[str]) -> None:
    """Sequences of a step, their length, and how many are in a micro-batch."""
    f["sequence"], f["sequences"] = f["whole"] or f["prompt"] + f["answer"], f["prompts"] * f["n"]
    if f["dynamic"]:
        packed = f["packed"] * f["cp"]
        steps = -(-f["sequences"] * f["sequence"] // (copies * packed))
        f |= {"sequence": packed, "sequences": copies * steps, "micro": 1}
        notes.append(f"micro-batches of {packed:,} tokens, each as one sequence")
    else:
        most = max(1, f["sequences"] // copies)
        f["micro"] = min(most, f["micro"] or max(1, f["micro_of_all"] // copies))
        notes.append(
            f"every sequence as long as it may be, shorter ones need less: {f['sequence']:,} tokens"
        )
    f["steps"] = max(1, f["sequences"] // (copies * f["micro"]))
