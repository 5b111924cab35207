"""`make gpu`: all that a GPU can tell, part after part, each in a process of its own.

    python -m tiledask.lab.gpu [--minutes M] [--only PART,PART] [--out DIR] [--arrays numpy]

__main__  ask for the GPU, run the parts, leave a record with its page
part      what a part is, and the notes it takes
runner    one part in as many processes as it takes
page      the record as one page that a person reads
parts     kernels, speed, product, fit, train, tests: a module for each subject
contest   implementations of one product in turn, on the clock of a CPU or a GPU
"""
