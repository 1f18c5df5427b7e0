"""What a step of ParameterServer asks of the parameter server for an embedding; prints one JSON line.

Run as a process of its own: it becomes the chief of a cluster whose servers are in the same process.
"""

import json
import os

import keras
import numpy as np
import tensorflow as tf
from tests.trainer.harness import free_ports

from tfgpujob_trainer.model.batch import batch_spec
from tfgpujob_trainer.model.build import build
from tfgpujob_trainer.model.loss import stop_keras_scaling_by_replicas
from tfgpujob_trainer.model.optimizer_takeover import take_over_optimizer
from tfgpujob_trainer.parameter_server.step import ServerSteps

ROWS = 1000


def cluster():
    """One worker and one parameter server, here; the TF_CONFIG of their chief."""
    chief, worker, ps = (f"127.0.0.1:{port}" for port in free_ports(3))
    spec = tf.train.ClusterSpec({"worker": [worker], "ps": [ps]})
    servers = [tf.distribute.Server(spec, job_name=role, task_index=0, protocol="grpc") for role in ("worker", "ps")]
    full = {"chief": [chief], "worker": [worker], "ps": [ps]}
    os.environ["TF_CONFIG"] = json.dumps({"cluster": full, "task": {"type": "chief", "index": 0}})
    return servers


class Overriding(keras.optimizers.SGD):
    """Leaves a mark in the graph where Keras' train_step would call it."""

    def apply_gradients(self, grads_and_vars):
        tf.atan(tf.zeros([]))
        return super().apply_gradients(grads_and_vars)


def ancestors(op):
    found: set[tf.Operation] = set()
    new = [op]
    while new:
        last = new.pop()
        before = {*(tensor.op for tensor in last.inputs), *last.control_inputs} - found
        found |= before
        new += before
    return found


def main():
    servers = cluster()
    strategy = tf.distribute.ParameterServerStrategy(tf.distribute.cluster_resolver.TFConfigClusterResolver())
    stop_keras_scaling_by_replicas()
    head = (np.zeros((2, 3), "int64"), np.zeros((2,), "int64"))
    with strategy.scope():
        inputs = keras.Input((3,), dtype="int64")
        hidden = keras.layers.Flatten()(keras.layers.Embedding(ROWS, 4)(inputs))
        model = keras.Model(inputs, keras.layers.Dense(2)(hidden))
        model.compile(Overriding(0.1, global_clipnorm=1.0, weight_decay=0.01), "sparse_categorical_crossentropy")
        model.optimizer.exclude_from_weight_decay(var_names=["embeddings"])
        takeover = take_over_optimizer(model, "ParameterServer")
        build(model, head, "ParameterServer")
        steps = ServerSteps(strategy, model, takeover, batch_spec(head), "")
    graph = steps.train.get_concrete_function().graph
    nodes = graph.as_graph_def().node
    whole = [
        op.name
        for op in graph.get_operations()
        for output in op.outputs
        if output.dtype.is_floating and output.shape.rank and output.shape[0] == ROWS
    ]
    writes = [op for op in graph.get_operations() if op.type.startswith(("Assign", "ResourceScatter"))]
    early = [op.name for op in writes if not any(before.type == "PyFunc" for before in ancestors(op))]
    ops = sorted({node.op for node in nodes})
    print(json.dumps({"ops": ops, "whole tables": whole, "writes": len(writes), "early": early}), flush=True)
    del servers
    os._exit(0)


main()
