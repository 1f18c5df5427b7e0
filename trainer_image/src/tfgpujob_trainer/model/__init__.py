"""The user's compiled Keras model: what it asks for is taken over, and read or rewritten for several replicas."""
