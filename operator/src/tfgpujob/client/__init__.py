"""TFGPUJobs from Python: submit, follow, read, stop.

    with Client() as client:
        client.submit(job)
        print(client.wait("digits", timeout_seconds=600).status.progress)

`AsyncClient` has the same methods as coroutines and asynchronous iterators.
"""

from tfgpujob.client.asynchronous import AsyncClient
from tfgpujob.client.errors import (
    ApiError,
    InvalidJobError,
    InvalidNameError,
    LocalRunError,
    NoClusterError,
    PodError,
    TensorBoardError,
)
from tfgpujob.client.gpu_check import GpuCheck
from tfgpujob.client.job import Job
from tfgpujob.client.logs import LogLine
from tfgpujob.client.synchronous import Client
from tfgpujob.client.tensorboard import TensorBoard
from tfgpujob.client.train import train
from tfgpujob.client.usage import ReplicaUsage, Usage
from tfgpujob.convert.code import CODE_LIMIT, code_map, job_of_file

__all__ = [
    "CODE_LIMIT",
    "ApiError",
    "AsyncClient",
    "Client",
    "GpuCheck",
    "InvalidJobError",
    "InvalidNameError",
    "Job",
    "LocalRunError",
    "LogLine",
    "NoClusterError",
    "PodError",
    "ReplicaUsage",
    "TensorBoard",
    "TensorBoardError",
    "Usage",
    "code_map",
    "job_of_file",
    "train",
]
