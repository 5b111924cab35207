"""Layouts in the words of the programs that people run, and back.

exchange.py    export_config, import_config: the table of frameworks
  megatron.py    Megatron-LM's flags
  torchtitan.py  its TOML
  deepspeed.py   its JSON
  job.py         what is trained, and how; what all of them share
"""
