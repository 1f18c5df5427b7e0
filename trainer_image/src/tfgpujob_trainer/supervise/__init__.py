"""The parent process: starts the training processes, watches them, and explains their end. Does not import
TensorFlow.
"""
