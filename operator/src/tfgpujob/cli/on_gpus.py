"""How a job behaves on a number of free GPUs, in one or two sentences. Pure, without a cluster."""

from __future__ import annotations

from collections.abc import Iterator

from tfgpujob.api import JobSpec, gpus, processes, replicas_in_sync
from tfgpujob.api.strategies import Work
from tfgpujob.cli.behaviour import batch
from tfgpujob.core.observed.plan import Plan, replica_specs
from tfgpujob.core.pods import in_place
from tfgpujob.names import Role
from tfgpujob.units import counted, duration
from tfgpujob_contract.pod import MAX_REPLICAS


def on_gpus(spec: JobSpec, plan: Plan, count: int) -> Iterator[tuple[str, str]]:
    """(topic, sentence). An evaluator is left out: no replica waits for it."""
    topic, specs, wanted = f"on {counted(count, 'GPU')}", replica_specs(spec), plan.counts.get(Role.WORKER, 0)
    each = gpus(spec, Role.WORKER, specs[Role.WORKER]) if wanted else 0
    others = sum(
        pods * gpus(spec, role, specs[role])
        for role, pods in plan.counts.items()
        if role not in {Role.WORKER, Role.EVALUATOR}
    )
    if not each:
        yield topic, f"Its workers ask for no GPU, and the rest for {others}."
        return
    fit = max(0, count - others) // each
    if fit >= wanted:
        yield topic, _all_fit(spec, wanted, fit, count - others - wanted * each)
    else:
        yield topic, _too_few(spec, wanted, fit, needs=others + wanted * each, least=others + _least(spec) * each)
        if spec.shrinks_after is not None and fit >= _least(spec):
            yield from ((topic, text) for text in _shares(spec, wanted, fit))


def _all_fit(spec: JobSpec, wanted: int, fit: int, left: int) -> str:
    worker = spec.replica_specs.worker
    most = (worker.max_replicas if worker is not None else None) or MAX_REPLICAS
    more = min(fit, most) - wanted if spec.elastic else 0
    raised = f" replicas may be raised to {wanted + more}." if more > 0 else ""
    verb = _verb(spec)
    who = f"The one worker {verb}s" if wanted == 1 else f"All {wanted} workers {verb}"
    return f"{who}; {counted(left, 'GPU')} {'is' if left == 1 else 'are'} left.{raised}"


def _too_few(spec: JobSpec, wanted: int, fit: int, *, needs: int, least: int) -> str:
    waits, verb = f"It needs {needs}, and waits until they are free", _verb(spec)
    if spec.shrinks_after is not None and fit >= _least(spec):
        return f"After {duration(spec.shrinks_after)} it {verb}s with {fit} of {counted(wanted, 'worker')}."
    if spec.elastic and fit < _least(spec):
        return f"It waits: with minReplicas, {counted(_least(spec), 'worker')}, it needs {least}."
    if spec.elastic:
        return f"{waits}. With runPolicy.elasticPolicy it would {verb} with {fit} of {counted(wanted, 'worker')}."
    able = not spec.traits.one_worker if spec.predicts else spec.traits.resizable
    possible = able and (spec.trainer is not None or in_place.supervises(spec, Role.WORKER)) and fit > 0
    hint = f" With minReplicas: {fit} and runPolicy.elasticPolicy it would {verb} with {fit}." if possible else ""
    return f"{waits}.{hint}"


def _shares(spec: JobSpec, wanted: int, fit: int) -> Iterator[str]:
    trainer, worker = spec.trainer, spec.replica_specs.worker
    if trainer is None or trainer.global_batch_size is None or worker is None:
        return
    if spec.predicts:
        yield "Each takes the next part that no other has, so that the rows are the same."
        return
    if spec.traits.work is Work.SYNCHRONOUS:
        of_a_worker = max(1, gpus(spec, Role.WORKER, worker), processes(spec, Role.WORKER, worker))
        replicas = replicas_in_sync(spec) - (wanted - fit) * of_a_worker
        yield f"Each step takes the same {batch(trainer.global_batch_size, trainer, replicas)}."
    else:
        yield "A step is the same batch on one worker; fewer of them are taken at a time."


def _verb(spec: JobSpec) -> str:
    return "predict" if spec.predicts else "train"


def _least(spec: JobSpec) -> int:
    return spec.replica_specs.least_workers
