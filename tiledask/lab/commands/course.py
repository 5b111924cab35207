"""The commands around the course: the tour, the doctor, walkthroughs, sheets and grades."""

import argparse
import json
import os
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from tiledask.lab.table import say

__all__ = ["add"]

Result = tuple[int, Any]
COUNTS = ("held", "checked", "put_off")


def add(adder: Callable[..., argparse.ArgumentParser]) -> None:
    """The commands and their options."""
    sub = adder("tour", _tour, "run the whole story on this machine and leave a page of it")
    sub.add_argument("--folder", default="build/tour", help="where the page goes (%(default)s)")
    sub.add_argument("--device", default="auto", choices=("auto", "cuda", "cpu"))

    sub = adder("doctor", _doctor, "what this machine has, what will be used, what is missing")

    sub = adder("notebooks", _notebooks, "your own copies of the walkthroughs; what is there stays")
    sub.add_argument("folder", help="where they go, such as learn")
    sub.add_argument(
        "--lab",
        nargs=argparse.REMAINDER,
        metavar="ARGUMENT",
        help="then open them in JupyterLab, with what follows as arguments of its own",
    )
    sub.add_argument(
        "--nbgrader", action="store_true", help="for a class: tests in the place of solutions"
    )

    sub = adder("sheet", _sheet, "puzzles, or levels of the idle-time ladder, as a page to print")
    sub.add_argument("names", nargs="+", metavar="NAME", help="a puzzle, idle-3, or idle for all")
    sub.add_argument("--seed", type=int, default=0, help="draws the numbers of the ladder (0)")
    sub.add_argument("--answers", action="store_true", help="with answers, for whoever marks it")
    sub.add_argument("--to", default="sheet.html", metavar="FILE", help="the page (%(default)s)")

    sub = adder("grade", _grade, "what the answers in a folder of learners' notebooks are worth")
    sub.add_argument("folder", help="notebooks, each learner's in a folder of his own")
    sub.add_argument("--csv", metavar="FILE", help="the table as a file too")
    sub.add_argument(
        "--run-code", action="store_true", help="run answers that are functions: on a spare machine"
    )


def _tour(args: argparse.Namespace, console: Console) -> Result:
    from tiledask.lab.tour import tour

    tables = tour(args.folder, device=args.device, console=console)
    counts = {name: sum(table.get(name, 0) for table in tables) for name in COUNTS}
    ok = all(table["ok"] for table in tables)
    return (0 if ok else 1), {"ok": ok, **counts, "tables": tables}


def _notebooks(args: argparse.Namespace, console: Console) -> Result:
    from tiledask.lab.learner.contents import write_contents
    from tiledask.lab.learner.copies import copy_walkthroughs, refresh, walkthroughs
    from tiledask.lab.learner.start import lab_command

    if args.nbgrader:
        from tiledask.lab.classroom.assignment import write_assignments

        made = write_assignments(args.folder)
        say(console, f"{len(made)} walkthroughs for a class in {args.folder}")
        return 0, {"folder": args.folder, "walkthroughs": len(made), "new": []}
    new = copy_walkthroughs(walkthroughs(), args.folder)
    write_contents(walkthroughs(), Path(args.folder))
    count = len(list(Path(args.folder).glob("*.ipynb")))
    for sentence in [*new, f"{count} walkthroughs in {args.folder}: what is yours there stays."]:
        say(console, sentence)
    if args.lab is not None:
        refresh(args.folder)  # no kernel lives yet
        command, environment = lab_command(args.folder, args.lab)
        os.execve(command[0], command, environment)
    return 0, {"folder": args.folder, "walkthroughs": count, "new": new}


def _sheet(args: argparse.Namespace, console: Console) -> Result:
    from tiledask.lab.classroom.sheet import sheet
    from tiledask.lab.files import atomic_write

    page = sheet(args.names, args.seed, args.answers)
    atomic_write(Path(args.to), page.encode())
    say(console, f"{args.to}: open it in a browser, and print it from there")
    return 0, {"page": args.to, "seed": args.seed, "answers": args.answers}


def _grade(args: argparse.Namespace, console: Console) -> Result:
    from tiledask.lab.classroom.grading import as_csv, grade
    from tiledask.lab.files import atomic_write
    from tiledask.lab.table import Grid

    def begins(name: str) -> None:
        if not args.json:
            say(console, f"judging {name}")

    grades = grade(args.folder, runs_code=args.run_code, progress=begins)
    if args.csv:
        atomic_write(Path(args.csv), as_csv(grades).encode())
    rows = [(g.learner, g.notebook, str(g.task), "★" * g.stars, g.said) for g in grades]
    head = ("learner", "walkthrough", "task", "stars", "verdict")
    console.print(Grid(head, rows, left=(0, 1, 3, 4)))
    return 0, [asdict(each) for each in grades]


def _doctor(args: argparse.Namespace, console: Console) -> Result:
    from tiledask.lab import doctor

    findings = doctor.examine()
    doctor.show(findings, console)
    return 0, json.loads(doctor.to_json(findings))
