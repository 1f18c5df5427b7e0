"""Plain training scripts, run as they are: fit(), evaluate() and predict() are taken over by the trainer's own loop."""
