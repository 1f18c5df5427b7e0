"""The user's compiled Keras model: read, taken over, or rewritten for several replicas."""
