"""Ports that are reserved for the task, and that the task itself can bind."""

from __future__ import annotations

import socket

from tfgpujob.local.ports import Ports


def test_an_address_keeps_its_port_and_no_other_has_it() -> None:
    ports = Ports()
    first = ports.translated("a-worker-0.a.ns.svc:2222,a-worker-1.a.ns.svc:2222")
    assert ports.translated("a-worker-0.a.ns.svc:2222,a-worker-1.a.ns.svc:2222") == first
    assert len({*first.split(",")}) == 2
    assert ports.translated("http://example.com:80 and 10.0.0.1:2222") == "http://example.com:80 and 10.0.0.1:2222"
    ports.close()


def test_a_held_port_is_free_for_who_asks_by_number_and_for_nobody_else() -> None:
    ports = Ports()
    port = int(ports.local("a-worker-0.a.ns.svc:2222").rpartition(":")[2])
    with socket.socket() as careless:
        # A server without SO_REUSEADDR finds it taken.
        try:
            careless.bind(("127.0.0.1", port))
        except OSError:
            taken = True
        else:
            taken = False
    assert taken
    for _ in range(2):  # again, after a restart
        with socket.socket(socket.AF_INET6) as server:  # as gRPC does: all addresses, IPv4 too, SO_REUSEADDR
            server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            server.bind(("::", port))
            server.listen()
            with socket.create_connection(("127.0.0.1", port)) as client:
                accepted, _ = server.accept()
                accepted.close()
                client.close()
    ports.close()
