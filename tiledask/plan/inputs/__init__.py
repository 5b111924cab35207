"""What a plan starts from: a model and its weights, a cluster, a recipe, a layout.

load.py reads models and clusters by name, size or file, hf_config.py a Hugging Face config.json (a
family is a row of data/families.json); run.py says which of all go together.
"""
