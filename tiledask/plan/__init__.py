"""Arithmetic on frozen values: no arrays on devices, no Dask. Each imports from those below it.

choosing     all layouts searched, what binds, critique
fitting      bytes: the ledger, verdicts, fixes
timing       seconds of a step
diagnosis    from a trace to the plan behind it
program      every rank's instructions: counted, timed, weighed, checked
pipelines    schedules, checked and simulated; splitting: layers into stages
products     one matrix product over many ranks; collectives: who sends what to whom
inputs       a model, a cluster, a recipe, a layout
"""
