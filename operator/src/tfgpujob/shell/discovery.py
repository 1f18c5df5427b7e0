"""Discovery of gang schedulers, resource claims and Kueue from the API server's resource lists, at start."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Final

from tfgpujob.core.observed.gang import GANG_SCHEDULERS
from tfgpujob.core.observed.snapshot import DEVICE_TEMPLATES, WORKLOADS, Kind
from tfgpujob.kube.errors import ApiError
from tfgpujob.shell.settings import Settings

logger = logging.getLogger(__name__)

RETRY_SECONDS: Final = 2.0
Serves = Callable[[Kind], Awaitable[bool]]


async def with_gangs(settings: Settings, serves: Serves) -> Settings:
    """The settings with those of GANG_BACKENDS that are installed, each with the newest served version of its pod
    group.

    Retries until the API server answers: without the answer a job would start without its gang.
    """
    found = [(gang, await _newest(GANG_SCHEDULERS[gang].kinds, serves)) for gang in settings.gang_backends]
    gangs = tuple((gang, kind) for gang, kind in found if kind is not None)
    for gang, kind in found:
        if kind is None:
            hint = "install it and restart the operator, or take it out of gang.backends"
            logger.warning("this cluster serves no pod groups of a gang scheduler", extra={"gang": gang, "hint": hint})
        else:
            logger.info("gang scheduler found", extra={"gang": gang, "kind": kind})
    return replace(settings, config=replace(settings.config, gangs=gangs))


async def with_devices(settings: Settings, serves: Serves) -> Settings:
    """The settings with the newest served version of ResourceClaimTemplate: an older server would drop the claim from a
    pod.

    It is requested at every start, so an operator without the right to it works without claims."""

    async def may_serve(kind: Kind) -> bool:
        try:
            return await serves(kind)
        except ApiError as error:
            if error.code != 403:
                raise
            hint = "jobs can't have spec.gpu.claim: bind its ServiceAccount to the ClusterRole system:discovery"
            logger.warning("may not ask what is served", extra={"kind": kind, "hint": hint})
            return False

    kind = await _newest(tuple(DEVICE_TEMPLATES), may_serve)
    if kind is not None:
        logger.info("dynamic resource allocation found", extra={"kind": kind})
    return replace(settings, config=replace(settings.config, device_template=kind))


async def with_kueue(settings: Settings, serves: Serves) -> Settings:
    """The settings with the newest served version of Workload, if Kueue is enabled. Retries as `with_gangs`: a job must
    not start without its queue."""
    if not settings.config.kueue_enabled:
        return settings
    kind = await _newest(WORKLOADS, serves)
    if kind is None:
        hint = "install Kueue and restart the operator, or turn kueue.enabled off: jobs that name a queue wait"
        logger.warning("this cluster serves no Workloads of Kueue", extra={"hint": hint})
    else:
        logger.info("Kueue found", extra={"kind": kind})
    return replace(settings, config=replace(settings.config, kueue=kind))


async def _newest(kinds: Sequence[Kind], serves: Serves) -> Kind | None:
    for kind in kinds:
        while True:
            try:
                if await serves(kind):
                    return kind
                break
            except ApiError as error:
                logger.warning("cannot ask what is served", extra={"kind": kind, "error": str(error)})
            await asyncio.sleep(RETRY_SECONDS)
    return None
