"""What Pod Security "baseline" refuses of a pod, control by control, and what it lets pass."""

from __future__ import annotations

from typing import Any

KINDS = ("containers", "initContainers", "ephemeralContainers")


def secured(field: str, value: Any) -> dict[str, Any]:
    return {"securityContext": {field: value}}


# control: what each container may not say, each with the field below the container; and what it may.
OF_CONTAINERS: dict[str, tuple[list[tuple[dict[str, Any], str]], list[dict[str, Any]]]] = {
    "host process": (
        [(secured("windowsOptions", {"hostProcess": True}), "securityContext.windowsOptions.hostProcess")],
        [secured("windowsOptions", {"hostProcess": False}), secured("windowsOptions", {})],
    ),
    "privileged": (
        [(secured("privileged", True), "securityContext.privileged")],
        [secured("privileged", False)],
    ),
    "capabilities": (
        [
            (secured("capabilities", {"add": [name]}), "securityContext.capabilities.add[0]")
            for name in ("ALL", "SYS_ADMIN", "CAP_CHOWN", "NET_RAW", "NET_ADMIN", "SYS_PTRACE", "IPC_LOCK", "BPF", "")
        ],
        [
            secured("capabilities", {"add": ["CHOWN", "KILL", "MKNOD", "NET_BIND_SERVICE", "SETUID", "SYS_CHROOT"]}),
            secured("capabilities", {"add": ["AUDIT_WRITE", "DAC_OVERRIDE", "FOWNER", "FSETID", "SETFCAP", "SETGID"]}),
            secured("capabilities", {"add": ["SETPCAP"], "drop": ["ALL"]}),
            secured("capabilities", {"add": None}),
        ],
    ),
    "host ports": (
        [({"ports": [{"containerPort": 80, "hostPort": 80}]}, "ports[0].hostPort")],
        [{"ports": [{"containerPort": 80, "hostPort": 0}, {"containerPort": 81}]}],
    ),
    "host probes": (
        [
            ({"livenessProbe": {"httpGet": {"host": "10.0.0.1", "port": 80}}}, "livenessProbe.httpGet.host"),
            ({"readinessProbe": {"tcpSocket": {"host": "10.0.0.1", "port": 80}}}, "readinessProbe.tcpSocket.host"),
            ({"startupProbe": {"httpGet": {"host": "metadata", "port": "http"}}}, "startupProbe.httpGet.host"),
            ({"lifecycle": {"postStart": {"httpGet": {"host": "a", "port": 80}}}}, "lifecycle.postStart.httpGet.host"),
            ({"lifecycle": {"preStop": {"tcpSocket": {"host": "a", "port": 80}}}}, "lifecycle.preStop.tcpSocket.host"),
        ],
        [{"livenessProbe": {"httpGet": {"port": 1}}}, {"lifecycle": {"preStop": {"httpGet": {"host": "", "port": 1}}}}],
    ),
    "devices by name": (
        [
            ({"env": [{"name": "A"}, {"name": name, **said}]}, "env[1]")
            for name, said in (
                ("NVIDIA_VISIBLE_DEVICES", {"value": "all"}),
                ("NVIDIA_VISIBLE_DEVICES", {"value": "0,1"}),
                ("NVIDIA_VISIBLE_DEVICES", {"valueFrom": {"configMapKeyRef": {"name": "a", "key": "b"}}}),
                ("NVIDIA_MIG_CONFIG_DEVICES", {"value": "all"}),
                ("AMD_VISIBLE_DEVICES", {"value": "all"}),
            )
        ],
        [
            *({"env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": value}]} for value in ("", "none", "void")),
            {"env": [{"name": "NVIDIA_VISIBLE_DEVICES"}]},
            {"env": [{"name": "CUDA_VISIBLE_DEVICES", "value": "0"}]},
        ],
    ),
    "devices by mount": (
        [
            (
                {"volumeMounts": [{"name": "a", "mountPath": "/var/run/nvidia-container-devices/all"}]},
                "volumeMounts[0].mountPath",
            )
        ],
        [{"volumeMounts": [{"name": "a", "mountPath": "/data"}]}],
    ),
    "AppArmor": (
        [(secured("appArmorProfile", {"type": "Unconfined"}), "securityContext.appArmorProfile.type")],
        [secured("appArmorProfile", {"type": kind}) for kind in ("RuntimeDefault", "Localhost")],
    ),
    "SELinux type": (
        [
            (secured("seLinuxOptions", {"type": kind}), "securityContext.seLinuxOptions.type")
            for kind in ("spc_t", "unconfined_t", "init_t")
        ],
        [
            secured("seLinuxOptions", {"type": kind, "level": "s0:c1"})
            for kind in ("", "container_t", "container_init_t", "container_kvm_t", "container_engine_t")
        ],
    ),
    "SELinux user and role": (
        [
            (secured("seLinuxOptions", {"user": "system_u"}), "securityContext.seLinuxOptions.user"),
            (secured("seLinuxOptions", {"role": "system_r"}), "securityContext.seLinuxOptions.role"),
        ],
        [secured("seLinuxOptions", {"user": "", "role": ""})],
    ),
    "proc mount": (
        [(secured("procMount", "Unmasked"), "securityContext.procMount")],
        [secured("procMount", "Default")],
    ),
    "seccomp": (
        [(secured("seccompProfile", {"type": "Unconfined"}), "securityContext.seccompProfile.type")],
        [secured("seccompProfile", {"type": kind}) for kind in ("RuntimeDefault", "Localhost")],
    ),
}

