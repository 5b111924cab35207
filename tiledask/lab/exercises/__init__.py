"""The walkthroughs' exercises: each draws an answer, runs it or works it out, and judges it.

    exercise = tasks_on_slots(cluster)
    answer = None
    exercise.draw(answer)
    exercise.check(answer)             # a Result, as of the puzzles: quiet if not attempted
    exercise.check(answer).require()   # raises unless every target is met

No answer is stored. What the answer reaches is measured on the cluster or computed by the planner;
the best possible is found by trying everything.
"""
