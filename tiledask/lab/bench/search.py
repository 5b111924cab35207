"""`make bench-search`: td.search beside calculon's search, over the same space, on one core.

calculon lists its executions and runs some of them; td.search does all, whatever their number.
The layouts of both must be the same, but for those that Megatron-LM's interleaved schedule cannot
run (micro-batches that are no multiple of the stages), which calculon counts too.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median
from time import process_time
from typing import Any

from rich.console import Console
from rich.table import Table

import tiledask as td
from tiledask.lab.bench import search_peer
from tiledask.lab.bench.records import goals_table, record
from tiledask.plan.choosing.search import Plans, Space, search
from tiledask.plan.inputs.model import Model
from tiledask.plan.units import format_seconds

__all__ = ["CASES", "compare", "main", "space_of"]

CASES = (("gpt3-175B", 64, 192), ("gpt3-175B", 512, 1536), ("megatron-1T", 3072, 3072))
"""calculon's model, devices, sequences of a step."""
SYSTEM, DEVICE = "a100_80g", "A100-80GB"
GOAL_SPEED, GOAL_SECONDS = 100.0, 1.0


def model_of(path: Path) -> Model:
    """calculon's model file as a Model."""
    m = json.loads(path.read_text(encoding="utf-8"))
    return Model(
        name=path.stem,
        hidden=m["hidden"],
        layers=m["num_blocks"],
        heads=m["attn_heads"],
        ffn=m["feedforward"],
        vocab=51200,
        learned_pos=m["seq_size"],
    )


def space_of(model: Model, devices: int, batch: int) -> Space:
    """calculon's space."""
    layers = [k for k in range(1, model.layers + 1) if model.layers % k == 0]
    return Space(
        tp=[k for k in range(1, devices + 1) if devices % k == model.heads % k == 0],
        pp=layers,
        interleave=layers,
        zero=(0, 1),
        flash_attention=(False,),
        cp=(1,),
        microbatch=[k for k in range(1, batch + 1) if batch % k == 0],
        partition=(None,),
    )


def _key(plans: Plans) -> set[tuple]:
    names = ("dp", "tp", "pp", "microbatch", "interleave", "zero", "recompute", "sequence_parallel")
    frame = plans.to_frame(None)
    return set(zip(*(frame[name].tolist() for name in names), strict=True))


def compare(checkout: str, name: str, devices: int, batch: int, sample: int, rounds: int) -> dict:
    """One case: numbers of layouts and seconds of both."""
    model = model_of(Path(checkout) / "models" / f"{name}.json")
    cluster = td.load_cluster(f"{devices}x{DEVICE}")
    space = space_of(model, devices, batch)
    seconds = []
    for _ in range(rounds):
        begun = process_time()
        plans = search(model, cluster, batch, sequence=model.learned_pos, space=space)
        seconds.append(process_time() - begun)
    command = (sys.executable, "-I", search_peer.__file__, checkout, name, SYSTEM)
    done = subprocess.run(
        [*command, str(devices), str(batch), str(sample)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"calculon broke: {done.stderr.strip().splitlines()[-1:]}")
    said = json.loads(done.stdout)
    theirs = {tuple(row) for row in said["rows"]}
    ours = _key(plans)
    cannot = {r for r in theirs if r[4] > 1 and (batch // r[0] // r[3]) % r[2]}
    mine, each = median(seconds), said["seconds"] / said["ran"]
    return {
        "model": name,
        "devices": devices,
        "batch": batch,
        "layouts of calculon": len(theirs),
        "of these cannot run": len(cannot),
        "missing here": len(theirs - cannot - ours),
        "layouts": plans.considered,
        "seconds": mine,
        "all seconds": seconds,
        "calculon, a layout": each,
        "calculon ran": said["ran"],
        "calculon, all (scaled)": each * len(theirs),
        "speed": each * plans.considered / mine,
    }


def goals(rows: list[dict[str, Any]], big: dict[str, Any]) -> list[dict[str, Any]]:
    found = [
        {
            "work": f"{row['model']} on {row['devices']}",
            "goal": what,
            "reached": reached,
            "wanted": wanted,
            "met": met,
        }
        for row in rows
        for what, reached, wanted, met in (
            ("speed / calculon", row["speed"], GOAL_SPEED, row["speed"] >= GOAL_SPEED),
            ("layouts missing", float(row["missing here"]), 0.0, row["missing here"] == 0),
        )
    ]
    return [
        *found,
        {
            "work": f"{big['model']} on {big['devices']:,}",
            "goal": "seconds",
            "reached": big["seconds"],
            "wanted": GOAL_SECONDS,
            "met": big["seconds"] <= GOAL_SECONDS,
        },
    ]


def ten_thousand(rounds: int) -> dict[str, Any]:
    """The 405 B model on 10,000 devices."""
    model, cluster = td.load_model("llama-3.1-405b"), td.load_cluster("10000xH100")
    seconds = []
    for _ in range(rounds):
        begun = process_time()
        plans = search(model, cluster, 10_000, sequence=8192)
        seconds.append(process_time() - begun)
    return {
        "model": model.name,
        "devices": 10_000,
        "layouts": plans.considered,
        "seconds": median(seconds),
        "first": seconds[0],
        "best": repr(plans.best),
    }


def main() -> int:
    """Print the comparison; with --record, keep it as JSON too."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calculon", metavar="PATH", help="a checkout of calculon-ai/calculon")
    parser.add_argument("--sample", type=int, default=100, help="layouts that calculon runs")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--record", metavar="FILE.json", help="also write the numbers there")
    args = parser.parse_args()
    console, here = Console(), os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(here)})  # one core for both
    try:
        with console.status("405 B on 10,000 devices"):
            big = ten_thousand(args.rounds)
        rows = []
        for case in CASES if args.calculon else ():
            with console.status(f"{case[0]} on {case[1]}"):
                rows.append(compare(args.calculon, *case, args.sample, args.rounds))
    finally:
        os.sched_setaffinity(0, here)
    if not args.calculon:
        console.print("skipped: calculon; give a checkout of it with --calculon PATH")
    table = Table(title="searching all layouts on one core")
    for name in ("work", "layouts", "td.search", "calculon's", "calculon (from a sample)", "speed"):
        table.add_column(name, justify="left" if name == "work" else "right")
    table.add_row(
        f"{big['model']} on {big['devices']:,}",
        f"{big['layouts']:,}",
        format_seconds(big["seconds"]),
        "",
        "",
        "",
    )
    for row in rows:
        table.add_row(
            f"{row['model']} on {row['devices']:,}",
            f"{row['layouts']:,}",
            format_seconds(row["seconds"]),
            f"{row['layouts of calculon']:,}",
            f"{row['calculon, all (scaled)']:,.0f} s",
            f"{row['speed']:,.0f} x",
        )
    console.print(table)
    reached = goals(rows, big)
    console.print(goals_table(reached))
    if args.record:
        facts = {"goals": reached, "ten thousand": big, "rows": rows}
        record(Path(args.record), "tiledask.lab.bench.search", facts)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
