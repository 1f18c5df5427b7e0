"""The server in memory against a real one: the same calls, the same transcript."""
