"""Checkpoints: written, published, copied to an object store, restored; and what a run starts from without one."""
