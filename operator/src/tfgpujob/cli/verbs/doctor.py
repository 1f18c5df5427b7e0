"""`tfgpu doctor`: problems of an installation, of this machine, or of the GPUs of a node."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Final

import click

from tfgpujob import __version__, names
from tfgpujob.api import crd
from tfgpujob.cli.cluster import cluster_options, connected
from tfgpujob.cli.options import output_option
from tfgpujob.cli.output import Format, coloured, data
from tfgpujob.cli.own_pods import once_it_works
from tfgpujob.cli.verbs import Heading
from tfgpujob.client import Client, GpuCheck, PodError
from tfgpujob.core.observed.gang import GANG_SCHEDULERS
from tfgpujob.core.observed.snapshot import POD_GROUPS, Object
from tfgpujob.describe.installation import Finding, Installation, examine
from tfgpujob.exits import CliError, Exit
from tfgpujob.kube import paths
from tfgpujob.kube.errors import MISSING, ApiError
from tfgpujob.local import doctor as machine
from tfgpujob.printable import printable

PLACE: Final = Heading.THIS_TOOL, 5

_OPERATOR: Final = {"labelSelector": "app.kubernetes.io/name=tfgpujob,app.kubernetes.io/component=operator"}
_DNS: Final = {"labelSelector": "k8s-app=kube-dns"}
_DEFINITION: Final = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{names.PLURAL}.{names.GROUP}"
_REVIEWS: Final = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
_NOT_MINE: Final = frozenset({401, 403, 404})
"""Not permitted, or not served: nothing to check."""
_NEEDS: Final = (
    ("create", "", "pods", ""),
    ("delete", "", "pods", ""),
    ("list", "", "pods", ""),
    ("create", "", "services", ""),
    ("create", "", "events", ""),
    ("list", names.GROUP, names.PLURAL, ""),
    ("update", names.GROUP, names.PLURAL, "status"),
)
_POLICIES: Final = tuple((verb, "networking.k8s.io", "networkpolicies", "") for verb in ("list", "create"))
"""Also needed if jobs get a NetworkPolicy each."""
_DEVICES: Final = tuple((verb, "resource.k8s.io", "resourceclaimtemplates", "") for verb in ("get", "create"))
"""Also needed if jobs may have GPUs by spec.gpu.claim."""
_CLAIMS: Final = tuple((verb, "", "persistentvolumeclaims", "") for verb in ("get", "create"))
"""Also needed if jobs may have volumeClaimTemplates."""
_KUEUE: Final = (
    *((verb, "kueue.x-k8s.io", "workloads", "") for verb in ("list", "create", "delete")),
    ("update", "kueue.x-k8s.io", "workloads", "status"),
)
"""Also needed if jobs wait in Kueue's queues."""


@click.command()
@click.option("--local", is_flag=True, help="This machine, for local runs.")
@click.option("--gpu", is_flag=False, flag_value=1, type=click.IntRange(1), metavar="[COUNT]", help="A node's GPUs.")
@click.option("--node", help="With --gpu: its hostname. [default: where the scheduler finds GPUs]")
@click.option("--image", help="With --gpu: the trainer's. [default: the operator's default for jobs]")
@click.option(
    "--timeout",
    "seconds",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    default=120,
    show_default=True,
    help="With --gpu: give up after this long.",
)
@output_option(Format.TABLE, Format.JSON)
@cluster_options
def command(
    *,
    local: bool,
    gpu: int | None,
    node: str | None,
    image: str | None,
    seconds: float,
    form: Format,
    context: str | None,
    namespace: str | None,
) -> int:
    """Report problems of the installation in the cluster, of this machine, or of the GPUs of a node, with the fix for
    each.

    What you may not read is skipped. A job is sent to your namespace as a server-side dry run. With --gpu, a pod in
    your namespace computes on one GPU, or COUNT of one node, for about ten seconds, and is deleted. Exit code 0 when
    nothing stops jobs from running.
    """
    if local and gpu:
        raise CliError("--local looks at this machine, and --gpu at a node", "use one of them")
    if local:
        problems = [Finding(what, fix) for what, fix in machine.examine(machine.look())]
        _show(problems, "this machine", form)
        return Exit.USAGE if problems else Exit.OK
    with connected(context, namespace) as client:
        if gpu:
            seen = _tried(client, image or _trainer_image(client), gpu, node, seconds)
            facts = seen.found or {}
            found: Sequence[Finding] = [Finding(**problem) for problem in facts["problems"]]
            if form is not Format.JSON:
                _show_gpus(seen.node, facts)
            _show(found, f"the GPUs of {seen.node}", form, {"node": seen.node, **facts})
        else:
            found = examine(_installation(client))
            _show(found, "the installation", form)
    return Exit.CLUSTER if any(finding.stops for finding in found) else Exit.OK


