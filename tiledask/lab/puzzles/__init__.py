"""Puzzles: a task with numbers to reach, a drawing, and a check that works every answer out.

    puzzle = load_puzzle("24-on-4")   # or a level, or a JSON file of one's own
    answer = None                     # '1-2 | 3-4 | ...'
    puzzle.draw(answer)
    puzzle.check(answer)              # a Result: true once every target is met
    puzzle.check(answer).require()    # raises until then

No answer is stored: rules, simulation and the exact best judge whatever is written.

puzzle            a puzzle from its file, and its check
kind, inputs      what a kind of puzzle is, and readers of its inputs; one kind in each of
                  partitions, orders, choices, compositions
figures, sketch   answers drawn: figures, and letters for a terminal
"""

from tiledask.lab.puzzles.puzzle import Puzzle, load_puzzle, puzzle_levels, puzzle_names

__all__ = ["Puzzle", "load_puzzle", "puzzle_levels", "puzzle_names"]
