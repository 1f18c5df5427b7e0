"""Distributed TensorFlow on GPUs under Kubernetes: the TFGPUJob operator, its API and its tools."""

__version__ = "0.1.0"
