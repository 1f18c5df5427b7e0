"""Every rule that spans fields. Rules about a single field are types and bounds of the models."""

from __future__ import annotations

from tfgpujob.api.rules import (
    access,
    batch,
    claim,
    code,
    communication,
    gpu,
    image,
    manager,
    mesh,
    name,
    output,
    own_program,
    placement,
    predict,
    release,
    roles,
    servers,
    spares,
    template,
    tf_config,
    trainer,
    volumes,
)
from tfgpujob.api.rules.rule import JobRule, NameRule

NAME_RULES: tuple[NameRule, ...] = name.RULES
JOB_RULES: tuple[JobRule, ...] = (
    *roles.RULES,
    *own_program.RULES,
    *gpu.RULES,
    *claim.RULES,
    *trainer.RULES,
    *code.RULES,
    *output.RULES,
    *batch.RULES,
    *predict.RULES,
    *servers.RULES,
    *communication.RULES,
    *image.RULES,
    *spares.RULES,
    *placement.RULES,
    *template.RULES,
    *volumes.RULES,
    *access.RULES,
    *manager.RULES,
    *mesh.RULES,
    *tf_config.RULES,
    *release.RELEASE_LIMITS,
)
