"""A training run, whatever its strategy: built, trained, evaluated, saved, exported. loop.py: the synchronous loop."""
