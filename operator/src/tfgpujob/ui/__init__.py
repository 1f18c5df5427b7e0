"""Pages about jobs, for a browser or a terminal: pure functions of what was read, and a thin server."""
