"""What the operator and the trainer agree on: each name, table and form that both sides read. Standard library only."""

__version__ = "0.1.0"
