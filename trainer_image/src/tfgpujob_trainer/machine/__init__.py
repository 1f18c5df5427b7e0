"""The limits of the machine and the container, and what a process uses of them: read from /proc and cgroups."""
