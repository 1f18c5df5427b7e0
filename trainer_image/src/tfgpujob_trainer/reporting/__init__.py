"""What a training process tells others: its supervisor, GET /progress, the log, TensorBoard and run.json."""
