"""Options as lines of a text, and what `fit` and `plan` share: the request, what it costs."""

import argparse
import re
import shlex
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any

import tiledask as td
from tiledask.errors import ConfigError, short
from tiledask.plan.inputs.sized import ASSUMED
from tiledask.plan.timing.budget import Budget
from tiledask.plan.timing.calibration import calibration_of
from tiledask.plan.units import parse_bytes
from tiledask.plan.whole import whole_number, whole_rule

__all__ = [
    "CLUSTER",
    "COSTS",
    "EXPORTS",
    "MODEL",
    "SETTLED",
    "TRAINED",
    "Request",
    "Run",
    "add_options",
    "check_cost",
    "command",
    "recipe_of",
    "request_of",
    "tensor_bytes",
    "usual_batch",
]

Run = Generator[Any, None, tuple[int, Any]]
"""A command: it yields what is printed, a table, words, or (what is bold, the words behind it), and
returns the exit code and what --json prints."""


def whole(text: str) -> int:
    """A whole number, as argparse reads one."""
    if not re.fullmatch(r"[+-]?[0-9]{1,30}", text):
        raise argparse.ArgumentTypeError(f"must be {whole_rule()}, got {short(text)}")
    return int(text)


WHOLE = ("N", "TOKENS", "R", "V", "SEED", "DEVICES", "MICROBATCHES", "BATCH")
KINDS: dict[str, Any] = dict.fromkeys(WHOLE, whole) | {"AMOUNT": float, "K": float}
KINDS["NUMBERS"] = lambda text: [whole(each.strip()) for each in text.split(",")]
"""What is read as a number, by the name of its value."""


def add_options(parser: argparse.ArgumentParser, text: str) -> None:
    """Add the options of a command: a line each, its name and its words two spaces apart.

    NAME  NAME?  NAME*  NAME+     one, perhaps one, any number, one or more
    --flag                        on or off
    --name N  --name N=8          a number (KINDS), and what it is unless typed
    --name a|b|c  --name WORD+    one of these; one or more
    --name REST...                all that follows
    # title -- words               begins a part of the help; "examples:" ends it
    """
    options, examples, rest = text.strip().partition("\nexamples:")
    parser.epilog = (examples + rest).strip()
    into: Any = parser
    for block in filter(None, re.split(r"\n(?=\S)", options.strip())):
        names, _, words = block.partition("  ")
        if names.startswith("# "):
            title, _, words = " ".join(block[2:].split()).partition(" -- ")
            into = parser.add_argument_group(title, words or None)
            continue
        flags = [name for name in names.split() if name.startswith("--")]
        settings: dict[str, Any] = {"help": " ".join(words.split())}
        if value := "".join(name for name in names.split() if name not in flags):
            found = re.fullmatch(r"(.*?)(\.\.\.|[?*+]?)(?:=([^A-Z]\S*))?", value)
            name, many, default = found.groups() if found else (value, "", None)
            settings |= {"nargs": many or None, "default": default, "metavar": name}
            settings["type"] = kind = whole if name[0].isdigit() else KINDS.get(name, str)
            if "|" in name:
                settings |= {"metavar": None, "choices": [kind(each) for each in name.split("|")]}
            if many == "+" and flags:
                settings |= {"action": "extend", "default": []}
        else:
            settings["action"] = "store_true"
        first = flags[0][2:].replace("-", "_") if flags else name.lower()
        if flags and any(action.dest == first for action in parser._actions):
            settings["dest"] = f"{first}_option"  # a place has the name
        into.add_argument(*(flags or [first]), **settings)


EXPORTS = ("megatron", "torchtitan", "deepspeed")
"""What td.export_config writes, without loading it."""
MODEL = "gpt-200b, or another of `tiledask list models`; 70B; a config.json; a name on the hub"
CLUSTER = "80xA100-40GB, a card of `tiledask list hardware`; 80x40GB, by its memory; a JSON file"
SETTLED = 40
"""Layouts that are put in order by simulation before the first ones are shown."""
MOST_TOKENS = 4_000_000
"""Of a step whose batch nobody gave, where that is a sequence a device or more."""
TRAINED = """\
# how it is trained
--sequence TOKENS    length of a sequence (2048, or less where the model has fewer positions)
--recipe NAME        bytes of a parameter: a name of `tiledask list recipes`, or a JSON file
                     (mixed-adam-16, or the framework's)
--lora-rank R        train adapters of rank R alone; with --recipe qlora over weights of 4 bits
--framework NAME     whose kernels and overlaps, such as megatron-2025
--calibration FILE   of td.calibrate, in its place"""
COSTS = f"""\
# what comes out
--explain            what is assumed, and why
--tokens COUNT       days and device-hours for so many, such as 15T
--price AMOUNT       with --tokens: of a device for an hour
--export {"|".join(EXPORTS)}  the layout, the first of several, for {", ".join(EXPORTS)}"""


