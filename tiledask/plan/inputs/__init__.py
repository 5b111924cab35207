"""What a plan starts from: a model, its weights, a cluster, a recipe, a layout.

load.py         a model and a cluster, by shipped name, by its size or from a file
model.py        a model as a list of weights: its fields, and the rules that they obey
  kinds.py        its layers by kind: their weights, and what they keep and work out
  weights.py      the weights of a layer, one matrix, bias or norm at a time
  hf_config.py    a Hugging Face config.json as a model: a family is a row of data/families.json
hardware.py     devices, links and clusters
recipes.py      bytes per parameter, and which of them ZeRO shards
  framework_memory.py  what the framework behind a recipe holds beyond the arithmetic
layout.py       degrees of parallelism, micro-batches, schedule
run.py          a model, a layout and a sequence that can go together
"""
