"""Write into a pipeline's program that the first rank's output goes to the last rank too; checked.

rank 0 --x1--> rank 1 --x2--> rank 2       and x1, past rank 1, to rank 2: a skip connection;
                                           its gradient comes back by the same way
"""

from typing import Any

from tiledask.errors import ProgramError
from tiledask.lab.judging import Exercise, Target
from tiledask.lab.plots import primitives as draw
from tiledask.lab.plots.style import GREEN, GREY, RED, canvas, colour_named, styled
from tiledask.plan.program.graph import LinePlace, graph
from tiledask.plan.program.instructions import Do, Recv
from tiledask.plan.program.program import Program

__all__ = ["skip_connection"]

MICROBATCHES, MESSAGE, KEPT = 4, 1024, 4096
CHAIN = ("0F 1F", "1F 2F", "2F 2B", "2B 1B", "1F 1B", "1B 0B", "0F 0B")
SKIPS = ("0F 2F", "2B 0B")
"""What is made, and which action needs it: in the pipeline as it is, and with a skip connection."""
NEEDED = CHAIN + SKIPS
FORWARD, BACKWARD = colour_named("forward"), colour_named("backward")
SENT, FULLEST, END = 6 * MICROBATCHES * MESSAGE, 3 * KEPT + 2 * MESSAGE, 18


def skip_connection() -> Exercise:
    """Write the program of three ranks, 1F1B with 4 micro-batches, in which the last one reads the
    first one's output as well; as text, or as a Program.

    It is checked as every program is, and what each action reads is followed back over the
    messages to the action that made it. Bytes are counted, memory weighed, the end is timed.
    """

    def measure(program: Program) -> list[Target]:
        _sizes(program)
        lacks = _lacks(program)
        remarks = [f"{user} reads nothing that {maker} made" for maker, user in lacks[:1]]
        sent, held = program.traffic.sent, program.memory.per_place
        often, fullest = sent.index(max(sent)), max(held, key=lambda rank: held[rank])
        end = program.timeline({"F": 1.0, "B": 2.0}).makespan
        by, on = f"rank {often} sends {sent[often]:,}", f"that is rank {fullest}"
        return [
            Target("inputs that actions lack", 0, len(lacks), 0, remarks=remarks),
            Target("bytes that all ranks send", SENT, sum(sent), SENT, where=by),
            Target("bytes on the fullest rank", FULLEST, held[fullest], None, where=on),
            Target("seconds until the end", END, end, None),
        ]

    return Exercise(
        name="a skip connection",
        question=(
            f"Three ranks, 1F1B with {MICROBATCHES} micro-batches, messages of {MESSAGE:,} B, "
            f"activations of {KEPT:,} B. Stage 2 shall read the output of stage 0 as well as that "
            f"of stage 1, in its forward, and send stage 0 the gradient of it. Write the program, "
            f"so that check() has nothing to say: 0 actions lack an input, all ranks send at most "
            f"{SENT:,} B, no rank holds more than {FULLEST:,} B, and with a forward of 1 s and a "
            f"backward of 2 s it ends within {END} s."
        ),
        form="a program, or its text, for example str(td.program(td.schedule('1f1b', 3, 4)))",
        hints=(
            "Which parts change? Only those of rank 0 and rank 2: nothing new goes through rank 1.",
            "An output may be sent twice, to two ranks. Whoever receives it names it as its sender "
            "does, gives it a size in its line 'of rank', and reads it.",
            "Backward the last rank makes two gradients, dx2 and one more, and sends each to the "
            "rank that made what it is the gradient of; rank 0 receives both before it begins.",
        ),
        measured=measure,
        drawn=_reads_drawn,
        read=_program,
    )


def _program(answer: Any) -> Program | None:
    if not isinstance(answer, str | Program):
        return None
    program = (Program.from_text(answer) if isinstance(answer, str) else answer).check()
    if program.ranks != 3:
        raise ProgramError(f"the pipeline has 3 ranks, this program has {program.ranks}")
    return program


def _sizes(program: Program) -> None:
    """Refuse buffers of other sizes than the task's."""
    for rank in range(program.ranks):
        for name, nbytes in program.role(rank).nbytes.items():
            wanted = KEPT if name.startswith("kept") else MESSAGE
            if nbytes != wanted:
                raise ProgramError(f"{name} of rank {rank} has {nbytes:,} B; here {wanted:,} B")


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
    each = (f"{pair.replace(' ', f'.{m} ')}.{m}" for m in range(MICROBATCHES) for pair in NEEDED)
    return [(one, other) for one, other in map(str.split, each) if (one, other) not in reads]


def _action(at: LinePlace) -> str:
    return f"{at.rank}{getattr(at.instruction, 'kernel', ' ')[0].upper()}.{at.frame}"


@styled
def _reads_drawn(program: Program | None) -> draw.Figure:
    """Boxes for the actions of a micro-batch, an arrow from what is made to who reads it; what is
    needed and not read is red."""
    lacks = [] if program is None else _lacks(program)
    m = int(lacks[0][0].split(".")[1]) if lacks else 0
    lacking = {f"{one[:2]} {other[:2]}" for one, other in lacks if one.endswith(f".{m}")}
    note = "the pipeline as it is" if program is None else f"micro-batch {m} of your program"
    figure = canvas(2.6, f"Who reads what: {note}")
    axes, at = figure.subplots(), {}
    for x, action in enumerate(("0F", "1F", "2F", "2B", "1B", "0B")):
        at[action] = x, int(action[0])
        box = (x - 0.3, at[action][1] - 0.25, 0.6, 0.5)
        draw.box(axes, box, colour := FORWARD if "F" in action else BACKWARD)
        draw.text_in(axes, box, action, colour, 9)
        if any(pair.endswith(action) for pair in lacking):
            draw.mark_box(axes, box, action)
    for pair in CHAIN if program is None else NEEDED:
        (x0, y0), (x1, y1) = (at[action] for action in pair.split())
        skips, down, up = pair in SKIPS, y1 > y0, y1 < y0
        start = (
            x0 + 0.3 * (not down) - 0.1 * (skips and down),
            y0 + 0.25 * down + 0.12 * skips * up,
        )
        end = (x1 - 0.3 * (not up) + 0.1 * (skips and up), y1 + 0.25 * up + 0.12 * skips * down)
        colour = RED if pair in lacking else GREEN if skips else GREY
        look = {"linestyle": "--" if pair in lacking else "-", "gid": pair}
        bent = f"arc3,rad={0.3 * skips}"
        draw.arrow(axes, start, end, colour, connectionstyle=bent, **look)
    draw.bare(axes)
    draw.lanes(axes, [f"rank {rank}" for rank in range(3)])
    axes.set_xlim(-0.5, 5.5)
    words = {"read": GREY}
    if program is not None:
        words |= {"read, past a rank": GREEN, "needed and not read": RED}
    draw.legend(figure, [draw.line_entry(word, colour) for word, colour in words.items()])
    return figure
