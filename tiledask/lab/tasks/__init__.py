"""Tasks that judge answers: puzzles, the idle-time ladder, and the walkthroughs' exercises.

    task = load_puzzle("24-on-4")     # or a level, or a JSON file of one's own
    task = fewest_bytes(...)          # an exercise is a function of what it is about
    task.draw(answer)
    task.check(answer)                # a Result: quiet if not attempted
    task.hint()                       # one more hint than before
    task = idle_level(3, seed=7)      # the idle-time ladder: fresh numbers, and task.working()
    task.check(answer).require()      # raises unless every target is met

No answer is stored; the best one is found by trying or by proof.
"""

from tiledask.lab.exercises import (
    balanced_heads,
    blocks_of,
    borrowed_rows,
    cheapest_choreography,
    copies_that_fit,
    fastest_within,
    faulty_run,
    fewest_bytes,
    fewest_devices,
    fewest_gpus,
    fewest_sums,
    four_products,
    gpipe_ahead,
    hybrid_lenet,
    layer_too_large,
    levels_at_fault,
    repair,
    repaired_kernel,
    retuned,
    run_blocks,
    scale_rule,
    shorten_bubble,
    split_each_layer,
    step_traffic,
    tasks_on_slots,
    tile_within,
    uneven_copies,
    until_layerwise_moves_more,
)
from tiledask.lab.idle_ladder import IdleLevel, LevelWorking, idle_level
from tiledask.lab.judging import Exercise, Hint, JudgedTask, Result, Target, UnsolvedError
from tiledask.lab.puzzles import (
    Puzzle,
    load_puzzle,
    puzzle_levels,
    puzzle_names,
)

__all__ = [
    "Exercise",
    "Hint",
    "IdleLevel",
    "JudgedTask",
    "LevelWorking",
    "Puzzle",
    "Result",
    "Target",
    "UnsolvedError",
    "balanced_heads",
    "blocks_of",
    "borrowed_rows",
    "cheapest_choreography",
    "copies_that_fit",
    "fastest_within",
    "faulty_run",
    "fewest_bytes",
    "fewest_devices",
    "fewest_gpus",
    "fewest_sums",
    "four_products",
    "gpipe_ahead",
    "hybrid_lenet",
    "idle_level",
    "layer_too_large",
    "levels_at_fault",
    "load_puzzle",
    "puzzle_levels",
    "puzzle_names",
    "repair",
    "repaired_kernel",
    "retuned",
    "run_blocks",
    "scale_rule",
    "shorten_bubble",
    "split_each_layer",
    "step_traffic",
    "tasks_on_slots",
    "tile_within",
    "uneven_copies",
    "until_layerwise_moves_more",
]
