"""The synchronous training step: forward, backward, one all-reduce, and the optimizer."""
