"""The cluster's DNS: answers names of services and of pods behind headless services, and nothing else.

Run on node 1 as `python -m localcluster.dns`. Names outside the cluster get NXDOMAIN: no route leads there.
"""

import threading
from collections.abc import Iterable
from typing import Any

from dnslib import QTYPE, RCODE, RR, SRV, A
from dnslib.server import DNSServer

from localcluster.api import Api, Object, Watched
from localcluster.layout import CLUSTER_DOMAIN, MASTER_ADDRESS, RUN

TTL_SECONDS = 2


class Zone:
    """Every name the cluster knows: addresses by name, and (port, name) pairs by SRV name."""

    def __init__(self, services: Iterable[Object] = (), endpoints: Iterable[Object] = ()) -> None:
        self.addresses: dict[str, list[str]] = {}
        self.ports: dict[str, list[tuple[int, str]]] = {}
        headless = set()
        for service in services:
            name = _name(service)
            address = service["spec"].get("clusterIP")
            if address == "None":
                headless.add(name)
            elif address:
                self.addresses[name] = [address]
        for endpoint in endpoints:
            if _name(endpoint) in headless:
                self._add(_name(endpoint), endpoint)

    def knows_below(self, name: str) -> bool:
        """Whether some known name ends with this one."""
        return any(known.endswith("." + name) for known in self.addresses)

    def _add(self, base: str, endpoint: Object) -> None:
        self.addresses[base] = []
        for subset in endpoint.get("subsets") or []:
            for address in subset.get("addresses") or []:
                host = f"{address.get('hostname') or address['ip'].replace('.', '-')}.{base}"
                self.addresses[base].append(address["ip"])
                self.addresses.setdefault(host, []).append(address["ip"])
                for port in subset.get("ports") or []:
                    if port.get("name"):
                        name = f"_{port['name']}._{port['protocol'].lower()}.{base}"
                        self.ports.setdefault(name, []).append((port["port"], host))


def _name(item: Object) -> str:
    return f"{item['metadata']['name']}.{item['metadata']['namespace']}.svc.{CLUSTER_DOMAIN}"


class Responder:
    """Answers questions from the zone as it is now."""

    def __init__(self) -> None:
        self.zone = Zone()

    def resolve(self, request: Any, _handler: Any) -> Any:
        """dnslib's hook: the reply to one request."""
        reply = request.reply()
        reply.header.aa = 1
        zone, question = self.zone, request.q
        name, kind = str(question.qname).rstrip(".").lower(), QTYPE[question.qtype]
        if name in zone.ports and kind in ("SRV", "ANY"):
            for port, host in zone.ports[name]:
                target = SRV(0, 10, port, host + ".")
                reply.add_answer(RR(question.qname, QTYPE.SRV, ttl=TTL_SECONDS, rdata=target))
        elif name in zone.addresses:
            if kind in ("A", "ANY"):
                for address in zone.addresses[name]:
                    reply.add_answer(RR(question.qname, QTYPE.A, ttl=TTL_SECONDS, rdata=A(address)))
        elif not zone.knows_below(name):
            reply.header.rcode = RCODE.NXDOMAIN
        return reply


class _Silent:
    def __getattr__(self, _name: str) -> Any:
        return lambda *_args: None


def main() -> None:
    """Serve for ever."""
    api, responder, lock = Api(RUN / "addons.kubeconfig"), Responder(), threading.Lock()

    def rebuild() -> None:
        with lock:
            responder.zone = Zone(services.objects.values(), endpoints.objects.values())

    services = Watched(api, "/api/v1/services", rebuild)
    endpoints = Watched(api, "/api/v1/endpoints", rebuild)
    services.start()
    endpoints.start()
    for tcp in (False, True):
        DNSServer(responder, address=MASTER_ADDRESS, port=53, tcp=tcp, logger=_Silent()).start_thread()
    threading.Event().wait()


if __name__ == "__main__":
    main()
