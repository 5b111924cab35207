"""The table of frameworks: what writes a layout for each, and what reads one."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path

from tiledask.errors import ConfigError, short
from tiledask.plan.frameworks import deepspeed, megatron, torchtitan, trainer, verl
from tiledask.plan.frameworks.table import Imported, written
from tiledask.plan.inputs.layout import Layout
from tiledask.plan.inputs.load import load_model
from tiledask.plan.inputs.model import Model
from tiledask.plan.inputs.recipes import Recipe, load_recipe
from tiledask.plan.inputs.run import check_run, check_trains

__all__ = ["FRAMEWORKS", "Exported", "export_config", "import_config"]

WRITTEN = {"megatron": megatron, "torchtitan": torchtitan, "deepspeed": deepspeed}
FRAMEWORKS = WRITTEN | {"trainer": trainer}
"""Of each the TABLE of settings, and ``read`` of a text; of those that are written, ``text`` of
settings, and ``facts`` for some."""
MOST_BYTES = 1_000_000
MOST_SOURCED = 3  # of scripts that take in scripts that take in scripts
SOURCED = (
    r"(?m)^([ \t]*(?:source|\.|bash|sbatch)[ \t][^\n#]*?([\w./-]+\.(?:sh|bash|env))\"?[ \t]*)$"
)
YAML = r"(?m)\A(?!.*--\w)(?:\s*#.*\n|\s*\n)*[A-Za-z_]\w*:(?:\s|$)"


@dataclass(frozen=True)
class Exported:
    """A framework's configuration of a layout; ``str()`` of it is its text."""

    framework: str
    text: str
    lost: Mapping[str, str]  # field -> a sentence, for want of a counterpart
    notes: tuple[str, ...]  # a sentence for each thing that differs

    def __str__(self) -> str:
        return self.text


def export_config(
    model: Model | str,
    layout: Layout,
    framework: str,
    *,
    recipe: str | Recipe = "mixed-adam-16",
    sequence: int | None = None,
) -> Exported:
    """The layout as ``framework`` takes it: "megatron" (flags), "torchtitan" (TOML, of 0.2)
    or "deepspeed" (JSON).

    What has no counterpart stands in ``notes``, and so does what the framework does otherwise.
    Data, learning rate and the number of steps are yours to add.

    >>> print(export_config("gpt2", Layout(dp=4, zero=1), "deepspeed").notes)
    ()
    """
    if framework not in WRITTEN:
        raise ConfigError(f"a layout is exported to {', '.join(WRITTEN)}; got {short(framework)}")
    model, recipe = load_model(model), load_recipe(recipe)
    check_trains(recipe)
    sequence, made = check_run(model, layout, sequence), WRITTEN[framework]
    facts = {each.name: getattr(run, each.name) for run in (model, layout) for each in fields(run)}
    facts |= {"sequence": sequence, "batch": layout.sequences, "recipe": recipe.name}
    facts["places"] = " and ".join(recipe.places)
    facts["other_layers"] = bool(model.kinds or model.unchecked or model.more)
    facts["head_copies"] = 0 if model.kv_lora_rank else layout.tp // model.kv_heads
    if hasattr(made, "facts"):
        facts |= made.facts(model, layout, sequence)
    parts, lost, said = written(made.TABLE, facts)
    return Exported(framework, made.text(parts), lost, (*lost.values(), *said))


def import_config(
    framework: str,
    config: str | os.PathLike[str],
    *,
    model: Model | str | None = None,
    devices: int | None = None,
) -> Imported:
    """What a configuration trains: Megatron-LM's flags, or the script that launches them with those
    that it takes in from beside it; a torchtitan TOML, a DeepSpeed JSON; "trainer": the YAML of
    LLaMA-Factory or axolotl, a command of Hugging Face's trainer or of verl. As text, or as a path.

    ``model``: where the configuration does not say it; ``devices``: on how many it runs, where it
    says only a part of the layout. What it leaves open is assumed, and said in ``assumed``.

    >>> flags = "--tensor-model-parallel-size 2 --micro-batch-size 1 --global-batch-size 16"
    >>> import_config("megatron", flags, model="gpt2", devices=8).layout
    Layout(dp=4, tp=2, microbatches=4, flash_attention=True)
    """
    if framework not in FRAMEWORKS:
        known = ", ".join(FRAMEWORKS)
        raise ConfigError(f"configurations of {known} are read; got {short(framework)}")
    text = os.fspath(config)
    named = re.fullmatch(r"\S+\.(sh|json|toml|ya?ml)", text) or os.path.isfile(text)
    if isinstance(config, os.PathLike) or ("\n" not in text and named):
        path = Path(text)
        if not path.is_file() or path.stat().st_size > MOST_BYTES:
            raise ConfigError(
                f"{short(text)} is no file of up to {MOST_BYTES:,} bytes; give the path of a "
                f"configuration, or its text"
            )
        text = path.read_text("utf-8", errors="replace")
        for _ in range(MOST_SOURCED):
            for line, name in re.findall(SOURCED, text):
                beside = path.parent / name.lstrip("/")
                if beside.is_file() and beside.stat().st_size <= MOST_BYTES:
                    text = text.replace(line, beside.read_text("utf-8", errors="replace") + "\n")
    if framework != "trainer" and re.search(YAML, text):
        raise ConfigError(deepspeed.TABLE["yaml"])
    given = None if model is None else load_model(model)
    reader = verl if verl.COMMAND.search(text) else FRAMEWORKS[framework]
    found: Imported = reader.read(text, given, devices)
    check_run(found.model, found.layout, found.sequence)
    return found
