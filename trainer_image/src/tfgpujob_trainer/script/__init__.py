"""Plain training scripts, run unchanged: the trainer's own loop replaces fit(), evaluate() and predict()."""