@dataclass
class Request:
    """What was typed or imported."""

    args: argparse.Namespace
    model: Any
    cluster: Any
    recipe: Any
    sequence: int
    layout: Any = None
    """None: whichever is best."""
    notes: list[str] = field(default_factory=list)
    """What nobody said and is assumed, for one line."""
    imported: Any = None
    way_out: str = ""
    """What a step of one micro-batch a copy stands for, where nobody gave a batch."""

    @property
    def by(self) -> dict[str, Any]:
        """Whose measurements the estimates take."""
        return {"calibration": self.args.calibration, "framework": self.args.framework}

    @property
    def run(self) -> tuple[Any, ...]:
        """The arguments of td.fits and its like."""
        return self.model, self.layout, self.cluster, self.recipe, self.sequence

    @property
    def assumed(self) -> list[str]:
        """A line of what is assumed; none where everything was said."""
        return [f"assumed: {'; '.join(self.notes)}"] if self.notes else []

    def batch(self) -> int:
        """Sequences of a step; those that nobody said are among what is assumed."""
        if self.args.batch is not None:
            return int(self.args.batch)
        batch = usual_batch(self.cluster.devices, self.sequence)
        self.notes.append(f"a step of {batch:,} sequences of {self.sequence:,} tokens")
        return batch


def request_of(args: argparse.Namespace) -> Request:
    """The model, the cluster and how it is trained, as typed, and what is assumed of them."""
    model, cluster = td.load_model(args.model), td.load_cluster(args.cluster)
    recipe = recipe_of(args, cluster.device)
    sequence = model.usual_sequence if args.sequence is None else int(args.sequence)
    asked = Request(args, model, cluster, recipe, sequence)
    known = calibration_of(cluster.device, recipe, **asked.by)
    sized = f"{model.layers} layers of width {model.hidden:,}, {model.parameters:,} parameters"
    asked.notes += [sized] * model.source.startswith(ASSUMED)
    asked.notes += [cluster.assumed] * bool(cluster.assumed)
    asked.notes += [f"run by {known.framework} ({known.why})"] * known.usual
    return asked


def tensor_bytes(text: str | None) -> int:
    """The bytes of one weight that stand where a model does, such as 26GB; 0 if that is none."""
    sized = re.fullmatch(r"\s*[0-9.]+\s*[kmgtp]i?b\s*", text or "", re.IGNORECASE)
    return parse_bytes(sized[0]) if sized else 0


def recipe_of(args: argparse.Namespace, device: Any) -> Any:
    """The Recipe that is named, of --lora-rank, or the framework's own."""
    name = args.recipe
    if args.lora_rank is not None:
        base = td.load_recipe(name or "lora")
        if base.adapters is None:
            raise ConfigError(
                f"--lora-rank trains adapters alone, and --recipe {base.name} all weights; leave "
                f"--recipe out, or name lora or qlora"
            )
        return td.lora(args.lora_rank, base.adapters.matrices, base)
    if name is None and (args.framework or args.calibration):
        by = {"calibration": args.calibration, "framework": args.framework}
        name = calibration_of(device, td.load_recipe("mixed-adam-16"), **by).trains
    return td.load_recipe(name or "mixed-adam-16")


def command(asked: Request, cluster: str, layout: Any = None, **changed: Any) -> str:
    """`tiledask fit` with this layout, or the same question with other arguments, to be copied."""
    given = vars(asked.args) | changed
    words = [given["model"], cluster, "--sequence", f"{asked.sequence}"]
    if layout is not None and given["lora_rank"] is None:
        given["recipe"] = given["recipe"] or asked.recipe.name
    for name in ("recipe", "lora_rank", "offload", "framework", "calibration"):
        if given.get(name) is not None:
            words += [f"--{name.replace('_', '-')}", f"{given[name]}"]
    if layout is None and given["batch"] is not None and not given["offload"]:
        words += ["--batch", f"{given['batch']}"]
    return shlex.join(["tiledask", "fit", *words, *(layout.options if layout else ())])


def usual_batch(devices: int, sequence: int) -> int:
    """Sequences of a step that nobody said: 8 a device, or fewer where that is more than 4 million
    tokens, and 1 a device at least."""
    return devices * max(1, min(8, MOST_TOKENS // (sequence * devices)))


def check_cost(args: argparse.Namespace) -> None:
    """Refuse tokens, a price, or counts that are none, before the work begins."""
    for name in ("sequence", "batch", "lora_rank"):
        if (value := vars(args).get(name)) is not None:
            typed = "BATCH" if (args.command, name) == ("plan", "batch") else f"--{name}"
            whole_number(typed.replace("_", "-"), value, 1)
    if args.tokens is not None:
        Budget(args.tokens, 1.0, 1, args.price)
