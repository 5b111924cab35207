"""Readers of what a user or a disk gives: for each whole inputs, and how one is read and used.

READERS["config.json"]() -> ([text, ...], read)      read(path, text)
"""

import contextlib
import gzip
import io
import json
import random
import shlex
from functools import partial
from pathlib import Path

import tiledask as td
from tiledask import cli, errors
from tiledask.errors import ConfigError
from tiledask.lab.tasks import idle_level, load_puzzle, puzzle_names
from tiledask.plan.data import data_file
from tiledask.plan.program.program import Program


def shipped(folder, *names):
    return [data_file(folder, f"{name}.json").read_text("utf-8") for name in names]


def shown(*values):
    for value in values:
        repr(value)
        getattr(value, "_repr_html_", str)()


def in_file(read, suffix=""):
    """``read`` of a file that has the input as its content."""

    def of(path, given):
        path = path.with_suffix(suffix)
        path.write_bytes(given.encode(errors="surrogatepass"))
        return read(path)

    return of


# -- models, clusters, puzzles ---------------------------------------------------------------------


def config():
    def read(path):
        model = td.load_model(path)
        shown(model, td.fits(model, td.Layout(dp=2), "2xA100-40GB", sequence=32))

    counted = Path(__file__).parents[1] / "oracles" / "transformers_counts.json.gz"
    known = json.loads(gzip.decompress(counted.read_bytes()))
    small = [json.dumps(known[name]["config"]) for name in ("llama", "gpt2", "mixtral")]
    return small + shipped("models", "gpt2", "llama-2-7b", "deepseek-v3", "gpt-200b"), in_file(read)


def cluster():
    link = {"name": "NVLink", "bytes_per_second": 300e9, "latency": 1e-5, "share": 0.8}
    named = {"devices": 16, "device": "A100-40GB", "devices_per_node": 8, "within_node": link}
    own = {"devices": 4, "device": json.loads(shipped("hardware", "t4")[0])}
    read = in_file(lambda path: shown(td.load_cluster(path)), ".json")
    return [json.dumps(named), json.dumps(own)], read


def puzzle():
    def read(path):
        shown(puzzle := load_puzzle(path))
        puzzle.result("6,6,6,6")

    return shipped("puzzles", *puzzle_names()), in_file(read)


def answers():
    tasks = [load_puzzle(name) for name in puzzle_names()] + [idle_level(n) for n in range(1, 13)]
    forms = ["6,6,6,6", "1-6 | 7-12 | 13-18 | 19-24", "0F0,0F1,0B0,0B1; 1F0,1B0,1F1,1B1", "42", "x"]
    forms += ["1f1b 4 8", "33.0 s, 27 %"]

    def read(path, given):
        for task in random.Random(given).sample(tasks, 6):
            shown(task.result(given))
        with contextlib.suppress(json.JSONDecodeError, RecursionError, ValueError):
            shown(random.Random(given).choice(tasks).result(json.loads(given)))

    return forms, read


def exported(framework):
    """A configuration of a framework, as we write it of a dense model and of a mixture."""
    dense = td.Layout(
        dp=2, tp=2, pp=2, microbatches=4, zero=3, interleave=2, partition=(0, 7, 16, 24, 32)
    )
    mixed = td.Layout(dp=4, ep=2, microbatches=2, zero=1, recompute="full")
    layouts = {"llama-3.1-8b": dense, "deepseek-v2-lite": mixed}

    def read(path, given):
        model = "gpt2" if framework == "deepspeed" else None  # the others say it
        shown(td.import_config(framework, given, model=model, devices=8))

    return [td.export_config(m, layout, framework).text for m, layout in layouts.items()], read


# -- traces, schedules, programs -------------------------------------------------------------------


def chrome():
    def spans(name, *times, ph="X", pid=0, **more):
        return [{"name": name, "ph": ph, "ts": at, "pid": pid, "tid": 0, **more} for at in times]

    rows = enumerate(("0F0", "0F1 1F0", "1F1", "1B0", "1B1 0B0", "0B1"))
    done = [
        each
        for at, names in rows
        for name in names.split()
        for each in spans(name, 10 * at, pid=int(name[0]), dur=8)
    ]
    named = spans("process_name", 0, ph="M", args={"name": "GPU 0"})
    begun = spans("F", 1, ph="B") + spans("F", 5, ph="E")
    marks = [each for n in range(2) for each in spans(f"ProfilerStep#{n}", 70 * n, dur=69)]
    seeds = [{"traceEvents": named + done}, done + begun, {"traceEvents": done, "unit": "ms"}]
    return [json.dumps(seed) for seed in (*seeds, done + marks)], in_file(trace, ".json")


