"""What a plan starts from: a model, its weights, a cluster, a recipe, a layout."""
