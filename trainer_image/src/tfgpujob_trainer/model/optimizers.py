"""Finds optimizers where models keep them, and switches off their own all-reduce."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras

from tfgpujob_trainer.model.variables import held_in


def optimizers_of(model: keras.Model) -> dict[str, keras.optimizers.Optimizer]:
    """All that may train the model, by where they are, such as `optimizer` or `parts/0/optimizer`.

    A train_step of the model's own may use any that the model or its layers hold, in lists and dicts too, or that
    another optimizer wraps. Keras' own uses the compiled one.
    """
    own = type(model).train_step is not keras.Model.train_step
    return optimizers_in({"optimizer": getattr(model, "optimizer", None), **(vars(model) if own else {})})


def optimizers_in(held: Mapping[str, Any]) -> dict[str, keras.optimizers.Optimizer]:
    """Those among these objects and in what they hold."""
    return held_in(held, keras.optimizers.Optimizer)


def build_all(optimizer: keras.optimizers.Optimizer, variables: list[Any]) -> None:
    """Create the slots of an optimizer and of those that it wraps: what a step creates is in no checkpoint."""
    for one in optimizers_in({"optimizer": optimizer}).values():
        if not one.built:
            one.build(variables)


def leave_reduction(optimizers: Mapping[str, keras.optimizers.Optimizer]) -> None:
    """Switch off their own all-reduce: they are given gradients that are summed over all replicas."""
    for optimizer in optimizers.values():
        if not hasattr(optimizer, "_all_reduce_sum_gradients"):
            raise RuntimeError("Keras' optimizer has no _all_reduce_sum_gradients: this trainer needs Keras 3.15.1")
        optimizer._all_reduce_sum_gradients = lambda pairs: pairs  # noqa: SLF001 (private: Keras is pinned)
