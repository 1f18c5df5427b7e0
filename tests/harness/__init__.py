"""The proof harness: an API server in memory, virtual time, faults, scenarios and promises."""
