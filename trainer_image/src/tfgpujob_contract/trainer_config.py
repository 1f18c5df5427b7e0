"""spec.trainer: what the bundled trainer runs, field by field.

The operator makes the CRD and its checks from these dataclasses, with their bounds and docstrings; the trainer reads
its config file into them.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Annotated, Any, Final, Literal, NamedTuple

MAX_INT32: Final = 2**31 - 1
MAX_INT64: Final = 2**63 - 1


class Bounds(NamedTuple):
    """Bounds of a value. The operator checks them, and the CRD has them; the trainer is given what has passed them."""

    ge: float | None = None
    le: float | None = None
    min_length: int | None = None
    max_length: int | None = None
    pattern: str | None = None


Positive = Annotated[int, Bounds(ge=1, le=MAX_INT32)]
NotNegative = Annotated[int, Bounds(ge=0, le=MAX_INT32)]
Positive64 = Annotated[int, Bounds(ge=1, le=MAX_INT64)]
Text = Annotated[str, Bounds(min_length=1, max_length=1024)]
ObjectName = Annotated[str, Bounds(min_length=1, max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")]
"""The name of another object in the job's namespace."""
Argument = Annotated[str, Bounds(max_length=16384)]
Layout = Annotated[str, Bounds(pattern=r"^(-|batch|model)(, ?(-|batch|model))*$", max_length=64)]
RequirementLine = Annotated[str, Bounds(min_length=1, max_length=16384, pattern=r"^[^\n\r]*$")]


@dataclass(frozen=True, kw_only=True, slots=True)
class ConfigMapCode:
    """spec.trainer.code.configMap."""

    name: ObjectName
    """Name of the ConfigMap, in the job's namespace."""
    paths: (
        Annotated[
            Mapping[Text, Annotated[str, Bounds(pattern=r"^\w[-\w.]*(/\w[-\w.]*)*$", max_length=1024)]],
            Bounds(min_length=1, max_length=1000),
        ]
        | None
    ) = None
    """The file below /code of each key, for code in folders: `{net..layers.py: net/layers.py}`. Keys that are not
    listed are left out. Absent: each key is a file of that name. `tfgpu submit train.py --with net` sets it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class VolumeCode:
    """spec.trainer.code.volume."""

    claim_name: ObjectName
    """Name of the PersistentVolumeClaim, in the job's namespace."""
    sub_path: Text | None = None
    """Folder in the volume that holds the code. The whole volume if absent."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GitCode:
    """spec.trainer.code.git."""

    url: Annotated[str, Bounds(pattern=r"^https?://[^/@\s]+/\S+$", max_length=1024)]
    """The repository, by https or http, without credentials in it."""
    revision: Text
    """The full hash of a commit, so that all pods of all attempts run the same code: `git rev-parse HEAD` prints it.
    `tfgpu submit` also accepts a branch or a tag, and replaces it by the commit."""
    path: Annotated[str, Bounds(pattern=r"^[-\w.]+(/[-\w.]+)*$", max_length=1024)] | None = None
    """Folder of the repository that becomes /code. All of it if absent."""
    secret_name: ObjectName | None = None
    """A Secret in the job's namespace with `username` and `password`, for instance a token, and `ca.crt` if the
    server's certificate is of a private authority. Only the init container that fetches the code sees it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Code:
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Models:
    """spec.trainer.models."""

    image: Text
    """An image with models in its folder /models. It is mounted as a volume where every node supports it, else copied
    before training starts, for which it must contain `cp`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Output:
    """spec.trainer.output."""

    directory: Annotated[str, Bounds(pattern=r"^/", max_length=1024)] = "/output"
    """Absolute path in the container."""
    claim: ObjectName | None = None
    """PersistentVolumeClaim to mount there. Absent: an emptyDir, which is lost with its pod, so that a restarted
    pod starts from the beginning. With several workers, all of them must be able to mount it."""
    sub_path: Annotated[str, Bounds(pattern=r"^\w[-\w.]*(/\w[-\w.]*)*$", max_length=1024)] | None = None
    """Folder in the claim that is mounted, so that several jobs can share a claim. Two jobs in one folder continue from
    each other's checkpoints. The whole claim if absent."""
    store: Annotated[str, Bounds(pattern=r"^[a-z][a-z0-9]*://.", max_length=1024)] | None = None
    """URL of an object store that gets a copy of the checkpoints and of the model, such as s3://bucket/folder. A pod
    without a checkpoint continues from there. Under mode predict, predictions/ is written there and not to directory.
    Credentials are environment variables of the container."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluate:
    """spec.trainer.evaluate."""

    every_epochs: Positive | None = None
    """Evaluate after this many epochs. Absent: only at the end of training."""
    every_steps: Positive | None = None
    """Evaluate after this many optimizer steps. May be combined with everyEpochs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Best:
    """spec.trainer.best."""

    monitor: Text | None = None
    """The metric of evaluations during training that decides which is best: loss, or the name of a metric. Absent:
    none."""
    mode: Literal["min", "max"] | None = None
    """Whether min or max is best. Absent: min; only a loss may leave it out."""
    min_delta: Annotated[float, Bounds(ge=0)] = 0.0
    """A smaller change than this is no improvement."""
    patience: Positive | None = None
    """Stop training after this many evaluations in a row without improvement. Absent: train to the end."""
    restore: bool = True
    """End with the best weights, which are then tested and exported; false: with the last. The best are kept in best/
    in the output directory either way."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Data:
    """spec.trainer.data."""

    cache: Literal["none", "memory", "disk"] = "none"
    """Keep rows that were read and parsed, before they are shuffled and augmented: in the container's memory, or on
    disk in its temporary directory."""
    shuffle_window: Positive = 10000
    """Rows within which TFRecord files, datasets and generators are shuffled. Arrays, image folders and CSV files are
    always shuffled as a whole."""
    steps_per_epoch: Positive | None = None
    """Steps that count as an epoch of data without an end: a generator, or a dataset that repeats."""
    parallel_reads: Positive = 4
    """Batches that are read and parsed at the same time, ahead of training."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Export:
    """spec.trainer.export."""

    saved_model: bool = False
    """Also write saved_model/, the form that TensorFlow Serving loads."""
    tflite: bool | None = None
    """Also write model.tflite, for LiteRT (TensorFlow Lite) on phones and small devices."""
    int8: bool | None = None
    """Also write model.int8.keras, by Keras' quantize("int8"): the weights of Dense, EinsumDense and Embedding layers
    are 8-bit integers."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Mesh:
    """spec.trainer.mesh."""

    batch: Positive | None = None
    """Devices that share the rows of a batch. Absent: all that the other axis leaves."""
    model: Positive | None = None
    """Devices that share each weight. Absent: 1."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Predict:
    """spec.trainer.predict."""

    model: Text | None = None
    """What to load under mode predict: a .keras file or a SavedModel folder. Absent: the entrypoint's model(), with
    the weights that initialWeights names."""
    part_rows: Positive = 8192
    """Rows of data("predict") in one output file, which is also the unit of work that is repeated after a restart."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Profile:
    """spec.trainer.profile."""

    steps: Annotated[tuple[Positive, ...], Bounds(min_length=2, max_length=2)] | None = None
    """First and last optimizer step to profile, such as [5, 8]. Absent: no profile."""
    worker: NotNegative = 0
    """Which worker is profiled; one at a time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Watchdog:
    """spec.trainer.watchdog."""

    startup_seconds: Positive = 600
    """Seconds from the start of the process to the end of its first training step."""
    step_seconds: Positive = 300
    """Seconds that one step, evaluation batch or save may take."""


