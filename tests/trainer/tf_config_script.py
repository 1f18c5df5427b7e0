"""What a user's script does with its TF_CONFIG, by the strategy it asks for; prints one JSON line.

Run as a process of its own: strategies may be built once a process, and some of these never return.
"""

import json
import os
import sys

import tensorflow as tf


def resolve():
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    from tensorflow.python.distribute import multi_worker_util as util  # noqa: PLC0415 (private helpers)

    spec, role, index = resolver.cluster_spec(), resolver.task_type, resolver.task_id
    return {
        "role": role,
        "index": index,
        "is_chief": util.is_chief(spec, role, index),
        "worker_count": util.worker_count(spec, role),
        "id_in_cluster": util.id_in_cluster(spec, role, index),
    }


def multi_worker_mirrored():
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    return {"replicas": strategy.num_replicas_in_sync}


def servers():
    """Serve every task in SERVERS: a list of TF_CONFIG objects."""
    running = []
    for config in json.loads(os.environ["SERVERS"]):
        cluster = {
            role: {int(i): a for i, a in tasks.items()} if isinstance(tasks, dict) else tasks
            for role, tasks in config["cluster"].items()
        }
        task = config["task"]
        spec = tf.train.ClusterSpec(cluster)
        running.append(tf.distribute.Server(spec, job_name=task["type"], task_index=task["index"], protocol="grpc"))
    print(json.dumps({"serving": len(running)}), flush=True)
    running[0].join()


def parameter_server():
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        variables = [tf.Variable(0.0) for _ in range(2)]

    @tf.function
    def step():
        for variable in variables:
            variable.assign_add(1.0)

    for _ in range(20):
        coordinator.schedule(step)
    coordinator.join()
    return {"sums": [float(v.numpy()) for v in variables], "devices": sorted({v.device[:15] for v in variables})}


try:
    result = globals()[sys.argv[1]]()
except Exception as error:
    result = {"error": f"{type(error).__name__}: {error}"}
print(json.dumps(result), flush=True)
os._exit(0)
