"""Layouts in the words of the programs that people run, and back.

exchange.py    export_config, import_config: the table of frameworks
  shell.py       the command of a script: words, variables, options
  megatron.py    Megatron-LM's flags
  torchtitan.py  its TOML
  deepspeed.py   its JSON
  trainer.py     what LLaMA-Factory, axolotl and commands of Hugging Face's trainer set; read alone
  verl.py        verl's commands, in the words of Megatron or of that trainer; read alone
  table.py       between our fields and their settings, by a table read both ways
"""
