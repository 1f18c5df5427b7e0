"""Pretend GPUs: a device plugin of the kubelet that offers devices which no one has.

Run on each node as `python -m localcluster.gpus COUNT STUBS`, where STUBS is the folder of the generated
gRPC modules. SIGUSR1 makes the first device unhealthy, SIGUSR2 healthy again.
"""

import signal
import sys
import threading
import time
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc

from localcluster.layout import GPU_RESOURCE

FOLDER = Path("/var/lib/kubelet/device-plugins")
KUBELET_SOCKET = FOLDER / "kubelet.sock"
OWN_SOCKET = FOLDER / "tfgpu-pretend.sock"


class Devices:
    """How many devices there are and which are unhealthy; waiters hear of changes."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._first_healthy = True
        self._changed = threading.Event()

    def set_first_healthy(self, healthy: bool) -> None:
        """Change the health of device 0."""
        self._first_healthy = healthy
        self._changed.set()

    def health(self) -> dict[str, str]:
        """Healthy or Unhealthy by device id."""
        return {f"pretend-{i}": "Healthy" if i or self._first_healthy else "Unhealthy" for i in range(self._count)}

    def wait(self) -> None:
        """Return within a second of a change, or after a second."""
        if self._changed.wait(1):
            self._changed.clear()


def plugin(messages: Any, services: Any, devices: Devices) -> Any:
    """The device plugin's gRPC servicer."""

    class Plugin(services.DevicePluginServicer):  # type: ignore[misc]  # generated, untyped
        def GetDevicePluginOptions(self, _request: Any, _context: Any) -> Any:  # noqa: N802
            return messages.DevicePluginOptions()

        def ListAndWatch(self, _request: Any, context: Any) -> Iterator[Any]:  # noqa: N802
            told: dict[str, str] | None = None
            while context.is_active():
                if told != (now := devices.health()):
                    told = now
                    yield messages.ListAndWatchResponse(
                        devices=[messages.Device(ID=i, health=h) for i, h in now.items()]
                    )
                devices.wait()

        def Allocate(self, request: Any, _context: Any) -> Any:  # noqa: N802
            return messages.AllocateResponse(
                container_responses=[
                    messages.ContainerAllocateResponse(envs={"NVIDIA_VISIBLE_DEVICES": ",".join(container.devicesIDs)})
                    for container in request.container_requests
                ]
            )

    return Plugin()


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        stat = path.stat()
    except FileNotFoundError:
        return None
    return stat.st_ino, stat.st_ctime_ns


def _serve(messages: Any, services: Any, devices: Devices) -> grpc.Server:
    OWN_SOCKET.unlink(missing_ok=True)
    server = grpc.server(futures.ThreadPoolExecutor(4))
    services.add_DevicePluginServicer_to_server(plugin(messages, services, devices), server)
    server.add_insecure_port(f"unix://{OWN_SOCKET}")
    server.start()
    with grpc.insecure_channel(f"unix://{KUBELET_SOCKET}") as channel:
        services.RegistrationStub(channel).Register(
            messages.RegisterRequest(version="v1beta1", endpoint=OWN_SOCKET.name, resource_name=GPU_RESOURCE),
            timeout=5,
        )
    return server


def main() -> None:
    """Serve without end; register again whenever the kubelet has created its socket again."""
    devices = Devices(int(sys.argv[1]))
    sys.path.insert(0, sys.argv[2])
    import deviceplugin_pb2 as messages  # noqa: PLC0415 - generated into the cache
    import deviceplugin_pb2_grpc as services  # noqa: PLC0415

    signal.signal(signal.SIGUSR1, lambda *_: devices.set_first_healthy(False))
    signal.signal(signal.SIGUSR2, lambda *_: devices.set_first_healthy(True))
    registered: tuple[int, int] | None = None
    server: grpc.Server | None = None
    while True:
        kubelet = _identity(KUBELET_SOCKET)
        if kubelet and (kubelet != registered or not OWN_SOCKET.exists()):
            if server:
                server.stop(None)
            try:
                server = _serve(messages, services, devices)
                registered = kubelet
                print("registered", flush=True)
            except grpc.RpcError as error:
                print("not registered:", error, flush=True)
        time.sleep(0.2)


if __name__ == "__main__":
    main()
