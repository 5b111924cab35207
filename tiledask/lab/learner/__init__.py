"""What a learner does: a copy of the notebooks, predictions that are kept and judged, a score.

copies    the learner's copies of nbs/: without outputs, solutions folded, never overwritten
start     JupyterLab on them: the contents; the first cluster opens the dashboard's page
guess     `td.predict`: what is expected before a run, and the row beside what came
kept      the files in which predictions outlive a kernel, and what they count
score     `td.score`: of this notebook, and of all; the contents page, with progress
field     the input field in JupyterLab (anywidget)
"""
