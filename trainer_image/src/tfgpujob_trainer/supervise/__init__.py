"""The parent process: starts the training processes, watches them, and explains how they ended. No TensorFlow."""
