"""How fast and how large the operator's page and history are."""
