"""Errors of Keras 3 for programs that work in Keras 2: several workers, and removed names.

Most existing programs were written for Keras 2. tests/unit/core/status/test_diagnosis.py has the texts.
"""

from __future__ import annotations

import re

from tfgpujob.core.status.limits import last_lines

_LEGACY = "install tf-keras in the image and set TF_USE_LEGACY_KERAS=1"
_WORKERS = (
    "It is Keras 3's own fit() that fails on several workers (keras#20585). Let the bundled trainer run the script as "
    f"it is: name it in spec.trainer.entrypoint, and remove the command. Or {_LEGACY}."
)
_SERVERS = (
    "It is Keras 3's own fit() that fails under ParameterServer. Let the bundled trainer run the script as it is: name "
    f"it in spec.trainer.entrypoint, and remove the command. Or {_LEGACY}."
)
_GONE = f"The program was written for Keras 2, and Keras 3 runs it. To leave it as it is {_LEGACY}."

_KNOWN = (
    (r"convert a value \(PerReplica:|unsupported type \(<class '[\w.]*\bPerReplica'>\)", _WORKERS),
    # The result of a custom train_step(), summed over workers as if it had rows.
    (r"\A(?>[\s\S]*?keras/src/)[\s\S]*Invalid reduction dimension 0 for input with 0 dimensions", _WORKERS),
    (r"ClusterCoordinator\.create_per_worker_dataset|'ShardedVariable' object has no attribute", _SERVERS),
    (r"object has no attribute 'reset_states'|keras\.optimizers\.legacy` is not supported in Keras 3", _GONE),
    (r"Argument\(s\) not recognized: \{'lr':|No module named '(tensorflow\.)?keras\.", _GONE),
    (r"filepath provided must end in `\.(keras|weights\.h5)`", _GONE),
)
_PATTERNS = tuple((re.compile(text), action) for text, action in _KNOWN)


def action(said: str) -> str:
    """The fix for the Keras 3 error at the end of a log; empty if it is none of these."""
    end = last_lines(said)
    return next((action for pattern, action in _PATTERNS if pattern.search(end)), "")
