"""This task in its cluster: devices, the tf.distribute strategy, small collectives, SIGTERM, deadlines."""
