"""Run what a memory plan claims: workers hold the states, do the step, and are refused too much.

number of parameters   a device: its states, gradients, one optimizer step
Model                  stage 0    F0 F1 B0 F2 B1 B2 step      in the layout's schedule; blocks
                       stage 1       F0 B0 F1 B1 F2 B2 step   travel from worker to worker

Devices that hold the same are run once.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from distributed import Client

from tiledask.distributed.arrays.mesh import Mesh
from tiledask.distributed.cluster.cluster import Cluster
from tiledask.distributed.connecting.connect import connect
from tiledask.distributed.deadlines import bounded, seconds_of
from tiledask.distributed.memory.device_run import MemoryCase, run_device
from tiledask.distributed.ranks.run import run_ranks
from tiledask.errors import ConfigError
from tiledask.plan.inputs.layout import Layout
from tiledask.plan.inputs.model import Model
from tiledask.plan.inputs.recipes import Recipe, load_recipe
from tiledask.plan.ledger import Ledger
from tiledask.plan.units import format_bytes, parse_bytes
from tiledask.plan.whole import is_whole, whole_number
from tiledask.tile.memory import Refused
from tiledask.tile.optimizers import check_states

__all__ = ["TOLERANCE", "ClaimRun", "run_claim"]

TOLERANCE = 0.05
"""Relative difference between predicted and measured peak with which a claim still holds."""
EXECUTED = {"schedule": ("naive", "gpipe", "1f1b", "eager-1f1b"), "recompute": ("none", "full")}
"""With one chunk on a stage and whole backwards."""
OF_MODEL = "hidden layers heads ffn vocab head_dim tied learned_pos unused_pos name source"
OF_LAYOUT = "pp microbatch microbatches partition"
"""What may be chosen; all other fields are a plain decoder's."""


@dataclass(frozen=True, repr=False)
class ClaimRun:
    """A claim about memory, predicted and run. Places of ledgers are stages, of a device each."""

    case: MemoryCase
    name: str
    scale: int
    """Bytes and parameters of the claim per byte and parameter run."""
    predicted: Ledger
    """What the planner says."""
    simulated: Ledger
    """What its program holds, instruction by instruction."""
    measured: Ledger
    """What the devices that were run held, at the fullest instant of each moment."""
    refused: Refused | None
    """The MemoryError of the first device that was refused memory; None if none was."""

    @property
    def predicted_verdict(self) -> str:
        """ "fits" or "does not fit"."""
        return "fits" if self.predicted.peak <= self.case.capacity else "does not fit"

    @property
    def executed_verdict(self) -> str:
        """ "fits" or "does not fit"."""
        return "does not fit" if self.refused else "fits"

    @property
    def widest(self) -> int:
        """The stage whose measured and predicted peaks differ most."""
        ran, said = self.measured.per_place, self.predicted.per_place
        return max(ran, key=lambda stage: abs(ran[stage] / said[stage] - 1))

    @property
    def ratio(self) -> float | None:
        """Measured peak over predicted peak, of the stage where they differ most; None if a
        device was refused memory: then nobody saw its peak."""
        if self.refused:
            return None
        return self.measured.per_place[self.widest] / self.predicted.per_place[self.widest]

    @property
    def agrees(self) -> bool:
        """Whether both verdicts are the same, and all peaks within TOLERANCE if it ran."""
        same = self.predicted_verdict == self.executed_verdict
        return same and (self.ratio is None or abs(self.ratio - 1) <= TOLERANCE)

    def __repr__(self) -> str:
        found = f"measured {format_bytes(self.measured.peak)}"
        if self.refused:
            found = f"refused at {format_bytes(self.refused.needed)}: {self.refused}"
        return (
            f"ClaimRun({self.name}, {self.case.layout}, {self.case.recipe.name}, at "
            f"1:{self.scale} on {format_bytes(self.case.capacity)}: predicted "
            f"{format_bytes(self.predicted.peak)}, {self.predicted_verdict}; executed, "
            f"{self.executed_verdict}, {found})"
        )


