"""`make recovery`: the cost of a killed process for a job, in place and, for comparison, with new processes."""