def _tried(client: Client, image: str, gpus: int, node: str | None, seconds: float) -> GpuCheck:
    """The result of the pod that computes on the GPUs."""
    with once_it_works(client.check_gpus(image=image, gpus=gpus, node=node, timeout_seconds=seconds)) as states:
        try:
            return next(states)
        except PodError as error:
            raise CliError(str(error), code=Exit.CLUSTER) from error


def _trainer_image(client: Client) -> str:
    """The image of jobs without an image of their own."""
    for deployment in _items(client, "/apis/apps/v1/deployments", _OPERATOR) or ():
        if image := _environment(deployment).get("TRAINER_IMAGE"):
            return image
    raise CliError("no operator is seen that says which image is the trainer's", "name one with --image", Exit.CLUSTER)


def _show_gpus(node: str, facts: Object) -> None:
    for gpu in facts.get("gpus") or ():
        memory = f"{gpu['memoryMiB']} MiB, {gpu['freeMiB']} of them free"
        click.echo(printable(f"{node}: {gpu['name']}, {memory}, driver {gpu['driver']}"))
    if "tensorflow" in facts:
        built = f"TensorFlow {facts['tensorflow']} for CUDA {facts['tensorflowCuda']}"
        click.echo(printable(f"{node}: {built}, the driver for {facts['driverCuda']}"))
    if facts.get("nccl"):
        click.echo(f"{node}: NCCL adds up what its GPUs have")


def _show(found: Sequence[Finding], whose: str, form: Format, facts: Object | None = None) -> None:
    """`facts`: what JSON has in addition to the problems."""
    if form is Format.JSON:
        click.echo(data({**(facts or {}), "problems": [asdict(finding) for finding in found]}, form))
        return
    for finding in found:
        mark = coloured("problem", "red") if finding.stops else coloured("note", "yellow")
        click.echo(f"{mark}: {printable(finding.what)}\n  fix: {printable(finding.fix)}")
    if not found:
        click.echo(f"nothing is wrong with {whose}")


def _installation(client: Client) -> Installation:
    deployments = _items(client, "/apis/apps/v1/deployments", _OPERATOR)
    first = deployments[0] if deployments else None
    sent = _trial_job(client.namespace)
    returned, refused = _trial(client, sent)
    return Installation(
        now=datetime.now(UTC),
        version=__version__,
        ours=crd.build(cel=True),
        definition=_object(client, _DEFINITION),
        deployments=deployments,
        pods=_items(client, "/api/v1/pods", _OPERATOR),
        lease=None if first is None else _object(client, _lease(first)),
        nodes=_items(client, "/api/v1/nodes"),
        node_leases=_items(client, "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"),
        dns_pods=_items(client, "/api/v1/namespaces/kube-system/pods", _DNS),
        storage_classes=_items(client, "/apis/storage.k8s.io/v1/storageclasses"),
        denied=() if first is None else tuple(_denied(client, first)),
        namespace=client.namespace,
        served=_served(deployments or ()),
        sent=sent,
        returned=returned,
        refused=refused,
    )


def _items(client: Client, path: str, query: Mapping[str, str] | None = None) -> Sequence[Object] | None:
    """None if they may not be read."""
    try:
        found: Sequence[Object] = client.ask(path, query=query)["items"]
    except ApiError as error:
        if error.code not in _NOT_MINE:
            raise
        return None
    return found


