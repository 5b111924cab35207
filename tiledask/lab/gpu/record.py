"""The record of a device: what every part measured, as one JSON that is whole at any moment.

journal   a line per event, appended by the part's process: it survives both processes
record    the JSON, written anew by the runner as lines arrive; lines that a run left behind,
          because it was ended between the two, are taken in by the next run
"""

import json
from datetime import datetime
from pathlib import Path
from typing import Any

from tiledask.errors import ConfigError
from tiledask.lab.bench.records import record
from tiledask.lab.gpu.part import GOALS
from tiledask.lab.store import Lines, append, code

__all__ = ["DeviceRecord", "load"]

Row = dict[str, Any]

MEASURED = ("right", "wrong", "timed")
"""States of rows that a resumed run need not measure again."""


def now() -> str:
    return datetime.now().astimezone().isoformat(timespec="seconds")


def load(path: Path) -> dict[str, Any]:
    """The record in ``path``; ConfigError where that is none."""
    try:
        facts = json.loads(path.read_text())
        [(row["part"], row["key"], row["state"]) for row in facts["rows"]]
        [(part["part"], part["state"]) for part in facts["parts"]]
        facts["device"]["name"], facts["code"]["digest"], facts["runs"]
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ConfigError(
            f"{path} is no record of `make gpu`, whose JSON has rows, parts, runs, device and "
            f"code: name another file, or another folder with --out"
        ) from None
    return facts


class DeviceRecord:
    """What is known of one device, in ``path``; a new row takes the place of the old one.

    ``resume``: rows that the same code measured on this device are kept, and not measured again.
    """

    def __init__(self, path: Path, device: dict[str, Any], resume: Path | None = None) -> None:
        self.path, self.device, self.resumes = path, device, resume is not None
        self.journal = Lines(path.with_suffix(".journal"))
        old = load(path) if path.exists() else {}
        if resume and resume != path:
            old = load(resume)
        self.rows: list[Row] = old.get("rows", [])
        self.parts: list[Row] = old.get("parts", [])
        self.runs: list[Row] = old.get("runs", [])
        there = old.get("device", device)["name"]
        if there != device["name"]:
            raise ConfigError(
                f"{resume or path} is of {there}, and this is {device['name']}: nothing in it "
                f"saves time here; name another folder with --out, without --resume"
            )
        self._kept: dict[str, set[str]] = {}
        # take in what is left of a run that was ended before it could do so itself
        head: Row = {}
        for line in self.journal.read():
            head = line if "part" not in line else head
            if "part" in line and line["part"] not in self._kept:
                self.start(line["part"], resumes=head.get("resumes", False))
            self.take({"code": head.get("code", ""), **line})
        for part in self.parts:
            if part["state"] == "running":
                part |= {"state": "died", "why": "the whole run was ended while it ran"}

    def open(self) -> None:
        """Begin a run: its journal is empty."""
        self._kept.clear()
        self.journal = Lines(self.journal.path)
        self.journal.path.unlink(missing_ok=True)
        append(self.journal.path, {"code": code()["digest"], "resumes": self.resumes})

    def start(self, part: str, resumes: bool | None = None) -> None:
        """Begin ``part``: from now on its rows are of this run. The first one removes the old
        ones, but for those that need not be measured again."""
        resumes = self.resumes if resumes is None else resumes
        self._kept[part] = self.known(part) if resumes else set()

    def kept(self, part: str) -> set[str]:
        """Keys of ``part`` that need not be measured again: of this run, or known before."""
        return set(self._kept.get(part, ()))

    def known(self, part: str) -> set[str]:
        """Keys of ``part`` that this code has measured on this device."""
        return {
            row["key"]
            for row in self.rows
            if row["part"] == part
            and row["state"] in MEASURED
            and row.get("code") == code()["digest"]
        }

    def done(self, part: str) -> bool:
        """Whether this code has run ``part`` to its end on this device, and nothing failed."""
        return any(
            row["part"] == part and row["state"] == "done" and row.get("code") == code()["digest"]
            for row in self.parts
        ) and not any(row["part"] == part and row["state"] == "failed" for row in self.rows)

    def take(self, line: Row) -> None:
        """Put ``line`` of the journal into the record, if it is a measurement."""
        if not {"part", "key", "state"} <= set(line):
            return
        part, key = line["part"], line["key"]
        kept = self._kept.setdefault(part, set())
        self.rows = [
            row
            for row in self.rows
            if row["part"] != part or (row["key"] in kept and row["key"] != key)
        ]
        kept.add(key)
        self.rows.append({"at": now(), "code": code()["digest"], **line})

    def end_part(self, name: str, state: str, why: str = "", **facts: Any) -> None:
        """Note how a part ended."""
        self.parts = [row for row in self.parts if row["part"] != name]
        row = {"part": name, "state": state, "why": why, "at": now(), "code": code()["digest"]}
        self.parts.append(row | facts)

    def leave_out(self, name: str, why: str) -> None:
        """Note that a part did not run; what an earlier run found of it stays."""
        if not any(row["part"] == name for row in self.rows):
            self.end_part(name, "left out", why)

    def facts(self) -> dict[str, Any]:
        """All of it, for the file and the page."""
        return {
            "command": "make gpu",
            "device": self.device,
            "code": code(),
            "goals": self.goals(),
            "parts": self.parts,
            "runs": self.runs,
            "rows": self.rows,
        }

    def goals(self) -> list[Row]:
        """Every goal beside what was reached; reached is None where it was not measured."""
        found = []
        for goal, (what, wanted) in GOALS.items():
            rows = [row for row in self.rows if row.get("goal") == goal and "reached" in row]
            for row in rows or [{}]:
                reached = row.get("reached")
                number = isinstance(reached, int | float)
                found.append(
                    {
                        "goal": goal,
                        "what": what,
                        "wanted": wanted,
                        "reached": reached,
                        "met": number and reached >= wanted,
                        "key": row.get("key", ""),
                    }
                )
        return found

    def write(self) -> None:
        """None, once the file holds all that is known now."""
        record(self.path, "tiledask.lab.gpu", self.facts())