@bounded
def run_claim(
    what: Model | int,
    layout: Layout,
    capacity: int | str,
    cluster: Cluster | Client | str,
    *,
    recipe: str | Recipe = "mixed-adam-16",
    sequence: int = 128,
    scale: int | None = None,
    timeout: float | None = None,
) -> ClaimRun:
    """One training step's memory on ``cluster``, beside what the planner says of it.

    what
        A number of parameters: a device allocates its states (cut by tp x pp, partitioned by
        ZeRO), and does the optimizer's step. Nothing is known of activations.
        Or a Model like GPT-2, executed as it is: every stage on a worker of its own runs its
        layers forward and backward in the layout's schedule, and does the step.
    capacity
        Bytes of one device, or text such as "40GB". An array that would pass it is refused with
        a MemoryError; that device stops, and the claim comes back as "does not fit".
    scale
        Parameters and capacity are divided by it: by 1000 if left out, a Model always by 1.
    timeout
        Seconds until a DeadlineError (default 300).

    Bytes are those of the arrays in a device's memory, to the byte; what fused kernels keep in
    registers, Python and Dask are not among them. A Model is cut into stages alone: what slices and
    copies hold of it is what its states are, by a number of parameters.

    Raises ConfigError for what cannot be run, PlacementError for fewer workers than stages of a
    Model, ClusterLostError if a worker dies meanwhile.
    """
    if isinstance(what, Model):
        usual, most, name = 1, 1, what.name
    elif is_whole(what, 1):
        usual, most, name = 1000, int(what), f"{what:,} parameters"
    else:
        raise ConfigError(
            f"a claim is about a Model or a number of parameters of 1 or more, got {what!r}; "
            f"td.load_model(name).parameters is such a number"
        )
    scale = whole_number("scale", usual if scale is None else scale, 1, most)
    whole = what if isinstance(what, Model) else int(what) // scale
    case = MemoryCase(whole, layout, load_recipe(recipe), sequence, parse_bytes(capacity) // scale)
    workers = connect(cluster)
    _check(case)
    refused = None
    mesh = Mesh(workers, (1, 1, case.stages), slots=range(case.stages))
    try:
        done = run_ranks(run_device, mesh, case, timeout=seconds_of(timeout), again=True).results
        measured = Ledger.of(row for rows in done for row in rows)
    except Refused as error:  # of one stage: it ends the run of all
        measured, refused = Ledger.of(error.rows), error.with_traceback(None)
    ledgers = case.predicted, case.simulated, measured
    return ClaimRun(case, name, scale, *ledgers, refused)


def _check(case: MemoryCase) -> None:
    """Refuse what no code here executes."""
    check_states(case.recipe)
    for holds, rule in _rules(case):
        if not holds:
            raise ConfigError(f"what can be run {rule}")


def _rules(case: MemoryCase) -> Iterator[tuple[bool, str]]:
    """(whether it holds, the rule and what was given) of all that is asked of a claim."""
    model, layout, recipe = case.what, case.layout, case.recipe
    yield layout.cp == 1, f"has cp=1, got {layout.cp}"
    if not isinstance(model, Model):
        return
    for given, free in ((model, OF_MODEL), (layout, OF_LAYOUT)):
        plain = type(given)(**{name: getattr(given, name) for name in free.split()})
        for field, usual in vars(plain).items():
            got, allowed = getattr(given, field), EXECUTED.get(field, (usual,))
            words = " or ".join(map(repr, allowed))
            yield got in allowed, f"is a decoder like GPT-2's with {field}={words}, got {got!r}"
    most, length = model.learned_pos, case.sequence
    yield not most or length <= most, f"has {most} learned positions, got {length} tokens"
    yield recipe.trains, f"trains, and recipe {recipe.name!r} does not train"
    alike = recipe.weight_bytes == recipe.compute_bytes
    yield alike, f"computes with the weights it keeps, and recipe {recipe.name!r} casts them"
