"""This task among the others: devices, the tf.distribute strategy, small collectives, SIGTERM, deadlines."""
