"""spec.trainer: what the bundled trainer runs. `make crds` writes its dataclasses from these models."""

from __future__ import annotations

import json
from enum import StrEnum
from functools import cached_property
from typing import Annotated, Any

from pydantic import Field

from tfgpujob.api.base import PRESERVE, Model, NotNegative, ObjectName, Positive, Positive64, Text

Argument = Annotated[str, Field(max_length=16384)]
Layout = Annotated[str, Field(pattern=r"^(-|batch|model)(, ?(-|batch|model))*$", max_length=64)]
RequirementLine = Annotated[str, Field(min_length=1, max_length=16384, pattern=r"^[^\n\r]*$")]


class Mode(StrEnum):
    """spec.trainer.mode."""

    TRAIN = "train"
    PREDICT = "predict"


class Remainder(StrEnum):
    """spec.trainer.remainder."""

    STEP = "step"
    CARRY = "carry"
    DROP = "drop"


class Precision(StrEnum):
    """spec.trainer.precision: the names of Keras' dtype policies."""

    FLOAT32 = "float32"
    MIXED_BFLOAT16 = "mixed_bfloat16"
    MIXED_FLOAT16 = "mixed_float16"


class Jit(StrEnum):
    """spec.trainer.jit."""

    NONE = "none"
    REPLICA = "replica"


class AllReduce(StrEnum):
    """spec.trainer.allReduce."""

    FLOAT16 = "float16"


class Communication(StrEnum):
    """spec.trainer.communication: the names that TensorFlow has for them."""

    AUTO = "Auto"
    RING = "Ring"
    NCCL = "NCCL"
    HIERARCHICAL_COPY = "HierarchicalCopy"


class Shard(StrEnum):
    """spec.trainer.shard."""

    OPTIMIZER = "optimizer"


class Direction(StrEnum):
    """spec.trainer.best.mode."""

    MIN = "min"
    MAX = "max"


class ConfigMapCode(Model):
    """spec.trainer.code.configMap."""

    name: ObjectName
    """Name of the ConfigMap, in the job's namespace."""
    paths: (
        Annotated[
            dict[Text, Annotated[str, Field(pattern=r"^\w[-\w.]*(/\w[-\w.]*)*$", max_length=1024)]],
            Field(min_length=1, max_length=1000),
        ]
        | None
    ) = None
    """The file below /code of each key, for code in folders: `{net..layers.py: net/layers.py}`. Keys that are not
    listed are left out. Absent: each key is a file of that name. `tfgpu submit train.py --with net` sets it."""


class VolumeCode(Model):
    """spec.trainer.code.volume."""

    claim_name: ObjectName
    """Name of the PersistentVolumeClaim, in the job's namespace."""
    sub_path: Text | None = None
    """Folder in the volume that holds the code. The whole volume if absent."""


class GitCode(Model):
    """spec.trainer.code.git."""

    url: Annotated[str, Field(pattern=r"^https?://[^/@\s]+/\S+$", max_length=1024)]
    """The repository, by https or http, without credentials in it."""
    revision: Text
    """The full hash of a commit, so that all pods of all attempts run the same code: `git rev-parse HEAD` prints it.
    `tfgpu submit` also accepts a branch or a tag, and replaces it by the commit."""
    path: Annotated[str, Field(pattern=r"^[-\w.]+(/[-\w.]+)*$", max_length=1024)] | None = None
    """Folder of the repository that becomes /code. All of it if absent."""
    secret_name: ObjectName | None = None
    """A Secret in the job's namespace with `username` and `password`, for instance a token, and `ca.crt` if the
    server's certificate is of a private authority. Only the init container that fetches the code sees it."""


class CodeSource(Model):
    """spec.trainer.code."""

    config_map: ConfigMapCode | None = None
    """A ConfigMap, one key a file, up to 1 MiB together; for instance from `kubectl create configmap my-code
    --from-file=train.py`."""
    volume: VolumeCode | None = None
    """A volume that already holds the code. It is mounted read-only."""
    image: Text | None = None
    """An image with the code in its folder /code. It is mounted as a volume where every node supports it, else copied
    before training starts, for which it must contain `cp`."""
    git: GitCode | None = None
    """One commit of a git repository, fetched before training starts by the bundled trainer's image, or one made from
    it. No submodules, no LFS."""


class Models(Model):
    """spec.trainer.models."""

    image: Text
    """An image with models in its folder /models. It is mounted as a volume where every node supports it, else copied
    before training starts, for which it must contain `cp`."""


