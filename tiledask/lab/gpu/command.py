"""`make gpu`: ask for the GPU, plan, run, and leave a record with its page."""

import argparse
import re
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from rich.console import Console

from tiledask.errors import ConfigError
from tiledask.lab.bench.records import goals_table
from tiledask.lab.doctor import ask_gpu
from tiledask.lab.gpu import page
from tiledask.lab.gpu.advice import meaning
from tiledask.lab.gpu.part import GpuPart
from tiledask.lab.gpu.record import DeviceRecord, now
from tiledask.lab.gpu.runner import MODULES, Lost, Runner, find_parts, shares
from tiledask.lab.store import alone, code
from tiledask.lab.table import Grid, say

__all__ = ["main"]

_FOLDER = Path("data") / "measured" / "gpu"

_SPARE = 1.5
"""How much longer than it should a part may take, unless --minutes says how long all may."""
_ENDING = 10.0
"""Seconds of --minutes for the page and its figures."""

_ASK = """
import dataclasses, json
from tiledask.tile.backend import probe
found = dataclasses.asdict(probe())
if found["usable"]:
    from tiledask.lab.bench.tiles.device import facts_of
    found["device"] = facts_of("cupy")
print("PROBE " + json.dumps(found))
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """0 where all that ran is right; 1 where something is wrong, or nothing could run; 130 where
    it was interrupted."""
    begun, args = time.time(), _parser().parse_args(arguments)
    console = Console(highlight=False, soft_wrap=True)
    try:
        found = find_parts(args.parts or MODULES)
        # the parts that only names, in their own order; all without it
        names = {part.name if isinstance(part, Lost) else part[1].name: part for part in found}
        asked = [name.strip() for name in args.only.split(",") if name.strip()]
        if unknown := [name for name in asked if name not in names]:
            raise ConfigError(
                f"--only names parts that do not exist: {', '.join(unknown)}; the parts are "
                f"{', '.join(names)}"
            )
        chosen = [part for name, part in names.items() if not asked or name in asked]
        device = {"name": "no GPU"} if args.parts else _device()
        folder = args.out or (args.resume.parent if args.resume else _FOLDER)
        folder.mkdir(parents=True, exist_ok=True)
        with alone(folder / "record"):
            name = re.sub(r"[^a-z0-9]+", "-", device["name"].lower()).strip("-")
            record = DeviceRecord(folder / f"{name}.json", device, args.resume)
            shown = _parts(found)  # the page is of the whole record
            return _run(record, chosen, shown, args.minutes, begun, console)
    except (ConfigError, OSError) as error:
        say(console, str(error))
        return 1


def _run(
    record: DeviceRecord,
    chosen: Sequence,
    shown: Sequence[GpuPart],
    minutes: float | None,
    begun: float,
    console: Console,
) -> int:
    parts = _parts(chosen)
    seconds = _SPARE * 60 * sum(part.minutes for part in parts)
    if minutes is not None:
        seconds = 60 * minutes - _ENDING

    def tell(line: str) -> None:
        with suppress(OSError):  # whoever watched is gone, and the record is for others too
            console.print(line, markup=False)

    def show(figures: bool = False) -> list[Path]:
        try:
            return page.write(record.path, record.facts(), shown, figures)
        except Exception as error:  # the page can be made again of the record
            tell(f"the page cannot be written: {type(error).__name__}: {error}")
            return [record.path]

    status = 0
    run = {
        "at": now(),
        "minutes": minutes,
        "parts": [part.name for part in parts],
        "code": code()["digest"],
        "took": 0.0,
        "ended": "",
    }
    record.runs.append(run)
    try:
        with _ctrl_c():
            record.write()  # with what a run left behind that was ended, before its notes go
            record.open()
            seconds = max(1.0, seconds - (time.time() - begun))
            _say_plan(console, record, parts, seconds)
            Runner(record, seconds, tell, show).run(chosen)
    except KeyboardInterrupt:
        run["ended"], status = "Ctrl-C", 130
    finally:
        run["took"] = round(time.time() - begun, 1)
        record.write()
        record.journal.path.unlink(missing_ok=True)
        files = show(figures=True)
    all_right = _say_end(console, record, shown, files)
    return status or int(not all_right)


def _device() -> dict[str, Any]:
    """Facts of the GPU in use; ConfigError says what is looked for and what to do."""
    found = ask_gpu(_ASK)
    if not found["usable"]:
        raise ConfigError(
            f"`make gpu` measures a GPU and finds none that it could use: {found['reason']}.\n"
            f"It looks for an NVIDIA GPU that nvidia-smi lists, its driver, and CuPy for that "
            f"driver's CUDA; `tiledask doctor` says what of it is here. Without a GPU, "
            f"`tiledask tour` runs the whole story on this machine's cores."
        )
    return {**found["device"], "GPUs": len(found["devices"])}


def _parts(found: Sequence) -> list[GpuPart]:
    return [each[1] for each in found if not isinstance(each, Lost)]


@contextmanager
def _ctrl_c() -> Iterator[None]:
    """What asks this process to end does so as Ctrl-C does: the record is written."""

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    before = {asked: signal.signal(asked, stop) for asked in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for asked, handler in before.items():
            signal.signal(asked, handler)


# -- what is said --------------------------------------------------------------------------------


def _say_plan(
    console: Console, record: DeviceRecord, parts: Sequence[GpuPart], seconds: float
) -> None:
    fits = shares(parts, seconds)
    rows = [
        (part.name, f"{fits[part.name] / 60:.1f}" if part.name in fits else "-", part.title)
        for part in parts
    ]
    say(console, f": at most {seconds / 60:.1f} minutes for its parts", record.device["name"])
    console.print(Grid(("part", "minutes", "what"), rows, left=(0, 2)))
    if len(fits) < len(parts):
        say(console, "A part without minutes runs if the others leave it enough.")
    say(console, f"Every measurement is in {record.path} when it ends; Ctrl-C keeps what is there.")


def _say_end(
    console: Console, record: DeviceRecord, parts: Sequence[GpuPart], files: Sequence[Path]
) -> int:
    facts = record.facts()
    had = page.counts(facts["rows"])
    reached = [goal for goal in facts["goals"] if isinstance(goal["reached"], float)]
    if reached:
        names = ("what", "wanted", "reached", "met")
        console.print(goals_table([{name: goal[name] for name in names} for goal in reached]))
    say(console, ", ".join(f"{number} {state}" for state, number in had.items()))
    ended = [row for row in facts["parts"] if row["state"] in ("died", "failed")]
    if row := page.first_wrong(facts, parts):
        say(console, f"{row['part']}, {row['key']}: {row.get('why') or row['state']}", "first: ")
        if look := meaning(row):
            say(console, look, "what it means: ")
    for row in ended:
        say(console, f"{row['part']} {row['state']}: {row['why']}")
    say(console, ", ".join(map(str, files)), "send back: ")
    return not (had["wrong"] or had["failed"] or ended)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tiledask.lab.gpu",
        description="All that a GPU can tell, part after part: right or wrong, how fast, does it "
        "fit. Each part has a process and a time limit of its own.",
    )
    parser.add_argument(
        "--minutes",
        type=_minutes,
        metavar="M",
        help="for all of it; what does not fit is left out and said",
    )
    parser.add_argument("--only", default="", metavar="PART,PART", help="of the parts: these")
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help=f"where the record, its page and its figures go, eight files at most ({_FOLDER})",
    )
    parser.add_argument(
        "--resume",
        type=Path,
        metavar="FILE.json",
        help="a record: what the same code has measured on the same device is not measured again",
    )
    parser.add_argument("--parts", action="append", help=argparse.SUPPRESS)  # modules, for tests
    return parser


def _minutes(text: str) -> float:
    minutes = float(text)
    if not 0.1 <= minutes <= 10_000:
        raise argparse.ArgumentTypeError(f"give between 0.1 and 10000 minutes, got {text}")
    return minutes
