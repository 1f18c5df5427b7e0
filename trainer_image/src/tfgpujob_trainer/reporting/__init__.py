"""Reports of a training process: to its supervisor, by GET /progress, in the log, in TensorBoard and in run.json."""