def _object(client: Client, path: str) -> Object | None:
    """Empty if it does not exist, None if it may not be read."""
    try:
        return client.ask(path)
    except ApiError as error:
        if error.code not in _NOT_MINE:
            raise
        return {} if error.code == MISSING else None


def _environment(deployment: Object) -> Mapping[str, str]:
    [container] = [c for c in deployment["spec"]["template"]["spec"]["containers"] if c["name"] == "operator"]
    return {variable["name"]: variable.get("value", "") for variable in container.get("env") or ()}


def _served(deployments: Sequence[Object]) -> Sequence[str] | None:
    """The namespaces whose jobs are run; None if that is not a list."""
    lists = [_environment(deployment).get("WATCH_NAMESPACES", "") for deployment in deployments]
    return sorted({name for text in lists for name in text.split(",")}) if lists and all(lists) else None


def _lease(deployment: Object) -> str:
    name = _environment(deployment).get("LEASE_NAME") or deployment["metadata"]["name"]
    return f"/apis/coordination.k8s.io/v1/namespaces/{deployment['metadata']['namespace']}/leases/{name}"


def _denied(client: Client, deployment: Object) -> Iterator[str]:
    """Permissions that the operator needs in its namespaces and does not have."""
    account = deployment["spec"]["template"]["spec"].get("serviceAccountName") or "default"
    user = f"system:serviceaccount:{deployment['metadata']['namespace']}:{account}"
    settings = _environment(deployment)
    namespaces = [n for n in settings.get("WATCH_NAMESPACES", "").split(",") if n] or [""]
    needs = _NEEDS + (_POLICIES if settings.get("NETWORK_POLICY_NAMESPACES") else ())
    needs += _DEVICES if settings.get("DEVICE_CLAIMS") == "true" else ()
    needs += _CLAIMS if settings.get("VOLUME_CLAIMS") == "true" else ()
    for gang in GANG_SCHEDULERS.keys() & settings.get("GANG_BACKENDS", "").split(","):
        group = POD_GROUPS[GANG_SCHEDULERS[gang].kinds[0]].partition("/")[0]
        needs += tuple((verb, group, "podgroups", "") for verb in ("list", "create", "delete"))
    needs += _KUEUE if settings.get("KUEUE_ENABLED") == "true" else ()
    for namespace in namespaces:
        for verb, group, resource, part in needs:
            attributes = {"verb": verb, "group": group, "resource": resource, "subresource": part}
            given = {key: value for key, value in (attributes | {"namespace": namespace}).items() if value}
            review = {
                "apiVersion": "authorization.k8s.io/v1",
                "kind": "SubjectAccessReview",
                "spec": {"user": user, "resourceAttributes": given},
            }
            try:
                answer = client.ask(_REVIEWS, body=review)
            except ApiError as error:
                if error.code not in _NOT_MINE:
                    raise
                return
            if not (answer.get("status") or {}).get("allowed"):
                what = f"{verb} {resource}{f'/{part}' if part else ''}"
                yield f"{what} in {namespace}" if namespace else what


def _trial_job(namespace: str) -> Object:
    """Only fields that no webhook has a reason to change and that have no default."""
    trainer = {"entrypoint": "digits", "globalBatchSize": 128, "epochs": 20, "params": {"units": 64}}
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {"generateName": "tfgpu-doctor-", "namespace": namespace},
        "spec": {"strategy": "OneDevice", "replicaSpecs": {"worker": {"replicas": 1}}, "trainer": trainer},
    }


def _trial(client: Client, sent: Object) -> tuple[Object | None, str]:
    """The job as the server would store it, or the message of its refusal; neither if a dry run is not permitted."""
    try:
        return client.ask(paths.jobs(client.namespace), query={"dryRun": "All"}, body=sent), ""
    except ApiError as error:
        if not error.code or error.code in _NOT_MINE:
            return None, ""
        return None, error.message
