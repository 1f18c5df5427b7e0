"""The promises of the operator, kept on a real cluster: the local one, kind, or whatever KUBECONFIG names."""
