"""What a pod is asked to do and how it answers: configuration, environment, strategies, refusals, exit codes.

Imports no TensorFlow: all of it is read, and what cannot be is refused, before a training process starts.
"""
