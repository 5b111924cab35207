"""What people look at: tables of checks, figures, tasks that are judged, the page.

check            a quantity predicted, simulated and measured, its rule, and tables of them
plots            matplotlib figures: pipelines, planning, products, training
tour             runs nbs/tour.ipynb and leaves a page of it
dashboard        tiledask's page in the Dask dashboard, and the same page as a file
tasks            puzzles, exercises and the idle ladder: questions, judges, hints, stars, drawings
quantities       numbers and words as people type them
course           the course's questions by number, worked out and run
precision        half precision, and how far two losses may drift apart
commands         the commands of `tiledask`, their options and what they print
doctor           what this machine has and lacks
claims, sweep    tables of checks, one subject each; of schedules
learner          predictions and scores, and the learner's copies of the notebooks
classroom        sheets to print, and grades
studies          comparisons at one call: claims, schedules, kernels, trainings
accuracy         published numbers, by their id
"""
