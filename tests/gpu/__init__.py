"""`make gpu`: what the trainer does on a real GPU, one JSON line a result (docs/gpu.md)."""
