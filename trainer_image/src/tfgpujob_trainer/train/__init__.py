"""A training run under any strategy: build, train, evaluate, save, export. loop.py is the synchronous loop."""
