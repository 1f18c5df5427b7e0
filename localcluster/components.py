"""Command lines and configuration of the programs of a node. Pure: values in, values out."""

import sys
from pathlib import Path
from typing import Any

from localcluster.layout import (
    AUDIT_LOG,
    CLUSTER_DOMAIN,
    MASTER_ADDRESS,
    PAUSE_IMAGE,
    PKI,
    POD_NETWORK,
    RUN,
    SERVICE_NETWORK,
    Node,
    Settings,
)

CONTAINERD_SOCKET = "/run/containerd/containerd.sock"
ETCD = "http://127.0.0.1:2379"
ETCD_PEER = "http://127.0.0.1:2380"


def etcd(node: Node) -> list[str]:
    """The store of the API server."""
    return [
        "etcd",
        "--name=default",
        f"--data-dir={node.folder / 'etcd'}",
        f"--listen-client-urls={ETCD}",
        f"--advertise-client-urls={ETCD}",
        f"--listen-peer-urls={ETCD_PEER}",
        f"--initial-advertise-peer-urls={ETCD_PEER}",
        f"--initial-cluster=default={ETCD_PEER}",
        "--logger=zap",
        "--log-level=warn",
    ]


def api_server(programs: Path, settings: Settings) -> list[str]:
    """The API server, with its audit log switched on."""
    return [
        str(programs / "kube-apiserver"),
        f"--etcd-servers={ETCD}",
        f"--bind-address={MASTER_ADDRESS}",
        f"--advertise-address={MASTER_ADDRESS}",
        "--secure-port=6443",
        "--insecure-port=0",
        f"--tls-cert-file={PKI}/apiserver.crt",
        f"--tls-private-key-file={PKI}/apiserver.key",
        f"--client-ca-file={PKI}/ca.crt",
        "--authorization-mode=Node,RBAC",
        # Added to the admission plugins that are on by default; ResourceQuota is one of those, named to be sure.
        "--enable-admission-plugins=NodeRestriction,ResourceQuota",
        "--allow-privileged=true",
        f"--service-cluster-ip-range={SERVICE_NETWORK}",
        f"--service-account-issuer=https://kubernetes.default.svc.{CLUSTER_DOMAIN}",
        f"--service-account-key-file={PKI}/sa.pub",
        f"--service-account-signing-key-file={PKI}/sa.key",
        f"--kubelet-certificate-authority={PKI}/ca.crt",
        f"--kubelet-client-certificate={PKI}/apiserver-kubelet-client.crt",
        f"--kubelet-client-key={PKI}/apiserver-kubelet-client.key",
        "--kubelet-preferred-address-types=InternalIP,Hostname",
        f"--requestheader-client-ca-file={PKI}/front-ca.crt",
        "--requestheader-allowed-names=front-proxy-client",
        "--requestheader-username-headers=X-Remote-User",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        f"--proxy-client-cert-file={PKI}/front-proxy.crt",
        f"--proxy-client-key-file={PKI}/front-proxy.key",
        f"--default-not-ready-toleration-seconds={settings.toleration}",
        f"--default-unreachable-toleration-seconds={settings.toleration}",
        f"--audit-policy-file={RUN / 'audit-policy.yaml'}",
        f"--audit-log-path={AUDIT_LOG}",
        # A rotated file would be lost to its readers; it is truncated at every start instead.
        "--audit-log-maxsize=4096",
        "--profiling=false",
    ]


def audit_policy() -> dict[str, Any]:
    """Who did what to which object, for every request but those of the cluster's own parts.

    The controllers of the controller-manager (kube-system's service accounts) are kept: a benchmark
    compares an operator's requests with theirs.
    """
    own = ["localcluster", "system:apiserver", "system:kube-controller-manager", "system:kube-proxy",
           "system:kube-scheduler"]  # fmt: skip
    return {
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived"],
        "rules": [
            {"level": "None", "userGroups": ["system:nodes"]},
            {"level": "None", "users": own},
            {"level": "None", "nonResourceURLs": ["/healthz*", "/readyz*", "/livez*"]},
            {"level": "Metadata"},
        ],
    }


def controller_manager(programs: Path, settings: Settings) -> list[str]:
    """All controllers but those that want a cloud or hand out pod networks."""
    kubeconfig = RUN / "controller-manager.kubeconfig"
    return [
        str(programs / "kube-controller-manager"),
        *_control_plane_client(kubeconfig, settings),
        "--use-service-account-credentials=true",
        "--controllers=*,-nodeipam,-route,-service,-cloud-node-lifecycle",
        f"--root-ca-file={PKI}/ca.crt",
        f"--service-account-private-key-file={PKI}/sa.key",
        f"--cluster-signing-cert-file={PKI}/ca.crt",
        f"--cluster-signing-key-file={PKI}/ca.key",
        f"--node-monitor-grace-period={settings.node_grace}s",
        "--node-monitor-period=1s",
    ]


def scheduler(programs: Path, settings: Settings) -> list[str]:
    """The default scheduler."""
    return [
        str(programs / "kube-scheduler"),
        *_control_plane_client(RUN / "scheduler.kubeconfig", settings),
    ]


