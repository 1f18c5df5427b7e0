"""Keys, certificates and kubeconfigs of a cluster, made with the openssl program."""

import base64
from pathlib import Path

import yaml

from localcluster.layout import API_SERVER, KUBECONFIG, KUBERNETES_SERVICE, MASTER_ADDRESS, PKI, RUN, Node
from localcluster.tools import run

DAYS = "3650"
# Members may do everything, so no test of ours depends on the rights of our own add-ons.
MASTERS = "/O=system:masters"


def make_master() -> None:
    """The two authorities, and everything that the control plane and the add-ons need."""
    PKI.mkdir(parents=True, exist_ok=True)
    PKI.chmod(0o700)
    for authority in ("ca", "front-ca"):
        _key(authority)
        run("openssl", "req", "-x509", "-new", "-key", PKI / f"{authority}.key", "-subj", f"/CN={authority}",
            "-days", DAYS, "-out", PKI / f"{authority}.crt")  # fmt: skip
    run("openssl", "genrsa", "-out", PKI / "sa.key", "2048")
    run("openssl", "rsa", "-in", PKI / "sa.key", "-pubout", "-out", PKI / "sa.pub")
    names = ["localhost", "kubernetes"] + [f"kubernetes.default{s}" for s in ("", ".svc", ".svc.cluster.local")]
    alternatives = [f"IP:{ip}" for ip in ("127.0.0.1", MASTER_ADDRESS, KUBERNETES_SERVICE)]
    alternatives += [f"DNS:{name}" for name in names]
    _certificate("apiserver", "/CN=kube-apiserver", ",".join(alternatives))
    _certificate("apiserver-kubelet-client", f"{MASTERS}/CN=kube-apiserver-kubelet-client")
    _certificate("front-proxy", "/CN=front-proxy-client", authority="front-ca")
    for component in ("controller-manager", "scheduler", "proxy"):
        _user(component, f"/CN=system:kube-{component}", RUN / f"{component}.kubeconfig")
    _user("addons", f"{MASTERS}/CN=localcluster", RUN / "addons.kubeconfig")
    _user("admin", f"{MASTERS}/CN=admin", KUBECONFIG)


def make_node(node: Node) -> None:
    """What one kubelet needs."""
    subject = f"/O=system:nodes/CN=system:node:{node.name}"
    _certificate(f"serving-{node.name}", subject, f"IP:{node.address},DNS:{node.name}")
    _user(f"kubelet-{node.name}", subject, RUN / f"kubelet-{node.name}.kubeconfig")


def _key(name: str) -> None:
    run("openssl", "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", PKI / f"{name}.key")


def _certificate(name: str, subject: str, alternatives: str = "", authority: str = "ca") -> None:
    _key(name)
    request = run("openssl", "req", "-new", "-key", PKI / f"{name}.key", "-subj", subject)
    extensions = PKI / f"{name}.ext"
    usage = "serverAuth" if alternatives else "clientAuth"
    text = f"keyUsage=digitalSignature\nextendedKeyUsage={usage}\n"
    extensions.write_text(text + (f"subjectAltName={alternatives}\n" if alternatives else ""))
    run("openssl", "x509", "-req", "-CA", PKI / f"{authority}.crt", "-CAkey", PKI / f"{authority}.key",
        "-CAcreateserial", "-days", DAYS, "-extfile", extensions, "-out", PKI / f"{name}.crt",
        stdin=request)  # fmt: skip
    extensions.unlink()


def _user(name: str, subject: str, kubeconfig: Path) -> None:
    _certificate(name, subject)
    data = {file: base64.b64encode((PKI / file).read_bytes()).decode()
            for file in ("ca.crt", f"{name}.crt", f"{name}.key")}  # fmt: skip
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {"name": "local", "cluster": {"server": API_SERVER, "certificate-authority-data": data["ca.crt"]}}
        ],
        "users": [
            {
                "name": name,
                "user": {
                    "client-certificate-data": data[f"{name}.crt"],
                    "client-key-data": data[f"{name}.key"],
                },
            }
        ],
        "contexts": [{"name": "local", "context": {"cluster": "local", "user": name}}],
        "current-context": "local",
    }
    kubeconfig.write_text(yaml.safe_dump(config))
    kubeconfig.chmod(0o600)
