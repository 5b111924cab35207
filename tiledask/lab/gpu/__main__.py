"""`make gpu`: ask for the GPU, run part after part, leave a record and its page."""

import argparse
import json
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from tiledask.errors import ConfigError
from tiledask.lab.doctor import ask_gpu
from tiledask.lab.files import atomic_write, library_versions
from tiledask.lab.gpu.page import goals, page
from tiledask.lab.gpu.part import GpuPart, read_journal
from tiledask.lab.gpu.runner import find_parts, run_part

__all__ = ["main"]

FOLDER = Path("build") / "gpu"
_ASK = """
import dataclasses, json
from tiledask.tile.backend import probe
found = dataclasses.asdict(probe())
if found["usable"]:
    from tiledask.lab.gpu.contest.device import facts_of
    found["device"] = facts_of("cupy")
print("PROBE " + json.dumps(found))
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """0 where all that ran is right; 1 where something is wrong, or nothing could run."""
    args, parts = _parser().parse_args(arguments), find_parts()
    if args.page:
        facts = json.loads(args.page.read_text("utf-8"))
        args.out.mkdir(parents=True, exist_ok=True)
        made = page(facts, [*parts.values()])
        print(atomic_write(args.out / f"{args.page.stem}.md", made.encode()))
        return 0
    asked = [name for name in args.only.split(",") if name]
    try:
        if unknown := [name for name in asked if name not in parts]:
            raise ConfigError(f"--only takes {', '.join(parts)}; got {', '.join(unknown)}")
        device = _device(args.arrays)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 1
    chosen = [part for part in parts.values() if not asked or part.name in asked]
    return _run(device, chosen, args.arrays, args.minutes, args.out)


def _run(
    device: dict[str, Any], parts: Sequence[GpuPart], arrays: str, minutes: float | None, out: Path
) -> int:
    """Run the parts; the record is written anew after each."""
    out.mkdir(parents=True, exist_ok=True)
    name = re.sub(r"[^a-z0-9]+", "-", device["name"].lower()).strip("-")
    journal, record = out / f"{name}.jsonl", out / f"{name}.json"
    journal.unlink(missing_ok=True)
    seconds = 60 * (minutes or 1.5 * sum(part.minutes for part in parts))
    until, ended = time.time() + seconds, list[dict[str, Any]]()
    facts: dict[str, Any] = {
        "command": "make gpu",
        "date": datetime.now().astimezone().isoformat(timespec="seconds"),
        "device": device,
        "versions": library_versions(),
        "code": {"commit": _commit()},
        "parts": ended,
    }
    left = list(parts)
    try:
        while left:
            # what earlier parts did not use is there for those that come
            share = left[0].minutes / sum(part.minutes for part in left)
            rest = max(1.0, until - time.time())
            ended.append(run_part(left.pop(0), journal, share * rest, arrays, print))
            print(f"{ended[-1]['part']}: {ended[-1]['state']} {ended[-1]['why']}", flush=True)
            _write(record, facts, journal, parts)
    except KeyboardInterrupt:
        print(f"ended by Ctrl-C; what was measured is in {record}")
    rows = _write(record, facts, journal, parts)
    for what, key, wanted, reached, met in goals(rows).rows if arrays == "cupy" else ():
        print(f"{met} {what}: {reached or '-'}, {wanted} wanted ({key})")
    bad = [row for row in rows if row["state"] in ("wrong", "failed")]
    for row in bad[:10]:
        print(f"{row['state']}: {row['part']}, {row['key']}: {row.get('why', '')}")
    print(f"{len(rows)} measurements, {len(bad)} wrong or failed: {record.with_suffix('.md')}")
    return int(bool(bad or [row for row in ended if row["state"] == "failed"]))


def _write(
    record: Path, facts: dict[str, Any], journal: Path, parts: Sequence[GpuPart]
) -> list[dict[str, Any]]:
    """The rows so far, once the record and its page have them."""
    rows = [line for line in read_journal(journal) if "key" in line]
    whole = facts | {"rows": rows}
    atomic_write(record, (json.dumps(whole, indent=1) + "\n").encode())
    atomic_write(record.with_suffix(".md"), page(whole, parts).encode())
    return rows


def _device(arrays: str) -> dict[str, Any]:
    """Facts of the GPU in use; ConfigError says what is looked for and what to do."""
    if arrays == "numpy":
        from tiledask.lab.gpu.contest.device import facts_of

        return facts_of("numpy")
    found = ask_gpu(_ASK)
    if not found["usable"]:
        raise ConfigError(
            f"`make gpu` measures a GPU and finds none that it could use: {found['reason']}.\n"
            f"It looks for an NVIDIA GPU that nvidia-smi lists, its driver, and CuPy for that "
            f"driver's CUDA; `tiledask doctor` says what of it is here. Without a GPU, "
            f"`tiledask tour` runs the whole story on this machine's cores."
        )
    return {**found["device"], "GPUs": len(found["devices"])}


def _commit() -> str:
    with suppress(OSError, subprocess.SubprocessError):
        return subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        ).stdout.strip()
    return ""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tiledask.lab.gpu",
        description="All that a GPU can tell, part after part: right or wrong, how fast, does it "
        "fit. Each part has a process and a time limit of its own.",
    )
    parser.add_argument("--minutes", type=float, metavar="M", help="for all of it")
    parser.add_argument("--only", default="", metavar="PART,PART", help="of the parts: these")
    parser.add_argument("--out", type=Path, default=FOLDER, metavar="DIR", help=f"({FOLDER})")
    parser.add_argument(
        "--arrays", choices=("cupy", "numpy"), default="cupy", help="numpy: small, without a GPU"
    )
    parser.add_argument("--page", type=Path, metavar="FILE.json", help="make the page of a record")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
