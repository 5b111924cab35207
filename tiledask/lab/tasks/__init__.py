"""Tasks that judge answers: puzzles, the idle-time ladder, and the walkthroughs' exercises.

    task = load_puzzle("24-on-4")     # or a level, or a JSON file of one's own
    task = fewest_bytes(...)          # an exercise is a function of what it is about
    task.draw(answer)
    task.check(answer)                # a Result: quiet if not attempted
    task.hint()                       # one more hint than before
    task = idle_level(3, seed=7)      # the idle-time ladder: fresh numbers, and task.working()
    task.check(answer).require()      # raises unless every target is met

No answer is stored; the best one is found by trying or by proof. terminal has the words of
`tiledask puzzle`.
"""

from importlib import import_module

from tiledask.extras import needed_for

_NAMES = {
    "judging": "Exercise Hint JudgedTask Result Target UnsolvedError",
    "puzzles": "Puzzle load_puzzle puzzle_levels puzzle_names",
    "idle_ladder": "IdleLevel LevelWorking idle_level",
    "exercises.planning.four_terms": "four_terms",
    "exercises.planning.layer_too_large": "layer_too_large",
    "exercises.planning.layouts": "copies_that_fit fastest_within fewest_devices fewest_gpus",
    "exercises.products.kernel_repair": "repaired_kernel",
    "exercises.products.levels": "four_products levels_at_fault run_blocks",
    "exercises.products.placements": "cheapest_choreography fewest_bytes",
    "exercises.products.shifts": "cannon_by_shifts",
    "exercises.products.tiles": "block_and_tile tile_within",
    "exercises.skip_connection": "skip_connection",
    "exercises.slots": "tasks_on_slots",
    "exercises.split_layers.convolutions": "borrowed_rows until_layerwise_moves_more",
    "exercises.split_layers.layers": "balanced_heads f_and_g smoothed_loss",
    "exercises.split_layers.lenet_hybrids": "hybrid_lenet",
    "exercises.split_layers.partial_sums": "fewest_sums",
    "exercises.training.counted": "ranks_on_hosts save_intervals step_traffic",
    "exercises.training.faulty_run": "faulty_run",
    "exercises.training.written": "scale_rule uneven_copies",
}
"""Module of `tiledask.lab` -> what it has: loaded when named, for puzzles need no Dask."""
_HOME = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"td.tasks has no {name!r}; it has {', '.join(__all__)}")
    with needed_for(f"td.tasks.{name}"):
        value = getattr(import_module(f"tiledask.lab.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return list(__all__)
