"""Training processes as forks of one that has imported TensorFlow, which is four fifths of what a short job costs.

    pytest ── ForkServer: has imported the trainer
                 ├── supervisor: exec of a fresh Python ──┬── spare: a fork of the server, and so a warm process
                 │                                        └── training process: a fork of the spare
                 └── supervisor ...

The supervisor is the product's own, `tfgpujob_trainer.main`. Only its Popen of a training process, or of the product's
warm process, becomes a request to its spare, which forks twice: as PR_SET_CHILD_SUBREAPER hands orphans to the
supervisor, the training process is a child of the supervisor like any other: it is waited for, it dies with it, and its
CPU seconds are counted. A process whose environment holds other values than the server's of variables that are read at
import is not forked. With FRESH=1 nothing is (tests/trainer/conftest.py).

Run as a program: `forking.py serve FD` is the server, `forking.py supervise FD ARGUMENTS` the supervisor.
"""

from __future__ import annotations

import ctypes
import fcntl
import inspect
import json
import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

_DIE_WITH_PARENT, _ADOPT_ORPHANS = 1, 36  # PR_SET_PDEATHSIG and PR_SET_CHILD_SUBREAPER of prctl(2)
_MESSAGE_BYTES = 1024
_MOST_DESCRIPTORS = 16
_READ_AT_IMPORT = ("PYTHON", "OMP_", "MKL_", "OPENBLAS_", "LD_", "MALLOC_", "KERAS_", "TF_", "XLA_", "GRPC_")
_READ_LATER = ("TF_CONFIG", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")
_MODULES = ("tfgpujob_trainer.task", "tfgpujob_trainer.warm")

kept: socket.socket | None = None
"""Socket of a fork server that was started before this process was forked (kept.py)."""


def read_at_import(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that Python, TensorFlow and what they load read once, when they are loaded."""
    return {k: v for k, v in environment.items() if k.startswith(_READ_AT_IMPORT) and k not in _READ_LATER}


class Supervisor:
    """A child of the server; has what tests use of subprocess.Popen."""

    def __init__(self, pid: int) -> None:
        self.pid, self.returncode = pid, None
        self._ended = threading.Event()

    pid: int
    returncode: int | None

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if not self._ended.wait(timeout):
            raise subprocess.TimeoutExpired(f"supervisor {self.pid}", timeout or 0.0)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        if not self._ended.is_set():
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def end(self, status: int) -> None:
        self.returncode = status
        self._ended.set()


class ForkServer:
    """Starts supervisors. One a test process; it ends with it, and so does all that it has started."""

    _process: subprocess.Popen[bytes] | None = None

    def __init__(self, environment: Mapping[str, str], program: Path = Path(__file__)) -> None:
        """`environment` is that of a training process; the values read at import are the same for all forks."""
        self._printed = tempfile.TemporaryFile()  # noqa: SIM115 (as long as the server)
        self._socket = kept or self._start_program(environment, program)
        self._children: dict[int, Supervisor] = {}
        self._started: list[Supervisor] = []
        self._changed, self._ready, self._lost = threading.Condition(), False, False
        threading.Thread(target=self._listen, name="fork-server", daemon=True).start()

    def _start_program(self, environment: Mapping[str, str], program: Path) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, str(program), "serve", str(theirs.fileno())]
            self._process = subprocess.Popen(
                command, env=dict(environment), pass_fds=[theirs.fileno()], stdout=self._printed, stderr=self._printed
            )
        return ours

    def start(self, arguments: Sequence[str], environment: Mapping[str, str], log: int, directory: Path) -> Supervisor:
        """Start `python -m tfgpujob_trainer.main ARGUMENTS` there; it writes to the descriptor `log`."""
        request = {"arguments": list(arguments), "environment": dict(environment), "directory": str(directory)}
        with self._changed:
            send(self._socket, request, [log])
            self._changed.wait_for(lambda: self._started or self._lost)
            assert self._started, f"the fork server has ended: {os.pread(self._printed.fileno(), 1 << 16, 0).decode()}"
            return self._started.pop()

    def wait_until_ready(self) -> None:
        """Return once it has imported TensorFlow, which is no test's cost."""
        with self._changed:
            self._changed.wait_for(lambda: self._ready or self._lost)

    def close(self) -> None:
        """End it, and with it what it has started."""
        self._socket.shutdown(socket.SHUT_RDWR)
        if self._process is not None:
            self._process.wait()

    def _listen(self) -> None:
        while packet := self._socket.recv(_MESSAGE_BYTES):
            answer = json.loads(packet)
            with self._changed:
                if "ready" in answer:
                    self._ready = True
                elif "ended" in answer:
                    self._children.pop(answer["ended"]).end(answer["status"])
                else:
                    started = self._children[answer["started"]] = Supervisor(answer["started"])
                    self._started.append(started)
                self._changed.notify_all()
        with self._changed:
            self._lost = True
            for child in self._children.values():
                child.end(-signal.SIGKILL)
            self._changed.notify_all()


def send(requests: socket.socket, request: Mapping[str, Any], descriptors: Sequence[int]) -> None:
    """The request goes in a file: an environment may be larger than a packet."""
    with os.fdopen(os.memfd_create("request"), "w+") as file:
        json.dump(request, file)
        file.flush()
        socket.send_fds(requests, [b"start"], [file.fileno(), *descriptors])


def receive(requests: socket.socket) -> tuple[Any, list[int]]:
    """The next request and its descriptors; None when the other side is gone."""
    packet, descriptors, _, _ = socket.recv_fds(requests, _MESSAGE_BYTES, _MOST_DESCRIPTORS)
    if not packet:
        return None, []
    with os.fdopen(descriptors[0]) as file:
        file.seek(0)
        return json.load(file), descriptors[1:]


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None).prctl(option, value)


# The server.


def serve(descriptor: int) -> None:
    """Start supervisors until the test process is gone."""
    _prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    _prctl(_ADOPT_ORPHANS, 1)  # a training process whose supervisor was killed is waited for here
    import tfgpujob_trainer.task  # noqa: PLC0415
    import tfgpujob_trainer.warm  # noqa: F401, PLC0415

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    requests = socket.socket(fileno=descriptor)
    requests.send(json.dumps({"ready": 1}).encode())
    woken, wakes = os.pipe()
    os.set_blocking(wakes, False)
    signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    supervisors: set[int] = set()
    with selectors.DefaultSelector() as selector:
        selector.register(requests, selectors.EVENT_READ)
        selector.register(woken, selectors.EVENT_READ)
        while True:
            ready = {key.fileobj for key, _ in selector.select()}
            if woken in ready:
                os.read(woken, 512)
                _reap(requests, supervisors)
            if requests in ready:
                request, descriptors = receive(requests)
                if request is None:
                    return
                pid = os.fork()
                if pid == 0:
                    selector.close()
                    _exec_supervisor(request, descriptors[0], closing=[requests.detach(), woken, wakes])
                supervisors.add(pid)
                os.close(descriptors[0])
                requests.send(json.dumps({"started": pid}).encode())


def _reap(answers: socket.socket, supervisors: set[int]) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        if pid in supervisors:
            supervisors.remove(pid)
            answers.send(json.dumps({"ended": pid, "status": os.waitstatus_to_exitcode(status)}).encode())


def _exec_supervisor(request: Any, log: int, closing: Sequence[int]) -> NoReturn:
    """Leave a spare behind as a child, then become the supervisor."""
    signal.set_wakeup_fd(-1)
    for number in closing:
        os.close(number)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        ours.close()
        os.close(log)
        _spare(theirs)
    theirs.close()
    _prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    _as_subprocess_leaves_them()
    for number in (1, 2):
        os.dup2(log, number)
    os.close(log)
    os.chdir(request["directory"])
    os.set_inheritable(ours.fileno(), True)
    command = [sys.executable, __file__, "supervise", str(ours.fileno()), *request["arguments"]]
    os.execve(command[0], command, request["environment"])


def _as_subprocess_leaves_them() -> None:
    """Signals as subprocess.Popen gives them to a child."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)


# The supervisor.


def supervise(descriptor: int, arguments: Sequence[str]) -> None:
    """Run the product's supervisor, whose training processes are forks of the spare."""
    spare, one_at_a_time = socket.socket(fileno=descriptor), threading.Lock()
    os.set_inheritable(descriptor, False)
    _prctl(_ADOPT_ORPHANS, 1)
    parameters = inspect.signature(vars(subprocess.Popen)["_execute_child"])
    at_import = json.loads(spare.recv(64 * _MESSAGE_BYTES))

    class Popen(subprocess.Popen):  # type: ignore[type-arg]
        """Its other half is Popen's own: pipes, wait, poll, kill."""

        def _execute_child(self, *given: Any) -> None:
            asked = parameters.bind(self, *given).arguments
            python, *rest = asked["args"]
            trains = [python, *rest[:1]] == [sys.executable, "-m"] and rest[1] in _MODULES
            if not trains or read_at_import(asked["env"]) != at_import:
                super()._execute_child(*given)  # type: ignore[misc]
                return
            streams = [asked["p2cread"], asked["c2pwrite"], asked["errwrite"]]
            numbers = {i: stream if stream != -1 else i for i, stream in enumerate(streams)}
            numbers |= {number: number for number in asked["pass_fds"]}
            request = {
                "module": rest[1],
                "arguments": rest[2:],
                "environment": dict(asked["env"]),
                "directory": str(Path.cwd()),
                "numbers": list(numbers),
            }
            with one_at_a_time:
                send(spare, request, list(numbers.values()))
                self.pid = json.loads(spare.recv(_MESSAGE_BYTES))["pid"]
            self._child_created = True
            self._close_pipe_fds(*(asked[name] for name in _PIPES))  # type: ignore[attr-defined]

    subprocess.Popen = Popen  # type: ignore[misc]
    # As `python -m` would begin.
    sys.path[0], sys.argv[1:] = str(Path.cwd()), arguments
    runpy.run_module("tfgpujob_trainer.main", run_name="__main__", alter_sys=True)


_PIPES = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")


# The spare and the training process.


def _spare(requests: socket.socket) -> NoReturn:
    """Fork a training process at each request, as long as the supervisor is there."""
    _prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    requests.send(json.dumps(read_at_import(os.environ)).encode())
    while True:
        request, descriptors = receive(requests)
        if request is None:
            os._exit(0)
        between = os.fork()
        if between == 0:
            _fork_again(requests, request, descriptors)
        os.waitpid(between, 0)
        for each in descriptors:
            os.close(each)


def _fork_again(requests: socket.socket, request: Any, descriptors: Sequence[int]) -> NoReturn:
    between = os.getpid()
    if os.fork() != 0:
        os._exit(0)
    while os.getppid() == between:
        pass  # for a moment: then the supervisor is the parent
    requests.send(json.dumps({"pid": os.getpid()}).encode())
    requests.close()
    code = 1
    try:
        _become(request, descriptors)
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:  # a fork must never go back into the server's loop
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _become(request: Any, descriptors: Sequence[int]) -> None:
    """Run the module as `python -m` would with this environment, directory and descriptors."""
    import random  # noqa: PLC0415

    import numpy as np  # noqa: PLC0415

    from tfgpujob_trainer import task, warm  # noqa: PLC0415

    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    # First out of the way: a descriptor may have come with the number of another.
    above = [fcntl.fcntl(each, fcntl.F_DUPFD, 500) for each in descriptors]
    for each in descriptors:
        os.close(each)
    for each, number in zip(above, request["numbers"], strict=True):
        os.dup2(each, number)
        os.close(each)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["directory"])
    sys.path[0] = request["directory"]
    sys.argv = [request["module"], *request["arguments"]]
    random.seed()
    np.random.seed()
    tempfile.tempdir = None  # which may have been looked up without this TMPDIR
    mains: dict[str, Callable[[list[str]], object]] = {
        "tfgpujob_trainer.task": task.main,
        "tfgpujob_trainer.warm": lambda arguments: warm.main(int(arguments[0])),
    }
    mains[request["module"]](request["arguments"])


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(int(sys.argv[2]))
    else:
        supervise(int(sys.argv[2]), sys.argv[3:])
