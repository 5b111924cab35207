"""The commands, each with its options and what becomes of them; `tiledask.cli` finds them by name.

options  options as rows of a text
request  the request that `fit` and `plan` share, and what it costs
fit      what `fit` takes: a layout described or imported, a model alone
one_layout  does one layout fit, how fast is it, what does it move
best     no layout: the best ones of a cluster, or what would fit instead
plan     every layout of a cluster, ranked; the fewest devices
partition, idle, matmul  a cut, an order, a product: as they are typed
lists    what is shipped
answers  questions and puzzles
course   the tour, the doctor, walkthroughs, sheets and grades
"""
