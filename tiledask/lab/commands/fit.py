"""`tiledask fit`: does a layout fit, how fast is it, what does it move; or whichever is best."""

import argparse
import shlex
from dataclasses import fields, replace
from math import gcd
from pathlib import Path
from typing import Any

import tiledask as td
from tiledask.errors import ConfigError
from tiledask.lab.commands.best import best, one_layout
from tiledask.lab.commands.options import Run
from tiledask.lab.commands.request import (
    CLUSTER,
    COSTS,
    EXPORTS,
    MODEL,
    TRAINED,
    Request,
    check_cost,
    recipe_of,
    request_of,
)
from tiledask.plan.timing.calibration import calibration_of

__all__ = ["FIT_OPTIONS", "run_fit"]

FIT_OPTIONS = f"""
MODEL?               {MODEL}
CLUSTER              {CLUSTER}
# the layout (without one: the best layouts of the cluster)
--dp N               data-parallel copies (what the other three leave of the cluster)
--tp N               tensor-parallel slices of each layer (1)
--pp N               pipeline stages (1)
--cp N               context-parallel pieces of each sequence (1)
--ep N               devices that experts are dealt out to (1)
--expert-tp N        slices of each expert (those of --tp)
--microbatch N       sequences in a micro-batch (1)
--microbatches N     of one copy in a step (1, or what --batch asks for)
--interleave N       chunks of layers on a stage (1)
--zero 0|1|2|3       what copies share out: 1 optimizer states, 2 gradients too, 3 weights too (0)
--recompute WHICH    activations computed again: none, selective or full (none)
--schedule NAME      1f1b, or another of `tiledask list schedules` (1f1b)
--partition LAYERS   layers of each stage, such as 5,6,6,5; items: embedding and head are one each
                     (even)
--sequence-parallel  with --tp: what it leaves whole is cut along the sequence
--flash-attention    no s x s scores are kept
{TRAINED}
--batch N            sequences of a step, over all devices (of the best layouts 8 a device, at most
                     4M tokens; of one layout a micro-batch a copy)
--offload cpu|nvme   optimizer states in the host's memory, or on its disks
--cached TOKENS=0    to serve, with a recipe of weights alone: tokens whose keys and values a copy
                     keeps
# read from another program (options above go before)
--megatron FLAGS     model, layout and recipe from Megatron-LM's flags, or their file
--torchtitan FILE    from a torchtitan TOML
--deepspeed FILE     layout and recipe from a DeepSpeed JSON
{COSTS}
--critique           what is wrong, what is better
--figure FILE        memory of each stage, as a picture
examples:
  tiledask fit 200B 80x40GB  # the best layouts of 80 cards
  tiledask fit llama-3.1-8b 8xH100 --zero 1  # one layout: dp 8, ZeRO-1
  tiledask fit 70B 64xH100 --tp 8 --pp 4 --batch 512
  tiledask fit 8B 1x24GB --lora-rank 16  # adapters alone

verdicts:
  fits   with all of the overhead, and as far off as half of the published runs
  tight  what is counted fits, but not with all of that
  no     it does not fit, or the cluster has too few devices
"""


def run_fit(args: argparse.Namespace) -> Run:
    """The answer by what was named: a model, a model in a layout."""
    check_cost(args)
    given = vars(args)
    typed = {
        field.name: given[field.name]
        for field in fields(td.Layout)
        if given[field.name] is not None and given[field.name] is not False
    }
    configs = [name for name in EXPORTS if given[name]]
    if len(configs) > 1:
        raise ConfigError(f"one configuration at a time; got --{' and --'.join(configs)}")
    if not configs and args.model is None:
        raise ConfigError("a model and a cluster are named, such as: fit 200B 80x40GB")
    request = _imported(args, configs[0], typed) if configs else request_of(args)
    if typed and not configs:
        request.model.check_tp(typed.get("tp", 1), request.cluster.devices)
        request.layout = _filled(request, typed)
    if args.offload:
        request.recipe = td.offload(request.recipe, to=args.offload)
    if request.layout is not None:
        return (yield from one_layout(request))
    return (yield from best(request))


def _filled(request: Request, typed: dict[str, Any]) -> Any:
    """The layout that was typed, with copies that fill the cluster and the batch's micro-batches,
    where nobody said how many."""
    if "dp" not in typed:
        tp, pp, cp = (typed.get(axis, 1) for axis in ("tp", "pp", "cp"))
        split = typed.get("ep", 1) * (typed.get("expert_tp") or tp)
        step = split // gcd(split, tp * cp) if min(split, tp * cp) > 0 else 1
        fills = request.cluster.devices // max(1, tp * pp * cp)
        typed = typed | {"dp": max(step, fills // step * step, 1)}
        request.notes += [f"dp {typed['dp']} fills the cluster"] * (typed["dp"] > 1)
    each = _microbatches(request.args, typed["dp"], typed.get("microbatch", 1))
    return td.Layout(**typed, **each)


def _microbatches(args: argparse.Namespace, dp: int, microbatch: int) -> dict[str, Any]:
    """The micro-batches of a copy that --batch asks for; nothing without it."""
    if args.batch is None:
        return {}
    if args.microbatches is not None:
        raise ConfigError("--batch says how many micro-batches a copy has; no --microbatches")
    each = max(1, dp * microbatch)
    if args.batch % each:
        near = max(1, round(args.batch / each)) * each
        raise ConfigError(
            f"--batch {args.batch} is no multiple of the {each} sequences that dp {dp} x "
            f"microbatch {microbatch} take at once; {near} is"
        )
    return {"microbatches": args.batch // each}


def _imported(args: argparse.Namespace, name: str, typed: dict[str, Any]) -> Request:
    """What another program's configuration says; what is typed besides goes before."""
    cluster, given = td.load_cluster(args.cluster), vars(args)[name]
    given = given if name == "megatron" else Path(given)
    found = td.import_config(name, given, model=args.model, devices=cluster.devices)
    layout = replace(found.layout, **typed)
    layout = replace(layout, **_microbatches(args, layout.dp, layout.microbatch))
    chosen = args.recipe is not None or args.lora_rank is not None
    recipe = recipe_of(args, cluster.device) if chosen else td.load_recipe(found.recipe)
    notes = [f"{found.model!r}, {shlex.join(layout.options)}, read from {name}"]
    sequence = found.sequence if args.sequence is None else args.sequence
    request = Request(args, found.model, cluster, recipe, sequence, layout, notes, found)
    known = calibration_of(cluster.device, recipe, **request.by)
    request.notes += [f"run by {known.framework}", *found.uncounted]
    return request
