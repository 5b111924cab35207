"""The fitted constants of data/calibration, found again from the rows that they name.

log(measured) = log(estimated(constants)) + error     Gauss-Newton from round guesses, a wide prior
                                                      each, rows of a family of runs weighing as one
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from tiledask.lab.accuracy.evaluate import GROUPS, calibrated
from tiledask.lab.accuracy.runs import RunRow, run_rows
from tiledask.plan.data import data_file, shipped_json
from tiledask.plan.timing.calibration import Calibration

__all__ = ["GUESSES", "Refit", "main", "refit"]

NOISE, OUTLIER = 0.03, 0.09
"""Relative error of a row that is well described, and from where it counts linearly."""


class Constant(NamedTuple):
    """A constant that is fitted: where it is kept, and which estimates it changes."""

    number: str
    """The kind and name of its file in data/calibration, the field, and of some fields the key."""
    start: float
    prior: float
    """Standard deviation of its logarithm about ``start``."""
    where: tuple[str, ...] = ()
    """Devices, training programs, or "device/kernel"; none: everywhere."""

    def holds(self, known: Calibration) -> bool:
        """Whether it changes an estimate by ``known``."""
        names = known.device, known.framework, f"{known.device}/{known.kernel}"
        return not self.where or any(name in self.where for name in names)

    def put(self, known: Calibration, value: float) -> Calibration:
        """``known`` with ``value`` in its place."""
        name, *key = self.number.split(".")[1:]
        field = {"forward": "flash_share", "backward": "flash_backward_share"}.get(name, name)
        if not key:
            return replace(known, **{field: value})  # type: ignore[arg-type]
        kinds = key[0], f"{key[0]}_backward"
        pairs = ((kind, value if kind in kinds else v) for kind, v in getattr(known, field))
        return replace(known, **{field: tuple(pairs)})  # type: ignore[arg-type]


GUESSES: dict[str, list[Any]] = shipped_json("calibration", "guesses.json")
"""Round guesses and priors: of all that NVIDIA's and FSDP's steps set, and of BLOOM's log,
Korthikanti's and torchtitan's rows, each a program of its own."""
LOGS = "kor-5", "kor-4", "bloom", "titan"
"""Groups of the latter."""


class Refit:
    """Rows, and the constants that describe them best. Rows that are not `calibrated` are only
    estimated."""

    def __init__(self, constants: Sequence[Constant], rows: Sequence[RunRow]) -> None:
        self.constants, self.rows = constants, rows
        self.families = [row.family for row in rows]
        self.known = [row.run.step().calibration for row in rows]  # as shipped
        self.measured = np.log([row.seconds for row in rows])
        self.fits = np.array([row.key in calibrated() for row in rows])

    def estimated(self, values: np.ndarray, only: Sequence[int] | None = None) -> np.ndarray:
        """Logarithm of what each row (of ``only``) takes with ``values`` of the constants."""
        found = []
        for row in range(len(self.rows)) if only is None else only:
            known = self.known[row]
            for constant, value in zip(self.constants, values, strict=True):
                if constant.holds(known):
                    known = constant.put(known, float(value))
            found.append(np.log(self.rows[row].run.seconds(known)))
        return np.array(found)

    def slopes(self, values: np.ndarray) -> np.ndarray:
        """[rows, constants]: how the logarithm of each row goes with that of each constant."""
        here, by = self.estimated(values), 1.02
        found = np.zeros((len(here), len(values)))
        for at, constant in enumerate(self.constants):
            rows = [n for n, known in enumerate(self.known) if constant.holds(known)]
            moved = np.where(np.arange(len(values)) == at, values * by, values)
            if rows:
                found[rows, at] = (self.estimated(moved, rows) - here[rows]) / np.log(by)
        return found

    def solve(
        self, values: np.ndarray, slopes: np.ndarray, here: np.ndarray, rows: np.ndarray
    ) -> np.ndarray:
        """``values`` after the step that describes ``rows`` best, given slopes and estimates."""
        start = np.log([constant.start for constant in self.constants])
        prior = np.array([constant.prior for constant in self.constants])
        families = self.families
        many = {each: sum(families[n] == each for n in rows) for each in families}
        even = np.array([1 / np.sqrt(many[families[n]]) for n in rows])
        change = np.zeros(len(values))
        for _ in range(6):  # outliers are told anew after each
            left = (self.measured - here)[rows] - slopes[rows] @ change
            weight = even * np.sqrt(np.minimum(1, OUTLIER / np.maximum(abs(left), 1e-9))) / NOISE
            matrix = np.vstack([slopes[rows] * weight[:, None], np.diag(1 / prior)])
            away = (start - np.log(values) - change) / prior
            change = change + np.linalg.lstsq(matrix, np.append(left * weight, away), rcond=None)[0]
        return values * np.exp(np.clip(change, -0.4, 0.4))

    def fitted(self, steps: int = 3) -> np.ndarray:
        """The constants after ``steps`` steps from their round guesses."""
        values = np.array([constant.start for constant in self.constants])
        every = np.flatnonzero(self.fits)
        for _ in range(steps):
            values = self.solve(values, self.slopes(values), self.estimated(values), every)
        return values

    def left_out(self, values: np.ndarray) -> np.ndarray:
        """The relative error of each row where all rows of its model, on every device, were left
        out: one step from ``values``."""
        slopes, here = self.slopes(values), self.estimated(values)
        models = np.array([each.split("/")[0] for each in self.families])
        errors = np.zeros(len(models))
        for each in set(models):
            gone = np.flatnonzero(models == each)
            without = self.solve(values, slopes, here, np.flatnonzero((models != each) & self.fits))
            errors[gone] = np.exp(self.estimated(without, gone.tolist()) - self.measured[gone]) - 1
        return errors

    def by_group(self, errors: np.ndarray) -> dict[str, list[float]]:
        """[rows, mean, worst] of the sizes of ``errors`` by device and program."""
        groups: dict[str, list[float]] = {}
        for row, error in zip(self.rows, errors, strict=True):
            group = GROUPS[row.group]["name"].removesuffix(", not explained")
            groups.setdefault(group, []).append(abs(error))
        sizes = sorted(groups.items())
        return {name: [len(each), float(np.mean(each)), max(each)] for name, each in sizes}


def refit(which: str) -> Refit:
    """The rows that the shipped constants were fitted to: of "steps" or of "logs"."""
    return Refit(
        [Constant(*each) for each in GUESSES[which]],
        [
            row
            for row in chain.from_iterable(run_rows().values())
            if row.family and row.unit in ("s", "ms") and (row.group in LOGS) == (which == "logs")
        ],
    )


def main() -> int:
    """Print each constant beside its file's, and keep the errors of models that were left out."""
    left: dict[str, list[float]] = {}
    for rows in map(refit, GUESSES):
        values = rows.fitted()
        kept = {key: number for known in rows.known for key, number in known.numbers}
        for constant, value in zip(rows.constants, values, strict=True):
            shipped = kept[constant.number]
            range_ = f"{shipped.low:g} .. {shipped.high:g}"
            print(f"{constant.number}: {value:.4g}, shipped {shipped.value:g} in {range_}")
        for name, (n, mean, worst) in rows.by_group(rows.left_out(values)).items():
            left[name] = [n, round(mean, 4), round(worst, 4)]
    data_file("calibration", "left_out.json").write_text(json.dumps(left, indent=2) + "\n", "utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
