"""Readers of what a user or a disk gives: for each whole inputs, and how one is read and used.

READERS["config.json"]() -> ([text, ...], read)      read(path, text)
"""

import contextlib
import io
import json
import random
import shlex
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import tiledask as td
from tiledask.errors import ConfigError
from tiledask.plan.data import data_file

Read = Callable[[Path, Any], object]


def _shipped(folder: str, *names: str) -> list[str]:
    return [data_file(folder, f"{name}.json").read_text("utf-8") for name in names]


def _in_file(read: Callable[[Path], object], suffix: str = "") -> Read:
    """``read`` of a file that has the input as its content."""

    def of(path: Path, given: str | bytes) -> object:
        path = path.with_suffix(suffix)
        data = given.encode("utf-8", "surrogatepass") if isinstance(given, str) else given
        path.write_bytes(data)
        return read(path)

    return of


def _in_one_of(files: list[Path], read: Callable[[], object]) -> tuple[list[bytes], Read]:
    """A seed for each of ``files``, its number and its bytes; ``read`` of them with one changed."""
    held = [file.read_bytes() for file in files]

    def of(path: Path, given: bytes) -> object:
        which, _, data = given.partition(b"\n")
        changed = int(which) % len(files) if which.isdigit() and len(which) < 9 else 0
        for n, (file, whole) in enumerate(zip(files, held, strict=True)):
            file.write_bytes(data if n == changed else whole)
        return read()

    return [b"%d\n" % n + data for n, data in enumerate(held)], of


def _shown(*values: Any) -> None:
    for value in values:
        repr(value)
        getattr(value, "_repr_html_", str)()


def _config():
    def read(path: Path) -> None:
        model = td.load_model(path)
        _shown(model, td.fits(model, td.Layout(dp=2), "2xA100-40GB", sequence=128))

    configs = [
        {
            "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64,
            "intermediate_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4,
            "num_key_value_heads": 2, "vocab_size": 100, "tie_word_embeddings": False,
            "max_position_embeddings": 128, "attention_bias": False, "mlp_bias": False,
        },
        {
            "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_embd": 64, "n_layer": 2,
            "n_head": 4, "n_positions": 128, "vocab_size": 100, "n_ctx": 128,
        },
        {
            "model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "hidden_size": 64,
            "intermediate_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4,
            "num_key_value_heads": 2, "vocab_size": 100, "num_local_experts": 4,
            "num_experts_per_tok": 2, "tie_word_embeddings": False,
        },
    ]  # fmt: skip
    own = _shipped("models", "gpt2", "llama-2-7b", "deepseek-v3", "gpt-200b")
    return [*map(json.dumps, configs), *own], _in_file(read)


def _cluster():
    link = {"name": "NVLink", "bytes_per_second": 300e9, "latency": 1e-5, "share": 0.8}
    named = {"devices": 16, "device": "A100-40GB", "devices_per_node": 8, "within_node": link}
    own = {"devices": 4, "device": json.loads(_shipped("hardware", "t4")[0])}
    read = _in_file(lambda path: _shown(td.load_cluster(path)), ".json")
    return [json.dumps(named), json.dumps(own)], read


def _puzzle():
    from tiledask.lab.tasks import load_puzzle, puzzle_names

    def read(path: Path) -> None:
        puzzle = load_puzzle(path)
        _shown(puzzle)
        puzzle.result("6,6,6,6")

    return _shipped("puzzles", *puzzle_names()), _in_file(read)


def _answers():
    from tiledask.lab.tasks import idle_level, load_puzzle, puzzle_names

    tasks = [load_puzzle(name) for name in puzzle_names()] + [idle_level(n) for n in range(1, 13)]
    forms = ["6,6,6,6", "1-6 | 7-12 | 13-18 | 19-24", "0F0,0F1,0B0,0B1; 1F0,1B0,1F1,1B1", "42", "x"]
    forms += ['{"partition": [6, 6, 6, 6], "schedule": "1f1b"}', "1f1b 4 8", "33.0 s, 27 %"]

    def read(path: Path, given: str) -> None:
        for task in random.Random(given).sample(tasks, 6):
            _shown(task.result(given))
        with contextlib.suppress(json.JSONDecodeError, RecursionError, ValueError):
            _shown(random.Random(given).choice(tasks).result(json.loads(given)))

    return forms, read