# The same of the pod itself.
OF_PODS: dict[str, tuple[list[tuple[dict[str, Any], str]], list[dict[str, Any]]]] = {
    "host process": (
        [(secured("windowsOptions", {"hostProcess": True}), "securityContext.windowsOptions.hostProcess")],
        [secured("windowsOptions", {"hostProcess": False})],
    ),
    "host namespaces": (
        [({name: True}, name) for name in ("hostNetwork", "hostPID", "hostIPC")],
        [{name: False} for name in ("hostNetwork", "hostPID", "hostIPC")],
    ),
    "host path": (
        [
            ({"volumes": [{"name": "a", "emptyDir": {}}, {"name": "b", "hostPath": path}]}, "volumes[1].hostPath")
            for path in ({"path": "/"}, {"path": "/etc"})
        ],
        [{"volumes": [{"name": "a", "persistentVolumeClaim": {"claimName": "a"}}]}],
    ),
    "AppArmor": (OF_CONTAINERS["AppArmor"][0], OF_CONTAINERS["AppArmor"][1]),
    "SELinux type": OF_CONTAINERS["SELinux type"],
    "SELinux user and role": OF_CONTAINERS["SELinux user and role"],
    "seccomp": OF_CONTAINERS["seccomp"],
    "sysctls": (
        [
            (secured("sysctls", [{"name": name, "value": "1"}]), "securityContext.sysctls[0].name")
            for name in ("kernel.msgmax", "net.core.somaxconn", "vm.overcommit_memory", "kernel.shm_rmid_forced2")
        ],
        [
            secured("sysctls", [{"name": f"net.ipv4.{name}", "value": "1"}])
            for name in (
                "ip_local_port_range",
                "ip_unprivileged_port_start",
                "tcp_syncookies",
                "ping_group_range",
                "ip_local_reserved_ports",
                "tcp_keepalive_time",
                "tcp_fin_timeout",
                "tcp_keepalive_intvl",
                "tcp_keepalive_probes",
            )
        ]
        + [secured("sysctls", [{"name": "kernel.shm_rmid_forced", "value": "1"}])],
    ),
    "node name": ([({"nodeName": "node-1"}, "nodeName")], [{"nodeName": ""}, {"nodeSelector": {"a": "b"}}]),
    "system priority": (
        [
            ({"priorityClassName": name}, "priorityClassName")
            for name in ("system-node-critical", "system-cluster-critical", "system-other")
        ],
        [{"priorityClassName": "high"}],
    ),
}

ANNOTATIONS = {
    "container.apparmor.security.beta.kubernetes.io/tensorflow": ["", "runtime/default", "localhost/mine"],
    "seccomp.security.alpha.kubernetes.io/pod": ["", "runtime/default", "docker/default", "localhost/mine.json"],
    "container.seccomp.security.alpha.kubernetes.io/tensorflow": ["", "runtime/default", "localhost/mine.json"],
}


def job(spec: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    template = {"metadata": metadata, "spec": spec}
    replica_specs = {"worker": {"template": template}}
    return {
        "metadata": {"name": "train"},
        "spec": {"strategy": "OneDevice", "image": "a:1", "replicaSpecs": replica_specs},
    }


def container(said: dict[str, Any], kind: str) -> dict[str, Any]:
    """`said` by the second container of this kind, in a pod with the volume that it may mount."""
    sidecar = {"restartPolicy": "Always"} if kind == "initContainers" else {}  # others have no probes
    containers = [{"name": "first", "image": "a:1"}, {"name": "second", "image": "a:1", **sidecar, **said}]
    return {kind: containers, "volumes": [{"name": "a", "emptyDir": {}}]}