def _control_plane_client(kubeconfig: Path, settings: Settings) -> list[str]:
    return [
        f"--kubeconfig={kubeconfig}",
        f"--authentication-kubeconfig={kubeconfig}",
        f"--authorization-kubeconfig={kubeconfig}",
        "--bind-address=127.0.0.1",
        "--port=0",
        "--leader-elect=false",
        f"--kube-api-qps={settings.api_qps}",
        f"--kube-api-burst={2 * settings.api_qps}",
        "--profiling=false",
    ]


def addon(module: str, *arguments: str) -> list[str]:
    """One of this package's own programs."""
    return [sys.executable, "-m", f"localcluster.{module}", *arguments]


def containerd(node: Node) -> list[str]:
    """The container runtime."""
    return ["containerd", "-c", str(node.folder / "containerd.toml")]


def containerd_config(node: Node) -> str:
    """containerd's configuration file."""
    unused = [f"io.containerd.snapshotter.v1.{name}" for name in ("aufs", "btrfs", "zfs", "devmapper")]
    unused += ["io.containerd.internal.v1.tracing", "io.containerd.tracing.processor.v1.otlp"]
    cri = 'plugins."io.containerd.grpc.v1.cri"'
    return f"""version = 2
root = "{node.containerd_root}"
state = "/run/containerd/state"
disabled_plugins = {unused!r}
[grpc]
  address = "{CONTAINERD_SOCKET}"
[plugins."io.containerd.internal.v1.opt"]
  path = "{node.containerd_root}/opt"
[{cri}]
  sandbox_image = "{PAUSE_IMAGE}"
  # root of a restricted machine lacks CAP_SYS_RESOURCE, which lowering a score needs
  restrict_oom_score_adj = true
  [{cri}.containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"
    [{cri}.containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [{cri}.containerd.runtimes.runc.options]
        SystemdCgroup = false
  [{cri}.cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{node.folder / "cni"}"
"""


def pod_network_config(node: Node) -> dict[str, Any]:
    """The container network: one bridge a node."""
    return {
        "cniVersion": "0.4.0",
        "name": "pods",
        "plugins": [
            {
                "type": "bridge",
                "bridge": "cni0",
                "isGateway": True,
                "isDefaultGateway": True,
                "ipMasq": False,
                "hairpinMode": True,
                "ipam": {
                    "type": "host-local",
                    "dataDir": "/run/cni-ipam",
                    "ranges": [[{"subnet": node.pod_network}]],
                },
            },
            {"type": "portmap", "capabilities": {"portMappings": True}},
        ],
    }


def kubelet(programs: Path, node: Node) -> list[str]:
    """The kubelet."""
    return [
        str(programs / "kubelet"),
        f"--config={node.folder / 'kubelet.yaml'}",
        f"--kubeconfig={RUN / f'kubelet-{node.name}.kubeconfig'}",
        f"--hostname-override={node.name}",
        f"--node-ip={node.address}",
        "--container-runtime=remote",
        f"--container-runtime-endpoint=unix://{CONTAINERD_SOCKET}",
        f"--pod-infra-container-image={PAUSE_IMAGE}",
        "--v=2",
    ]


def kubelet_config(node: Node) -> dict[str, Any]:
    """The kubelet's configuration: quick to report, and never short of disk."""
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": node.address,
        "port": 10250,
        "readOnlyPort": 0,
        "healthzBindAddress": "127.0.0.1",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": f"{PKI}/ca.crt"},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": f"{PKI}/serving-{node.name}.crt",
        "tlsPrivateKeyFile": f"{PKI}/serving-{node.name}.key",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": node.cgroup,
        "cgroupsPerQOS": True,
        "enforceNodeAllocatable": ["pods"],
        "clusterDNS": [MASTER_ADDRESS],
        "clusterDomain": CLUSTER_DOMAIN,
        "resolvConf": str(node.folder / "resolv.conf"),
        "failSwapOn": False,
        "hairpinMode": "none",
        # Images are imported by hand and there is no registry to fetch them from again.
        "imageGCHighThresholdPercent": 100,
        "evictionHard": {
            "memory.available": "100Mi",
            "nodefs.available": "0%",
            "nodefs.inodesFree": "0%",
            "imagefs.available": "0%",
        },
        "serializeImagePulls": False,
        # How soon it sees that a volume is over its limit, and evicts the pod.
        "volumeStatsAggPeriod": "5s",
        "nodeStatusUpdateFrequency": "1s",
        "kubeAPIQPS": 100,
        "kubeAPIBurst": 200,
        "eventRecordQPS": 0,
        "maxPods": 110,
    }


def kube_proxy(programs: Path, node: Node) -> list[str]:
    """kube-proxy."""
    return [str(programs / "kube-proxy"), f"--config={node.folder / 'proxy.yaml'}"]


def kube_proxy_config(node: Node) -> dict[str, Any]:
    """kube-proxy's configuration; connection tracking limits are the machine's, so they stay as they are."""
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "iptables",
        "clusterCIDR": POD_NETWORK,
        "hostnameOverride": node.name,
        "bindAddress": node.address,
        "healthzBindAddress": "127.0.0.1:10256",
        "metricsBindAddress": "127.0.0.1:10249",
        "clientConnection": {"kubeconfig": str(RUN / "proxy.kubeconfig")},
        "conntrack": {
            "maxPerCore": 0,
            "min": 0,
            "tcpEstablishedTimeout": "0s",
            "tcpCloseWaitTimeout": "0s",
        },
    }
