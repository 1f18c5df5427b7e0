"""The proxy that the environment sets for a server: HTTPS_PROXY, HTTP_PROXY and NO_PROXY, as kubectl reads them."""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_address, ip_network
from urllib.parse import urlsplit


def proxy_of(server: str, environment: Mapping[str, str]) -> str | None:
    """The proxy's URL; None: the server is reached directly, as one on this machine always is."""
    url = urlsplit(server)
    host, port = url.hostname or "", url.port or (443 if url.scheme == "https" else 80)
    name = f"{url.scheme}_proxy"
    proxy = environment.get(name.upper()) or environment.get(name)
    if not proxy or _is_here(host) or _is_excepted(host, port, environment):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


def _is_here(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def _is_excepted(host: str, port: int, environment: Mapping[str, str]) -> bool:
    excepted = environment.get("NO_PROXY") or environment.get("no_proxy") or ""
    return any(_covers(entry.strip().lower(), host.lower(), port) for entry in excepted.split(","))


def _covers(entry: str, host: str, port: int) -> bool:
    """`entry`: *, an address, a network in CIDR notation, or a domain, all but the network optionally with a port."""
    if entry in {"", "*"}:
        return entry == "*"
    try:
        return ip_address(host) in ip_network(entry, strict=False)
    except ValueError:
        pass
    name, colon, number = entry.rpartition(":")
    if colon and number.isdecimal():
        if int(number) != port:
            return False
        entry = name.strip("[]")
    domain = entry.removeprefix("*")
    return host == domain.removeprefix(".") or host.endswith(domain if domain.startswith(".") else f".{domain}")
