"""What becomes of the commands: run_NAME for each; data/commands.txt has their options and help.

options  options as rows of that text
request  the request that `fit` and `plan` share, typed or imported, and what it costs
fit      a layout: does it fit, how fast is it, what does it move; no layout: the best ones, all
         of a cluster ranked, the fewest devices
partition, idle, matmul  a cut, an order, a product: as they are typed
lists    what is shipped
course   questions and puzzles, the tour, the doctor, notebooks, sheets and grades
"""
