"""Plans for traces that no plan explains edge by edge: those with noise, and polls of a second.

turns      one device busy at a time, whatever the noise: layer-wise, one micro-batch
"""

from tiledask.plan.diagnosis.infer import Fit
from tiledask.plan.diagnosis.timed import Form, Plan
from tiledask.plan.diagnosis.trace import Trace

__all__ = ["fit_turns"]


def fit_turns(trace: Trace) -> Fit:
    """The Fit of devices that take turns: each does its work in one go down, and one up.

    A backward is taken to be twice a forward. What no device works is the way of results.
    """
    p, busy = trace.devices, trace.busy_per_device
    form = Form("naive", p, 1, 1)
    quiet = max(0.0, trace.makespan - float(busy.sum()))
    hop = quiet / (2 * (p - 1)) if quiet > 1e-3 * trace.makespan else 0.0
    forward, backward = (tuple((busy * part / 3).tolist()) for part in (1, 2))
    plan = Plan(form.build(), forward, backward, latency=(hop,) * (p - 1), form=form)
    return Fit(
        plan,
        error=0.0,
        spread=0.0,
        parameters=p,
        has_hops=True,
        has_turns=False,
        free=tuple(f"{kind} of stage {s}" for kind in "FB" for s in range(p)),
        guess=f"two or more devices work at once in {trace.overlap:.0%} of the working time",
    )
