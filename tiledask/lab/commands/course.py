"""The commands of the course: questions, puzzles, tour, doctor, notebooks, sheets, grades."""

import argparse
import csv
import os
from pathlib import Path
from shutil import get_terminal_size

from tiledask.files import atomic_write
from tiledask.lab.commands.options import Run


def run_ask(args: argparse.Namespace) -> Run:
    """The answer; 1 if a claim of its run fails."""
    from tiledask.lab.course.ask import answered, list_all, read_inputs

    if not args.question:
        return (yield from list_all())
    given = read_inputs(args.set)
    answer = answered(" ".join(args.question), given, run=not args.no_run)
    yield answer.to_text(get_terminal_size().columns, args.explain).rstrip()
    return (0 if answer.ok else 1), answer.to_dict()


def run_puzzle(args: argparse.Namespace) -> Run:
    """The task, or what answers are worth: 1 if one does not solve it."""
    from tiledask.lab.tasks import play

    yield from ()  # it prints as it goes
    if args.puzzle is None:
        return play.list_all(args.echo)
    return play.play(args.puzzle, args.answer, args.echo, args.hint, args.figure, args.seed)


def run_tour(args: argparse.Namespace) -> Run:
    """The tables of the tour: 1 if a claim fails that no other program on the machine can spoil."""
    from tiledask.lab.tour import tour

    tables = tour(args.folder, device=args.device, echo=args.echo)
    sums = {n: sum(t.get(n, 0) for t in tables) for n in ("held", "checked")}
    failed = [row for table in tables for row in table["rows"] if row["holds"] is False]
    ok = all(": idle" in row["quantity"] for row in failed)
    if failed and ok:
        yield "Idle time was off, as other programs make it: look again when the machine is quiet."
    return (0 if ok else 1), {"ok": ok, **sums, "tables": tables}


def run_doctor(args: argparse.Namespace) -> Run:
    """What this machine has."""
    from tiledask.lab import doctor

    findings = doctor.examine()
    yield from doctor.shown(findings)
    return 0, [each._asdict() for each in findings]


def run_notebooks(args: argparse.Namespace) -> Run:
    """The learner's copies, perhaps in JupyterLab; or those of a class."""
    from tiledask.lab.learner.copies import copy_notebooks, refresh, shipped_notebooks
    from tiledask.lab.learner.score import write_contents
    from tiledask.lab.learner.start import lab_command

    folder = args.folder
    if args.nbgrader:
        from tiledask.lab.classroom.assignment import write_assignments

        made = len(write_assignments(folder))
        yield f"{made} notebooks for a class in {folder}"
        return 0, {"folder": folder, "walkthroughs": made, "new": []}
    new = copy_notebooks(shipped_notebooks(), folder)
    write_contents(shipped_notebooks(), Path(folder))
    count = len(list(Path(folder).glob("*.ipynb")))
    yield from [*new, f"{count} notebooks in {folder}: what is yours there stays."]
    if args.lab is not None:
        refresh(folder)  # no kernel lives yet
        command, environment = lab_command(folder, args.lab)
        os.execve(command[0], command, environment)
    return 0, {"folder": folder, "walkthroughs": count, "new": new}


def run_sheet(args: argparse.Namespace) -> Run:
    """A page to print."""
    from tiledask.lab.classroom.sheet import sheet

    to = args.to or ("answers.html" if args.answers else "sheet.html")
    atomic_write(Path(to), sheet(args.name, args.seed, args.answers).encode())
    yield f"{to}: open it in a browser, and print it from there"
    return 0, {"page": to, "seed": args.seed, "answers": args.answers}


def run_grade(args: argparse.Namespace) -> Run:
    """The stars of each learner's answers."""
    from tiledask.lab.classroom.grading import Grade, grade
    from tiledask.plan.tables import Table

    grades = grade(args.folder)
    if args.csv:
        with open(args.csv, "w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([Grade._fields, *grades])
    rows = [(g.learner, g.notebook, str(g.task), "★" * g.stars, g.said) for g in grades]
    head = ("learner", "notebook", "task", "stars", "verdict")
    yield Table(head, rows, left=(0, 1, 3, 4))
    return 0, [each._asdict() for each in grades]
