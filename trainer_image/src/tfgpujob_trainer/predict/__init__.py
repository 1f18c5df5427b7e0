"""Mode predict: a model on each device computes parts of the rows, without any collective."""
