"""How fast the operator is, beside a direct client and kube's own Job controller. `make bench-operator`."""
