"""Claims about memory as a table: what the planner predicts, and what workers were refused."""

from collections.abc import Mapping

from tiledask.distributed.memory.claims import TOLERANCE, ClaimRun
from tiledask.lab.claim import Claim
from tiledask.lab.table import Comparison

__all__ = ["compare_claims"]

RULE = ("ratio", 1 - TOLERANCE, 1 + TOLERANCE)


def compare_claims(title: str, runs: Mapping[str, ClaimRun]) -> Comparison:
    """Two rows a claim: the peak of the fullest device, and the verdict. Simulated is what the
    program holds that is run.

    A peak holds if predicted and measured are within TOLERANCE on every stage; of a claim that
    was refused memory, the row shows how much the refused device would have held at least.
    """
    rows = []
    for name, run in runs.items():
        if run.refused:
            peaks = run.predicted.peak, run.simulated.peak, run.refused.needed
            what = f"{name}: peak, refused at"
            rows.append(Claim(what, *peaks, unit="bytes", note=str(run.refused)))
        else:
            stage, ledgers = run.widest, (run.predicted, run.simulated, run.measured)
            planned, counted, ran = (ledger.per_place[stage] for ledger in ledgers)
            note = f"stage {stage + 1}"
            rows.append(Claim(f"{name}: peak", planned, counted, ran, "bytes", RULE, note))
        verdicts = run.predicted_verdict, None, run.executed_verdict
        rows.append(Claim(f"{name}: verdict", *verdicts, rule="equal"))
    return Comparison(title, rows)
