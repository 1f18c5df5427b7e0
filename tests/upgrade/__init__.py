"""Jobs through an upgrade of the operator and back, N-1 -> N -> N-1."""