def _chrome():
    spans = [
        {"name": name, "ph": "X", "ts": 10 * at, "dur": 8, "pid": int(name[0]), "tid": 0}
        for at, names in enumerate(("0F0", "0F1 1F0", "1F1", "1B0", "1B1 0B0", "0B1"))
        for name in names.split()
    ]
    named = [
        {"name": "process_name", "ph": "M", "pid": n, "tid": 0, "args": {"name": f"GPU {n}"}}
        for n in range(2)
    ]
    begun = [
        {"name": "F", "ph": ph, "ts": ts, "pid": 0, "tid": 0} for ph, ts in (("B", 1), ("E", 5))
    ]
    marks = [
        {"name": f"ProfilerStep#{n}", "ph": "X", "ts": n * 70, "dur": 69, "pid": 0, "tid": 0}
        for n in range(2)
    ]
    seeds = [
        {"traceEvents": named + spans},
        spans + begun,
        {"traceEvents": spans, "unit": "ms"},
        spans + marks,
    ]
    return [json.dumps(seed) for seed in seeds], _trace(".json")


def _csv():
    return [
        "device,start,end,kind,stage,microbatch\n0,0.0,1.0,F,0,0\n1,1.0,2.0,F,1,0\n1,2,4,B,1,0\n0,4,6,B,0,0\n",
    ], _trace(".csv")


def _trace(suffix: str) -> Read:
    def read(path: Path) -> None:
        with contextlib.suppress(ConfigError):  # some are no step
            _shown(td.calibrate(path, "gpt2", td.Layout(), "1xH100"))
        _shown(td.diagnose(path))

    return _in_file(read, suffix)


def _schedule():
    seeds = [
        td.schedule("1f1b", 3, 4).to_text(),
        td.schedule("dualpipev", 4, 6).to_text(),
        "@0,1; @1,0; 0F0,1F1,1B1,0B0; 0F1,1F0,1B0,0B1",
    ]

    def read(path: Path, given: str) -> None:
        schedule = td.Schedule.from_text(given)
        _shown(schedule)
        td.validate(schedule)
        _shown(td.simulate(schedule))

    return seeds, read


def _program():
    from tiledask.plan.program.program import Program

    seeds = [
        td.program(td.schedule("1f1b", 2, 2), block_bytes=16).to_text(),
        td.program(td.schedule("zb-h1", 3, 3), block_bytes=16).to_text(),
    ]

    def read(path: Path, given: str) -> None:
        program = Program.from_text(given)
        _shown(program)
        program.check()
        _shown(program.traffic, program.memory)

    return seeds, read


def _sizes():
    from tiledask.plan.units import parse_bytes

    return ["40GB", "1.5 GiB", "200 MB", "17", "1e9"], lambda path, given: parse_bytes(given)


def _text():
    seeds = ["Once upon a time there was a worker.\n" * 40, "é𝟙 and tabs\t" * 200]
    return seeds, _in_file(lambda path: _shown(td.load_text(path)), ".txt")


def _images():
    file = io.BytesIO()
    with np.load(data_file("images", "digits.npz"), allow_pickle=False) as held:
        keys = {name: held[name][:20] for name in held.files}
    np.savez(file, **keys)
    return [file.getvalue()], _in_file(lambda path: _shown(td.load_images(path)), ".npz")


def _npy():
    files = []
    for array in (np.arange(48.0).reshape(6, 8), np.ones((5, 3), "f4")):
        file = io.BytesIO()
        np.save(file, array)
        files.append(file.getvalue())

    def read(path: Path) -> None:
        opened = td.open_array(path)
        _shown(opened)
        opened[:4, :2]

    return files, _in_file(read, ".npy")


