"""What a pod is configured to do, and how it reports: configuration, environment, strategies, refusals, exit codes.

Does not import TensorFlow: everything is read and checked before a training process starts.
"""