def csv():
    rows = "0,0.0,1.0,F,0,0\n1,1.0,2.0,F,1,0\n1,2,4,B,1,0\n0,4,6,B,0,0\n"
    return [f"device,start,end,kind,stage,microbatch\n{rows}"], in_file(trace, ".csv")


def trace(path):
    with contextlib.suppress(ConfigError):  # some are no step
        shown(td.calibrate(path, "gpt2", td.Layout(), "1xH100"))
    shown(td.diagnose(path))


def schedule():
    def read(path, given):
        shown(schedule := td.Schedule.from_text(given))
        td.validate(schedule)
        shown(td.simulate(schedule))

    made = [td.schedule("1f1b", 3, 4), td.schedule("dualpipev", 4, 6)]
    placed = "@0,1; @1,0; 0F0,1F1,1B1,0B0; 0F1,1F0,1B0,0B1"
    return [*(each.to_text() for each in made), placed], read


def program():
    def read(path, given):
        shown(program := Program.from_text(given))
        program.check()
        shown(program.traffic, program.memory)

    made = [td.schedule("1f1b", 2, 2), td.schedule("zb-h1", 3, 3)]
    return [td.program(each, block_bytes=16).to_text() for each in made], read


# -- the command line ------------------------------------------------------------------------------

COMMANDS = (
    "fit gpt2 4xT4 --dp 2 --pp 2 --zero 1 --recompute full",
    "fit gpt-200b 160xA100-40GB --dp 4 --tp 8 --pp 5 --critique --partition 12,14,14,14,12",
    "plan gpt2 4xT4 8 --devices 2,4 --first 2",
    "partition 24 4",
    "partition 4,4,9,8 3 --speeds 1,1,2",
    "partition 4,4,4,1,3 4 --chunks 1 --judge 1-2|3|4|5 --solution",
    "partition 4 2 --judge 1-2|3-4",
    "puzzle 24-on-4 --answer 6,6,6,6",
    "puzzle idle-3 --seed 7 --answer 12",
    "puzzle 1 --hint",
    "idle 1f1b 4 8 --latency 0.25 --transfers blocking",
    "idle interleaved 4 8 --chunks 2 --forward 1 --backward 2",
    "idle --layers 1,1,2,4 1f1b 2 4",
    "idle --diagnose trace.csv",
    "ask 34 --no-run --set layers=12 devices=3",
    "ask 34 --set layers=1,1,2,4",
    "matmul 64 --kernel blas --tile x8",
)


def command():
    Path("trace.csv").write_text("device,start,end\n0,0,10\n1,10,20\n1,20,40\n0,40,60\n")
    cli._ERRORS = tuple(getattr(errors, name) for name in errors.__all__ if name != "short")

    def read(path, given):
        try:
            typed = shlex.split(given)
        except ValueError:
            typed = given.split()
        typed = [word.replace("\0", "") for word in typed]
        if typed[:1] in (["tour"], ["doctor"], ["notebooks"]) or "--run" in typed:
            return
        if typed[:1] == ["matmul"] and "x8" not in typed:
            typed += ["--workers", "0"]  # no workers here
        if typed[:1] == ["ask"] and typed[1:2] and typed[1].isdecimal():
            typed += ["--no-run"]
        wrong = io.StringIO()
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(wrong):
            try:
                code = cli.main(typed)
            except SystemExit as error:
                code = error.code
        words = wrong.getvalue()
        complaint = words.rpartition("error: ")[2] if code == 2 else ""
        if "Traceback" in words or code not in (0, 1, 2) or len(complaint) > 700:
            raise AssertionError(f"exit code {code}, {len(complaint)} characters: {words[-200:]}")

    return list(COMMANDS), read


FRAMEWORKS = {"megatron flags": "megatron", "torchtitan toml": "torchtitan"}
FRAMEWORKS |= {"deepspeed json": "deepspeed"}
READERS = {name: partial(exported, framework) for name, framework in FRAMEWORKS.items()} | {
    "config.json": config,
    "cluster.json": cluster,
    "puzzle": puzzle,
    "answer": answers,
    "chrome trace": chrome,
    "csv trace": csv,
    "schedule": schedule,
    "program": program,
    "command": command,
}
