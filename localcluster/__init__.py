"""A real Kubernetes cluster on one machine, with no Docker and no image registry; see docs/local-cluster.md."""
