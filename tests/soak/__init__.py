"""Jobs run while operators, API server and etcd are killed, again and again. `make soak`."""