@dataclass(frozen=True, kw_only=True)
class TrainerConfig:
    """spec.trainer."""

    entrypoint: Annotated[str, Bounds(min_length=1, max_length=1024)]
    """What defines model() and data(): a built-in (digits, wide_and_deep), a dotted module, or a file under /code
    (train.py). Or a file that is a plain script and calls fit() itself."""
    params: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments for model() and data(), each given to the function that has a parameter of that name."""
    args: Annotated[tuple[Argument, ...], Bounds(min_length=1, max_length=1000)] | None = None
    """What a plain script finds in sys.argv after its own name, such as [--epochs, "5"]."""
    mode: Literal["train", "predict"] = "train"
    """train, or predict: a model on each GPU computes the rows of data("predict"), which all workers share among
    them. Workers don't talk to each other: one that fails starts again alone and skips what is already written."""
    predict: Predict = field(default_factory=Predict)
    """What mode predict computes, and in what pieces."""
    global_batch_size: Positive | None = None
    """Examples per optimizer step over all workers together. It does not change with the number of workers. Under
    mode predict: rows that one GPU computes at a time. Only a plain script leaves it out: there it is the batch size
    of fit()."""
    accumulate: Positive | None = None
    """Micro-batches that each optimizer step is split into, so that only one micro-batch's activations must fit into
    memory; the result is the same. Absent: what the compiled optimizer's gradient_accumulation_steps says, or 1."""
    precision: Literal["float32", "mixed_bfloat16", "mixed_float16"] | None = None
    """Type of the computation: float32, mixed_bfloat16 (fast on recent GPUs, and safe) or mixed_float16 (with a loss
    scale; steps that overflow are skipped and counted). Weights stay float32. Absent: the model's own policy."""
    jit: Literal["none", "replica"] | None = None
    """replica: compile the forward and backward pass of each replica, and the update where a worker has one replica,
    with XLA; none: no XLA. The all-reduce is not compiled, nor is a short last batch of an epoch. Absent: as Keras'
    fit(), with XLA on GPUs if all layers support it, and without on CPUs, which are faster without."""
    all_reduce: Literal["float16"] | None = None
    """float16: send gradients between replicas as float16, each scaled so that it cannot overflow. Half the bytes, for
    an error of at most 0.05 % of the summed magnitudes for each replica. Absent: in their own type, exactly."""
    communication: Literal["Auto", "Ring", "NCCL", "HierarchicalCopy"] | None = None
    """How replicas add up their gradients. Under MultiWorkerMirrored Ring, by TensorFlow itself over gRPC, or NCCL,
    which needs a GPU for each process; under Mirrored NCCL, or HierarchicalCopy between the GPUs of one machine. Auto,
    also if absent: TensorFlow chooses. Without effect where there is one replica."""
    recompute: Annotated[tuple[Text, ...], Bounds(min_length=1, max_length=100)] | None = None
    """Names of layers, such as block*, whose activations are dropped in the forward pass and computed again in the
    backward pass: less memory for more time, with the same result."""
    placement: Annotated[Mapping[str, NotNegative], Bounds(max_length=100)] | None = None
    """Which GPU of the worker computes which layers, by name, such as {encoder_*: 0, decoder_*: 1}. For a model that
    is too big for one GPU; with OneDevice only."""
    mesh: Mesh | None = None
    """Divide the model over the GPUs of all workers, which are batch × model devices, as keras.distribution does,
    without a line of code."""
    layout: Annotated[Mapping[Text, Layout], Bounds(max_length=100)] | None = None
    """Which axes of which weights are divided, by a regular expression for the weight's whole path, such as
    {".*up/kernel": "-, model"}; `-` is an axis that is not. Absent: Dense, EinsumDense, attention heads and embeddings
    as Megatron divides them, where the axis of the mesh divides their size."""
    shard: Literal["optimizer"] | None = None
    """optimizer: divide the optimizer's state over the devices that share a batch. Each keeps a part of it."""
    class_weights: Annotated[Mapping[str, Annotated[float, Bounds(ge=0)]], Bounds(max_length=10000)] | None = None
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
    remainder: Literal["step", "carry", "drop"] | None = None
    """What happens to examples at the end of an epoch that are fewer than the replicas. step: they are a step of their
    own, as in Keras, also if absent. carry: they are added to the last whole batch. drop: they are left out."""
    data: Data = field(default_factory=Data)
    """How the data that data() returns is read: cached, shuffled, read ahead."""
    profile: Profile = field(default_factory=Profile)
    """Steps to profile with TensorFlow's profiler; the profile is written to profile/ in the output directory."""
    initial_weights: Text | None = None
    """What a new run starts from: a .keras or .weights.h5 file, a checkpoint, or the output directory of another run. A
    run that resumes uses its own checkpoint instead. Under mode predict: the weights to use."""
    new_layers: Annotated[tuple[Text, ...], Bounds(min_length=1, max_length=100)] | None = None
    """Names of layers, such as head*, that keep the weights that model() gives them although initialWeights is set: a
    new head on an old model. All other layers must be in it, with the same names and shapes."""
    export: Export = field(default_factory=Export)
    """Files to write at the end in addition to model.keras."""
    code: Code | None = None
    """Source of your code, which is mounted at /code. Set exactly one. Not needed for a built-in, or when the image has
    the code."""
    models: Models | None = None
    """Source of the models that initialWeights or predict.model name; they are mounted at /models."""
    requirements: Annotated[tuple[RequirementLine, ...], Bounds(min_length=1, max_length=1000)] | None = None
    """Packages that pip installs before the program starts, each a line of a requirements file: `einops==0.8.1`, with
    `--hash` to verify it; `-r requirements.txt`, a file of the code; `--no-index` and `--find-links wheels` for a
    folder of it. The versions of TensorFlow, Keras and their dependencies stay those of the image. The output directory
    keeps what was installed for the next attempt."""
    output: Output = field(default_factory=Output)
    """Where results go: checkpoints/, model.keras and run.json."""
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    """When to save, and how many saves to keep. By default after every epoch. A save is complete: weights, optimizer,
    random seeds and the position in the data, so that training resumes exactly."""
    evaluate: Evaluate = field(default_factory=Evaluate)
    """When to evaluate on data("validation") while training."""
    best: Best = field(default_factory=Best)
    """Which evaluation is the best, so that its weights are kept, and when to stop early."""
    log_every_seconds: Positive = 10
    """Seconds between two progress lines in the log."""
    watchdog: Watchdog = field(default_factory=Watchdog)
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
        return json.dumps(to_json(self, lambda _, value: value is not None), separators=(",", ":"))


def to_json(part: Any, keeps: Callable[[dataclasses.Field[Any], Any], bool] = lambda *_: True) -> Any:
    """The JSON value of a part of spec.trainer with the API's names, of those fields that `keeps` is true for."""
    if dataclasses.is_dataclass(part):
        values = ((field, getattr(part, field.name)) for field in dataclasses.fields(part))
        return {camel(field.name): to_json(value, keeps) for field, value in values if keeps(field, value)}
    if isinstance(part, tuple):
        return list(part)
    return dict(part) if isinstance(part, Mapping) else part


@cache
def camel(name: str) -> str:
    """`global_batch_size` as the API writes it: `globalBatchSize`."""
    head, *rest = name.split("_")
    return head + "".join(part.title() for part in rest)
