"""How each technique is supported by each strategy, in one table: exact, per micro-batch, asynchronous, bounded or
refused.

The trainer's refusals and notes, the page in the documentation, and the choice of tests use it. Exact means: the
weights are those of plain Keras on one device with the same global batches. Per micro-batch means: those of one device
with the same micro-batches, whatever the number of replicas. Asynchronous means: each step by itself is exact, but its
gradient may be of weights that are some steps old. Bounded means: each step's gradient differs from the exact one by at
most what the reason says.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tfgpujob_contract.strategies import STRATEGIES, Traits
from tfgpujob_trainer.contract.exits import ConfigError


@dataclass(frozen=True, slots=True)
class Support:
    """Support of a technique by a strategy; `reason` and `fix` complete the sentence that names a layer or class."""

    kind: Literal["exact", "per micro-batch", "asynchronous", "bounded", "per worker", "refused"]
    reason: str = ""
    fix: str = ""


EXACT = Support("exact")
ASYNCHRONOUS = Support("asynchronous")
_IN_STEP = "is only done where all workers take their steps together, not under ParameterServer"
_NEEDS_STEP = Support("refused", _IN_STEP, "remove it, or use MultiWorkerMirrored")
_ONE_PIECE = Support("refused", _IN_STEP, "remove it and lower globalBatchSize: a step is one batch on one worker")
_OTHER_FLOAT = Support("refused", _IN_STEP, "use mixed_bfloat16 or float32")
_NEEDS_END = Support("refused", _IN_STEP, "remove it: return data with an end, so that a batch has a number")
_MICRO_BATCH = Support(
    "per micro-batch", "batch statistics are each micro-batch's own, as with Keras' gradient_accumulation_steps"
)
_HALF = Support(
    "bounded",
    "a gradient's element is off by at most 2**-11 of the sum of the replicas' magnitudes, times their number; sparse "
    "gradients, losses and metrics are exact",
)
_NO_ALL_REDUCE = Support("refused", _IN_STEP, "remove it: there is no all-reduce")
_STATEFUL = Support(
    "refused",
    "has stateful=True: a row continues the same row of the batch before, and each replica has a part of a batch",
    "remove it, or use OneDevice",
)
_DRAWN = Support(
    "per worker",
    "each replica draws numbers of its own, and a resumed run draws others",
    "draw with keras.random or a tf.random.Generator, whose state is in the checkpoints",
)
_WHOLE = Support("refused", "works with strategy OneDevice only", "use OneDevice, or remove placement")


def _everywhere(support: Support, on_servers: Support = _NEEDS_STEP) -> dict[str, Support]:
    return _alone_and_together(support, support, on_servers)


def _alone_and_together(alone: Support, together: Support, on_servers: Support = _NEEDS_STEP) -> dict[str, Support]:
    def of(strategy: Traits) -> Support:
        if strategy.asynchronous:
            return on_servers
        return alone if strategy.single_replica else together

    return {name: of(its) for name, its in STRATEGIES.items()}


def _refused(reason: str, fix: str) -> dict[str, Support]:
    refused = Support("refused", reason, fix)
    return _everywhere(refused, refused)


SUPPORT: dict[str, dict[str, Support]] = {
    "global_clipnorm": _everywhere(EXACT, ASYNCHRONOUS),
    "clipnorm": _everywhere(EXACT, ASYNCHRONOUS),
    "clipvalue": _everywhere(EXACT, ASYNCHRONOUS),
    "steps_per_execution": _everywhere(EXACT, ASYNCHRONOUS),
    "learning-rate schedule": _everywhere(EXACT, ASYNCHRONOUS),
    "learning-rate warm-up": _everywhere(EXACT, ASYNCHRONOUS),
    "weight decay with exclusion": _everywhere(EXACT, ASYNCHRONOUS),
    "moving averages of the weights (EMA)": _everywhere(EXACT),
    "gradient accumulation": _everywhere(EXACT, _ONE_PIECE),
    "mixed_bfloat16": _everywhere(EXACT, ASYNCHRONOUS),
    "mixed_float16": _everywhere(EXACT, _OTHER_FLOAT),
    "sample weights": _everywhere(EXACT, ASYNCHRONOUS),
    "mean_with_sample_weight": _everywhere(EXACT, ASYNCHRONOUS),
    "masks": _everywhere(EXACT, ASYNCHRONOUS),
    "several outputs": _everywhere(EXACT, ASYNCHRONOUS),
    "weight and activity regularisers": _everywhere(EXACT, ASYNCHRONOUS),
    "a summed loss": _everywhere(EXACT, ASYNCHRONOUS),
    "a loss of one number": _everywhere(EXACT, ASYNCHRONOUS),
    "own compute_loss": _everywhere(EXACT, ASYNCHRONOUS),
    "a loss that couples rows": _alone_and_together(
        EXACT,
        Support("per worker", "couples the rows of a batch: each replica's is that of its own rows"),
        ASYNCHRONOUS,
    ),
    "frozen layers": _everywhere(EXACT, ASYNCHRONOUS),
    "sparse gradients of embeddings": _everywhere(EXACT, ASYNCHRONOUS),
    "class weights": _everywhere(EXACT, ASYNCHRONOUS),
    "recompute": _everywhere(EXACT),
    "jit: replica": _everywhere(EXACT),
    "allReduce: float16": _alone_and_together(EXACT, _HALF, _NO_ALL_REDUCE),
    "deterministic": _everywhere(EXACT),
    "a profile": _everywhere(EXACT),
    "data without an end": _everywhere(EXACT, _NEEDS_END),
    "synchronized BatchNormalization": _everywhere(EXACT),
    "BatchNormalization": _alone_and_together(
        EXACT,
        Support(
            "per worker",
            "batch statistics are each replica's own",
            "BatchNormalization(synchronized=True) makes them those of the global batch",
        ),
        Support("per worker", "of two workers that update the moving statistics at once, one may overwrite the other"),
    ),
    "BatchNormalization with accumulation": _alone_and_together(
        _MICRO_BATCH,
        Support(
            "per worker",
            "batch statistics are each replica's own in each micro-batch",
            "BatchNormalization(synchronized=True) makes them those of the micro-batch on all replicas",
        ),
    ),
    "synchronized BatchNormalization with accumulation": _everywhere(_MICRO_BATCH),
    "state of your own layers": _everywhere(
        EXACT, Support("per worker", "of two workers that update it at once, one may overwrite the other")
    ),
    "Dropout": _alone_and_together(
        EXACT,
        Support("per worker", "every replica draws masks of its own"),
        Support("per worker", "two workers at once may draw the same masks"),
    ),
    "tf.random": _everywhere(_DRAWN, _DRAWN),
    "jit of synchronized BatchNormalization": _alone_and_together(
        EXACT, Support("refused", "has a collective, which XLA does not compile here", "set jit: none")
    ),
    "recompute of synchronized BatchNormalization": _alone_and_together(
        EXACT, Support("refused", "has a collective, which is not run twice", "leave it out of trainer.recompute")
    ),
    "placement": _alone_and_together(EXACT, _WHOLE, _WHOLE),
    "own train_step": _alone_and_together(
        EXACT,
        Support(
            "per worker",
            "takes each replica's rows by themselves, and its gradients are averaged over all rows",
            "a loss that is a mean over rows, without random numbers or batch statistics, is exact",
        ),
        Support(
            "refused",
            "overrides train_step, in which workers, who don't wait here, would overwrite each other's metrics",
            "use MultiWorkerMirrored, override compute_loss instead, or remove spec.trainer: it is your own program",
        ),
    ),
    "run_eagerly": _refused("is compiled with run_eagerly=True", "remove it from compile()"),
    "a stateful RNN": _alone_and_together(EXACT, _STATEFUL, _STATEFUL),
    "an unreduced loss": _refused("has reduction='none'", "use reduction='sum_over_batch_size' or 'sum'"),
    "a metric of one number for a batch": _alone_and_together(
        EXACT,
        Support(
            "per worker",
            "is one number for a batch, and each replica's for its own rows counts alike",
            "let it return a number for each row",
        ),
        ASYNCHRONOUS,
    ),
    "a metric that is no sum": _refused(
        "is not a sum that starts at zero", "use a metric whose state is added up, such as keras.metrics.Mean"
    ),
}


def require(technique: str, strategy: str, who: str) -> list[str]:
    """A note for people if the technique is per worker, none if exact; raises ConfigError if refused."""
    support = SUPPORT[technique][strategy]
    if support.kind == "refused":
        raise ConfigError(f"{who} {support.reason}", support.fix)
    if not support.reason:
        return []
    return [f"{who}: {support.reason}{f'; {support.fix}' if support.fix else ''}"]


def markdown() -> str:
    """The table as the documentation shows it."""
    lines = ["| technique | " + " | ".join(STRATEGIES) + " |", "|---" * (len(STRATEGIES) + 1) + "|"]
    notes: list[str] = []
    for technique, row in SUPPORT.items():
        lines.append(f"| {technique} | {' | '.join(row[name].kind for name in STRATEGIES)} |")
        reasons = dict.fromkeys(f"{v.reason}. Fix: {v.fix}" if v.fix else v.reason for v in row.values() if v.reason)
        notes += [f"- {technique}: {reason}." for reason in reasons]
    return "\n".join([*lines, "", *notes])


if __name__ == "__main__":
    print(markdown())
