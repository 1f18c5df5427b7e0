"""spec.trainer.code: exactly one source, and for git a full commit hash."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from tfgpujob.api.invalid import Invalid
from tfgpujob.api.rules.rule import Cel, Job, JobRule, Refusal, rules_of
from tfgpujob_contract.trainer_config import GitCode

_COMMIT: Final = re.compile("[0-9a-f]{40}")
_SOURCES = "configMap, volume, image and git"
_WHICH_COMMIT = "write the 40 digits that git rev-parse prints, or use tfgpu submit, which looks a branch or tag up"


def _code(job: Job) -> Iterator[Invalid]:
    code = job.spec.trainer.code if job.spec.trainer else None
    if code is None:
        return
    sources = {"configMap": code.config_map, "volume": code.volume, "image": code.image, "git": code.git}
    given = [name for name, source in sources.items() if source is not None]
    if len(given) != 1:
        problem = f"{' and '.join(given)} are set together" if given else "names no source"
        yield Invalid("spec.trainer.code", problem, f"name exactly one of {_SOURCES}")


def _git(job: Job) -> GitCode | None:
    return job.spec.trainer.code.git if job.spec.trainer and job.spec.trainer.code else None


RULES = rules_of(
    JobRule(
        "trainer.code-source",
        _code,
        cel=(
            Cel(
                at="spec.trainer.code",
                rule="(has(self.configMap) ? 1 : 0) + (has(self.volume) ? 1 : 0) + (has(self.image) ? 1 : 0) + "
                "(has(self.git) ? 1 : 0) == 1",
                message=f"name exactly one of {_SOURCES}",
            ),
        ),
    ),
    Refusal(
        "trainer.git-revision",
        of=_git,
        breaks=lambda git: not _COMMIT.fullmatch(git.revision),
        at="spec.trainer.code.git",
        field="revision",
        cel="self.revision.matches('^[0-9a-f]{40}$')",
        shows=lambda git: repr(git.revision),
        problem="is no full commit",
        fix=_WHICH_COMMIT,
    ),
    Refusal(
        "trainer.git-credentials",
        of=_git,
        breaks=lambda git: git.secret_name is not None and not git.url.startswith("https://"),
        at="spec.trainer.code.git",
        cel="!has(self.secretName) || self.url.startsWith('https://')",
        problem="would send the Secret's password over http, unencrypted",
        fix="use https, or remove secretName",
    ),
)
