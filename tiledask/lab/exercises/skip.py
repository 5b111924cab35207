"""Write into a pipeline's program that the first rank's output goes to the last rank too; checked.

rank 0 --x1--> rank 1 --x2--> rank 2       and x1, past rank 1, to rank 2: a skip connection;
                                           its gradient comes back by the same way
"""

from tiledask.errors import ProgramError
from tiledask.lab.exercises.exercise import exercise, instance, none_wrong
from tiledask.lab.judging import Target
from tiledask.plan.program.graph import LinePlace, graph
from tiledask.plan.program.instructions import Do, Recv
from tiledask.plan.program.program import Program

__all__ = ["skip_connection"]

MICROBATCHES, MESSAGE, KEPT = 4, 1024, 4096
NEEDED = ("0F 1F", "1F 2F", "2F 2B", "2B 1B", "1F 1B", "1B 0B", "0F 0B", "0F 2F", "2B 0B")
"""What is made, and which action needs it; the last two by the skip connection."""
SENT, FULLEST, END = 6 * MICROBATCHES * MESSAGE, 3 * KEPT + 2 * MESSAGE, 18


@exercise("skip-connection", read=instance(str | Program))
def skip_connection(answer: str | Program) -> list[Target]:
    """Write the program of three ranks, 1F1B with 4 micro-batches, in which the last one reads the
    first one's output as well. It is checked as every program is, and what each action reads is
    followed back over the messages to the action that made it."""
    program = (Program.from_text(answer) if isinstance(answer, str) else answer).check()
    if program.ranks != 3:
        raise ProgramError(f"the pipeline has 3 ranks, this program has {program.ranks}")
    for rank in range(3):
        for name, nbytes in program.role(rank).nbytes.items():
            wanted = KEPT if name.startswith("kept") else MESSAGE
            if nbytes != wanted:
                raise ProgramError(f"{name} of rank {rank} has {nbytes:,} B; here {wanted:,} B")
    lacks = [f"{user} reads nothing that {maker} made" for maker, user in _lacks(program)]
    sent, held = program.traffic.sent, program.memory.per_place
    often, fullest = sent.index(max(sent)), max(held, key=lambda rank: held[rank])
    end = program.timeline({"F": 1.0, "B": 2.0}).makespan
    by, on = f"rank {often} sends {sent[often]:,}", f"that is rank {fullest}"
    return [
        none_wrong("inputs that actions lack", lacks[:1], len(lacks)),
        Target("bytes that all ranks send", SENT, sum(sent), SENT, where=by),
        Target("bytes on the fullest rank", FULLEST, held[fullest], where=on),
        Target("seconds until the end", END, end),
    ]


def _lacks(program: Program) -> list[tuple[str, str]]:
    """(who made it, who needs it and does not read it), by micro-batch: ("0F.3", "2F.3")."""
    places = [place for node in graph(program) for place in node.places]
    made = {(at.rank, at.frame, name): at for at in places for name in at.instruction.writes}

    def maker(rank: int, frame: int, name: str) -> str:
        at = made[rank, frame, name]
        if isinstance(at.instruction, Recv):
            return maker(program.peer(rank, at.instruction), frame, name)
        return _action(at)

    done = [at for at in places if isinstance(at.instruction, Do)]
    reads = {
        (maker(at.rank, at.frame, n), _action(at)) for at in done for n in at.instruction.reads
    }
    each = [(pair.split(), m) for m in range(MICROBATCHES) for pair in NEEDED]
    wanted = [(f"{one}.{m}", f"{other}.{m}") for (one, other), m in each]
    return [pair for pair in wanted if pair not in reads]


def _action(at: LinePlace) -> str:
    return f"{at.rank}{getattr(at.instruction, 'kernel', ' ')[0].upper()}.{at.frame}"
