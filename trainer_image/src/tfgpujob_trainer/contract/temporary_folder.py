"""A folder for temporary files, which Python and TensorFlow need."""

from __future__ import annotations

import tempfile

from tfgpujob_trainer.contract.exits import ConfigError


def check_temporary_folder() -> None:
    """Raise ConfigError if there is none: Python and TensorFlow, which need it, do not say so."""
    try:
        tempfile.gettempdir()
    except FileNotFoundError as error:
        fix = "mount an emptyDir at /tmp, which a container with readOnlyRootFilesystem needs"
        raise ConfigError("no folder for temporary files can be written to", fix) from error