class Output(Model):
    """spec.trainer.output."""

    directory: Annotated[str, Field(pattern=r"^/", max_length=1024)] = "/output"
    """Absolute path in the container."""
    claim: ObjectName | None = None
    """PersistentVolumeClaim to mount there. Absent: an emptyDir, which is lost with its pod, so that a restarted
    pod starts from the beginning. With several workers, all of them must be able to mount it."""
    sub_path: Annotated[str, Field(pattern=r"^\w[-\w.]*(/\w[-\w.]*)*$", max_length=1024)] | None = None
    """Folder in the claim that is mounted, so that several jobs can share a claim. Two jobs in one folder continue from
    each other's checkpoints. The whole claim if absent."""
    store: Annotated[str, Field(pattern=r"^[a-z][a-z0-9]*://.", max_length=1024)] | None = None
    """URL of an object store that gets a copy of the checkpoints and of the model, such as s3://bucket/folder. A pod
    without a checkpoint continues from there. Under mode predict, predictions/ is written there and not to directory.
    Credentials are environment variables of the container."""


class Checkpoint(Model):
    """spec.trainer.checkpoint."""

    every_steps: Positive | None = None
    """Save after this many optimizer steps."""
    every_epochs: Positive | None = None
    """Save after this many epochs. May be combined with everySteps and everySeconds."""
    every_seconds: Positive | None = None
    """Save after the first step that ends this many seconds after the last save, unless that is still being written:
    training never waits for storage. May be combined with everySteps and everyEpochs."""
    keep: Positive = 3
    """Number of saves to keep; older ones are deleted."""


class Evaluate(Model):
    """spec.trainer.evaluate."""

    every_epochs: Positive | None = None
    """Evaluate after this many epochs. Absent: only at the end of training."""
    every_steps: Positive | None = None
    """Evaluate after this many optimizer steps. May be combined with everyEpochs."""


class Best(Model):
    """spec.trainer.best."""

    monitor: Text | None = None
    """The metric of evaluations during training that decides which is best: loss, or the name of a metric. Absent:
    none."""
    mode: Annotated[Direction | None, Field(strict=False)] = None
    """Whether min or max is best. Absent: min; only a loss may leave it out."""
    min_delta: Annotated[float, Field(ge=0)] = 0.0
    """A smaller change than this is no improvement."""
    patience: Positive | None = None
    """Stop training after this many evaluations in a row without improvement. Absent: train to the end."""
    restore: bool = True
    """End with the best weights, which are then tested and exported; false: with the last. The best are kept in best/
    in the output directory either way."""


class Cache(StrEnum):
    """spec.trainer.data.cache."""

    NONE = "none"
    MEMORY = "memory"
    DISK = "disk"


class Data(Model):
    """spec.trainer.data."""

    cache: Annotated[Cache, Field(strict=False)] = Cache.NONE
    """Keep rows that were read and parsed, before they are shuffled and augmented: in the container's memory, or on
    disk in its temporary directory."""
    shuffle_window: Positive = 10000
    """Rows within which TFRecord files, datasets and generators are shuffled. Arrays, image folders and CSV files are
    always shuffled as a whole."""
    steps_per_epoch: Positive | None = None
    """Steps that count as an epoch of data without an end: a generator, or a dataset that repeats."""
    parallel_reads: Positive = 4
    """Batches that are read and parsed at the same time, ahead of training."""


class Export(Model):
    """spec.trainer.export."""

    saved_model: bool = False
    """Also write saved_model/, the form that TensorFlow Serving loads."""
    tflite: bool | None = None
    """Also write model.tflite, for LiteRT (TensorFlow Lite) on phones and small devices."""
    int8: bool | None = None
    """Also write model.int8.keras, by Keras' quantize("int8"): the weights of Dense, EinsumDense and Embedding layers
    are 8-bit integers."""


class Mesh(Model):
    """spec.trainer.mesh."""

    batch: Positive | None = None
    """Devices that share the rows of a batch. Absent: all that the other axis leaves."""
    model: Positive | None = None
    """Devices that share each weight. Absent: 1."""


class Predict(Model):
    """spec.trainer.predict."""

    model: Text | None = None
    """What to load under mode predict: a .keras file or a SavedModel folder. Absent: the entrypoint's model(), with
    the weights that initialWeights names."""
    part_rows: Positive = 8192
    """Rows of data("predict") in one output file, which is also the unit of work that is repeated after a restart."""


