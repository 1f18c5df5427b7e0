"""Pages about jobs, as a browser or a terminal shows them: pure functions of what was read, and a thin server."""
