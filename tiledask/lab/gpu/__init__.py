"""`make gpu`: all that a GPU can tell, part after part, each in a process of its own.

    python -m tiledask.lab.gpu [--minutes M] [--only PART,PART] [--out DIR] [--resume FILE]

command  ask for the GPU, plan, run, leave a record with its page
part     what a part is, and the notes it takes
parts    machine, kernels, speed, product, fit, train, tests: a module for each subject
record   one JSON per device: every measurement, as it ends
runner   which parts fit into the minutes; a process for each, ended at its limit
process  one process of a part until nothing of it is left: child within it, leftover behind it
page     the record as one page that a person reads; advice on what fails
"""