def _zarr():
    home = Path("whole.zarr").resolve()
    array = td.create_array(home, (6, 8), "f8", (3, 4))
    array.write(((0, 6), (0, 8)), np.arange(48.0).reshape(6, 8))

    def read() -> None:
        opened = td.open_array(home)
        _shown(opened)
        opened[:, :]

    return _in_one_of(sorted(path for path in home.rglob("*") if path.is_file()), read)


def _checkpoint_files() -> tuple[Path, Path]:
    from tiledask.distributed.checkpoints import save_checkpoint
    from tiledask.distributed.ranks.threads import run_threads

    home = Path("checkpoint").resolve()
    arrays = {"w": np.arange(24.0).reshape(4, 6), "b": np.ones(6, "f4"), "step": np.array(3)}
    run_threads(lambda rank: save_checkpoint(rank, home, 7, arrays), 1, timeout=240)
    return home, next(home.glob("step-*7"))


def _index():
    home, step = _checkpoint_files()
    file = step / "index.json"
    body = json.loads(file.read_text())["index"]

    def read(path: Path, given: str) -> None:
        body = given.encode("utf-8", "replace").decode()  # the checksum agrees: it was written
        file.write_text(json.dumps({"crc32": zlib.crc32(body.encode()), "index": body}))
        opened = td.open_checkpoint(home)
        _shown(opened)
        opened.read()

    return [body], read


def _checkpoint():
    home, step = _checkpoint_files()
    files = sorted(path for path in step.iterdir() if path.is_file())
    return _in_one_of(files, lambda: td.open_checkpoint(home).read())


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
    "idle 1f1b --devices 4 8",
    "idle --layers 1,1,2,4 1f1b 2 4",
    "idle --diagnose trace.csv",
    "ask 34 --no-run --set layers=12 devices=3",
    "ask 34 --set layers=1,1,2,4",
    "matmul 64 --kernel blas --tile x8",
)


def _commands():
    import tiledask.errors as errors
    from tiledask import cli

    Path("trace.csv").write_text("device,start,end\n0,0,10\n1,10,20\n1,20,40\n0,40,60\n")
    cli._ERRORS = tuple(getattr(errors, name) for name in errors.__all__ if name != "short")

    def read(path: Path, given: str) -> None:
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
        said, wrong = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(wrong):
            try:
                code = cli.main(typed)
            except SystemExit as error:
                code = error.code
        words = wrong.getvalue()
        if "Traceback" in words or code not in (0, 1, 2):
            raise AssertionError(f"exit code {code}: {words[-200:]}")
        complaint = words.rpartition("error: ")[2] if code == 2 else ""
        if len(complaint) > 700:
            raise AssertionError(f"{len(complaint)} characters: {complaint[:100]}")

    return list(COMMANDS), read


def _exported(framework: str):
    """A configuration of a framework, as we write it of a dense model and of a mixture."""
    layouts = {
        "llama-3.1-8b": td.Layout(
            dp=2, tp=2, pp=2, microbatches=4, zero=3, interleave=2, partition=(0, 7, 16, 24, 32)
        ),
        "deepseek-v2-lite": td.Layout(dp=4, ep=2, microbatches=2, zero=1, recompute="full"),
    }

    def read(path: Path, given: str) -> None:
        model = "gpt2" if framework == "deepspeed" else None  # the others say it
        _shown(td.import_config(framework, given, model=model, devices=8))

    seeds = [td.export_config(m, layout, framework).text for m, layout in layouts.items()]
    return seeds, read


READERS = {
    "megatron flags": lambda: _exported("megatron"),
    "torchtitan toml": lambda: _exported("torchtitan"),
    "deepspeed json": lambda: _exported("deepspeed"),
    "config.json": _config,
    "cluster.json": _cluster,
    "puzzle": _puzzle,
    "answer": _answers,
    "chrome trace": _chrome,
    "csv trace": _csv,
    "schedule": _schedule,
    "program": _program,
    "size": _sizes,
    "text": _text,
    "images": _images,
    "npy": _npy,
    "zarr": _zarr,
    "index": _index,
    "checkpoint": _checkpoint,
    "command": _commands,
}
