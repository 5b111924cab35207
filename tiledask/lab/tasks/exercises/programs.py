"""A program of ranks to write: a skip connection."""

from tiledask.errors import ProgramError
from tiledask.lab.tasks.exercises.exercise import exercise, none_wrong
from tiledask.lab.tasks.result import Target
from tiledask.lab.tasks.task import JudgedTask
from tiledask.plan.program.program import Program
from tiledask.plan.program.walk import OpPlace, walk

__all__ = ["skip_connection"]

MICROBATCHES, MESSAGE, KEPT = 4, 1024, 4096
NEEDED = ("0F 1F", "1F 2F", "2F 2B", "2B 1B", "1F 1B", "1B 0B", "0F 0B", "0F 2F", "2B 0B")
"""What is made, and which action needs it; the last two by the skip connection."""


def skip_connection(seed: int = 0) -> JudgedTask:
    """The exercise of the notebook on programs."""
    return exercise(
        "skip-connection", JudgedTask, lambda answer: isinstance(answer, Program | str), _judge
    )


def _judge(answer: Program | str) -> list[Target]:
    program = (Program.from_text(answer) if isinstance(answer, str) else answer).check()
    if program.ranks != 3:
        raise ProgramError(f"the pipeline has 3 ranks, this program has {program.ranks}")
    for rank in range(3):
        for name, nbytes in program.role(rank).sizes.items():
            wanted = KEPT if name.startswith("kept") else MESSAGE
            if nbytes != wanted:
                raise ProgramError(f"{name} of rank {rank} has {nbytes:,} B; here {wanted:,} B")
    lacks = [f"{user} reads nothing that {maker} made" for maker, user in _lacks(program)]
    sent, held = program.traffic.sent, program.memory.per_place
    often, fullest = sent.index(max(sent)), max(held, key=lambda rank: held[rank])
    by, least = f"rank {often} sends {sent[often]:,}", 6 * MICROBATCHES * MESSAGE
    on, most = f"that is rank {fullest}", 3 * KEPT + 2 * MESSAGE
    return [
        none_wrong("inputs that actions lack", lacks[:1], len(lacks)),
        Target("bytes that all ranks send", least, sum(sent), least, why=by),
        Target("bytes on the fullest rank", most, held[fullest], why=on),
        Target("seconds until the end", 18, program.timeline({"F": 1.0, "B": 2.0}).makespan),
    ]


def _lacks(program: Program) -> list[tuple[str, str]]:
    """(who made it, who needs it and does not read it), by micro-batch: ("0F.3", "2F.3")."""
    places = [place for at_once in walk(program) for place in at_once]
    made = {(at.rank, at.microbatch, name): at for at in places for name in at.op.writes}

    def action(at: OpPlace) -> str:
        return f"{at.rank}{at.op.name[0].upper()}.{at.microbatch}"

    def maker(rank: int, microbatch: int, name: str) -> str:
        at = made[rank, microbatch, name]
        if at.op.name == "recv":
            return maker(program.peer(rank, at.op), microbatch, name)
        return action(at)

    done = [at for at in places if at.op.is_kernel]
    reads = {(maker(at.rank, at.microbatch, n), action(at)) for at in done for n in at.op.reads}
    pairs = [tuple(pair.split()) for pair in NEEDED]
    wanted = [(f"{one}.{m}", f"{other}.{m}") for m in range(MICROBATCHES) for one, other in pairs]
    return [pair for pair in wanted if pair not in reads]