class Profile(Model):
    """spec.trainer.profile."""

    steps: Annotated[list[Positive], Field(min_length=2, max_length=2)] | None = None
    """First and last optimizer step to profile, such as [5, 8]. Absent: no profile."""
    worker: NotNegative = 0
    """Which worker is profiled; one at a time."""


class Watchdog(Model):
    """spec.trainer.watchdog."""

    startup_seconds: Positive = 600
    """Seconds from the start of the process to the end of its first training step."""
    step_seconds: Positive = 300
    """Seconds that one step, evaluation batch or save may take."""


class TrainerSpec(Model):
    """spec.trainer."""

    entrypoint: Annotated[str, Field(min_length=1, max_length=1024)]
    """What defines model() and data(): a built-in (digits, wide_and_deep), a dotted module, or a file under /code
    (train.py). Or a file that is a plain script and calls fit() itself."""
    params: Annotated[dict[str, Any], Field(json_schema_extra={PRESERVE: True})] = Field(default_factory=dict)
    """Keyword arguments for model() and data(), each given to the function that has a parameter of that name."""
    args: Annotated[list[Argument], Field(min_length=1, max_length=1000)] | None = None
    """What a plain script finds in sys.argv after its own name, such as [--epochs, "5"]."""
    mode: Annotated[Mode, Field(strict=False)] = Mode.TRAIN
    """train, or predict: a model on each GPU computes the rows of data("predict"), which all workers share among
    them. Workers don't talk to each other: one that fails starts again alone and skips what is already written."""
    predict: Predict = Field(default_factory=Predict)
    """What mode predict computes, and in what pieces."""
    global_batch_size: Positive | None = None
    """Examples per optimizer step over all workers together. It does not change with the number of workers. Under
    mode predict: rows that one GPU computes at a time. Only a plain script leaves it out: there it is the batch size
    of fit()."""
    accumulate: Positive | None = None
    """Micro-batches that each optimizer step is split into, so that only one micro-batch's activations must fit into
    memory; the result is the same. Absent: what the compiled optimizer's gradient_accumulation_steps says, or 1."""
    precision: Annotated[Precision | None, Field(strict=False)] = None
    """Type of the computation: float32, mixed_bfloat16 (fast on recent GPUs, and safe) or mixed_float16 (with a loss
    scale; steps that overflow are skipped and counted). Weights stay float32. Absent: the model's own policy."""
    jit: Annotated[Jit | None, Field(strict=False)] = None
    """replica: compile the forward and backward pass of each replica, and the update where a worker has one replica,
    with XLA; none: no XLA. The all-reduce is not compiled, nor is a short last batch of an epoch. Absent: as Keras'
    fit(), with XLA on GPUs if all layers support it, and without on CPUs, which are faster without."""
    all_reduce: Annotated[AllReduce | None, Field(strict=False)] = None
    """float16: send gradients between replicas as float16, each scaled so that it cannot overflow. Half the bytes, for
    an error of at most 0.05 % of the summed magnitudes for each replica. Absent: in their own type, exactly."""
    communication: Annotated[Communication | None, Field(strict=False)] = None
    """How replicas add up their gradients. Under MultiWorkerMirrored Ring, by TensorFlow itself over gRPC, or NCCL,
    which needs a GPU for each process; under Mirrored NCCL, or HierarchicalCopy between the GPUs of one machine. Auto,
    also if absent: TensorFlow chooses. Without effect where there is one replica."""
    recompute: Annotated[list[Text], Field(min_length=1, max_length=100)] | None = None
    """Names of layers, such as block*, whose activations are dropped in the forward pass and computed again in the
    backward pass: less memory for more time, with the same result."""
    placement: Annotated[dict[str, NotNegative], Field(max_length=100)] | None = None
    """Which GPU of the worker computes which layers, by name, such as {encoder_*: 0, decoder_*: 1}. For a model that
    is too big for one GPU; with OneDevice only."""
    mesh: Mesh | None = None
    """Divide the model of a plain script over the GPUs of all workers, which are batch × model devices, as
    keras.distribution does, without a line of code."""
    layout: Annotated[dict[Text, Layout], Field(max_length=100)] | None = None
    """Which axes of which weights are divided, by a regular expression for the weight's whole path, such as
    {".*up/kernel": "-, model"}; `-` is an axis that is not. Absent: Dense, EinsumDense, attention heads and embeddings
    as Megatron divides them, where the axis of the mesh divides their size."""
    shard: Annotated[Shard | None, Field(strict=False)] = None
    """optimizer: divide the optimizer's state over the devices that share a batch. Each keeps a part of it."""
    class_weights: Annotated[dict[str, Annotated[float, Field(ge=0)]], Field(max_length=10000)] | None = None
    """Weight of the examples of each class while training, such as {"0": 1, "1": 8}. Classes left out weigh 1."""
    epochs: Positive | None = None
    """Passes over the training data. Set either epochs or steps; under mode predict, and for a plain
    script, neither."""
    steps: Positive64 | None = None
    """Optimizer steps. Set either epochs or steps; under mode predict, and for a plain
    script, neither."""
    seed: NotNegative = 0
    """Seed of all randomness: initial weights, dropout, the order of the data."""
    deterministic: bool = False
    """Use only operations that give bit-equal results on every run. Slower, and some operations refuse it."""
    allow_coupled_loss: bool | None = None
    """Let accumulate cut batches of a loss that couples their rows, such as one with in-batch negatives: each
    micro-batch then has a loss of its own, and the result is another one than without accumulate."""
    remainder: Annotated[Remainder | None, Field(strict=False)] = None
    """What happens to examples at the end of an epoch that are fewer than the replicas. step: they are a step of their
    own, as in Keras, also if absent. carry: they are added to the last whole batch. drop: they are left out."""
    data: Data = Field(default_factory=Data)
    """How the data that data() returns is read: cached, shuffled, read ahead."""
    profile: Profile = Field(default_factory=Profile)
    """Steps to profile with TensorFlow's profiler; the profile is written to profile/ in the output directory."""
    initial_weights: Text | None = None
    """What a new run starts from: a .keras or .weights.h5 file, a checkpoint, or the output directory of another run. A
    run that resumes uses its own checkpoint instead. Under mode predict: the weights to use."""
    new_layers: Annotated[list[Text], Field(min_length=1, max_length=100)] | None = None
    """Names of layers, such as head*, that keep the weights that model() gives them although initialWeights is set: a
    new head on an old model. All other layers must be in it, with the same names and shapes."""
    export: Export = Field(default_factory=Export)
    """Files to write at the end in addition to model.keras."""
    code: CodeSource | None = None
    """Source of your code, which is mounted at /code. Set exactly one. Not needed for a built-in, or when the image has
    the code."""
    models: Models | None = None
    """Source of the models that initialWeights or predict.model name; they are mounted at /models."""
    requirements: Annotated[list[RequirementLine], Field(min_length=1, max_length=1000)] | None = None
    """Packages that pip installs before the program starts, each a line of a requirements file: `einops==0.8.1`, with
    `--hash` to verify it; `-r requirements.txt`, a file of the code; `--no-index` and `--find-links wheels` for a
    folder of it. The versions of TensorFlow, Keras and their dependencies stay those of the image. The output directory
    keeps what was installed for the next attempt."""
    output: Output = Field(default_factory=Output)
    """Where results go: checkpoints/, model.keras and run.json."""
    checkpoint: Checkpoint = Field(default_factory=Checkpoint)
    """When to save, and how many saves to keep. By default after every epoch. A save is complete: weights, optimizer,
    random seeds and the position in the data, so that training resumes exactly."""
    evaluate: Evaluate = Field(default_factory=Evaluate)
    """When to evaluate on data("validation") while training."""
    best: Best = Field(default_factory=Best)
    """Which evaluation is the best, so that its weights are kept, and when to stop early."""
    log_every_seconds: Positive = 10
    """Seconds between two progress lines in the log."""
    watchdog: Watchdog = Field(default_factory=Watchdog)
    """How long a process may make no progress before it exits, to be started again."""

    @property
    def may_be_script(self) -> bool:
        """True if the entrypoint is a file, which may be a plain script; only its source shows which."""
        return self.entrypoint.endswith(".py")

    @property
    def has_images(self) -> bool:
        """True if code or models come from an image of their own."""
        return self.models is not None or (self.code is not None and self.code.image is not None)

    @cached_property
    def as_json(self) -> str:
        """The config file of the trainer."""
        return json.dumps(self.model_dump(mode="json", by_alias=True, exclude_none=True), separators=(",", ":"))
