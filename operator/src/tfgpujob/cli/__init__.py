"""`tfgpu`, also `kubectl tfgpu`: the command line. One verb a file in `verbs/`; what they share stands here."""
