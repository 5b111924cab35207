"""Claims about memory as a table: what the planner predicts, and what workers were refused."""

from collections.abc import Mapping

from tiledask.distributed.memory.claims import TOLERANCE, ClaimRun
from tiledask.lab.claim import Claim
from tiledask.lab.table import Comparison

__all__ = ["compare_claims"]


def compare_claims(title: str, runs: Mapping[str, ClaimRun]) -> Comparison:
    """Two rows a claim: the peak of the fullest device, and the verdict. Simulated is what the
    program holds that is run.

    A peak holds if predicted and measured are within TOLERANCE on every stage; of a claim that
    was refused memory, the row shows how much the refused device would have held at least.
    """
    return Comparison(title, tuple(row for name, run in runs.items() for row in _rows(name, run)))


def _rows(name: str, run: ClaimRun) -> tuple[Claim, Claim]:
    if run.refused:
        peak = Claim(
            f"{name}: peak, refused at",
            run.predicted.peak,
            run.simulated.peak,
            run.refused.needed,
            "bytes",
            note=str(run.refused),
        )
    else:
        stage = run.widest
        ledgers = run.predicted, run.simulated, run.measured
        planned, counted, ran = (ledger.per_place[stage] for ledger in ledgers)
        rule = ("ratio", 1 - TOLERANCE, 1 + TOLERANCE)
        peak = Claim(f"{name}: peak", planned, counted, ran, "bytes", rule, f"stage {stage + 1}")
    verdict = Claim(
        f"{name}: verdict", run.predicted_verdict, None, run.executed_verdict, rule="equal"
    )
    return peak, verdict
