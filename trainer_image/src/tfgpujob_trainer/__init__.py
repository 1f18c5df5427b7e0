"""Trains, evaluates and checkpoints a plain Keras module under a TensorFlow distribution strategy."""

__version__ = "0.1.0"
