"""TensorFlow in the test process itself: two logical CPU devices, so that Mirrored is real."""

from __future__ import annotations

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ["KERAS_BACKEND"] = "tensorflow"

import hypothesis
import pytest
from moto.server import ThreadedMotoServer
from tests.trainer import harness
from tests.trainer.forking import ForkServer
from tests.trainer.inprocess import prepare
from tests.trainer.reference import use_float

from tfgpujob_trainer.checkpoints.object_store import ObjectStore
from tfgpujob_trainer.supervise.processes import training_environment

prepare()
# How long an example takes says how busy the machine is.
hypothesis.settings.register_profile(
    "any-machine", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("any-machine")


def pytest_configure(config):
    """Training processes are forked, unless FRESH=1 asks for ones that import TensorFlow."""
    tests_run_here = hasattr(config, "workerinput") or not config.getoption("numprocesses", None)
    if tests_run_here and not config.option.collectonly and os.environ.get("FRESH") != "1":
        harness.forks = ForkServer(training_environment(harness.pod_environment()))


def pytest_collection_finish():
    if harness.forks is not None:
        harness.forks.wait_until_ready()


def pytest_unconfigure():
    if harness.forks is not None:
        harness.forks.close()


@pytest.fixture(autouse=True)
def float32():
    """Each test begins in Keras' default precision, and so do the fixtures of whole modules, which come before it."""
    use_float("float32")
    yield
    use_float("float32")


@pytest.fixture
def float64():
    """Keras in float64, in which a semantic error cannot hide behind rounding."""
    use_float("float64")


@pytest.fixture(scope="module")
def launch(tmp_path_factory):
    """A Launcher of the tests of a module, in a directory of theirs."""
    with harness.launcher(tmp_path_factory.mktemp("tasks")) as started:
        yield started


@pytest.fixture
def launch_here(tmp_path):
    """A Launcher of one test, in its tmp_path."""
    with harness.launcher(tmp_path) as started:
        yield started


class Door:
    """In front of the S3 server: `before` is called with the path of each upload, and may refuse it by raising."""

    def __init__(self, application):
        self._application, self.before = application, lambda _: None

    def __call__(self, environ, start_response):
        if environ["REQUEST_METHOD"] == "PUT":
            self.before(environ["PATH_INFO"])
        return self._application(environ, start_response)


@pytest.fixture(scope="session")
def s3_server():
    """An S3 server of this process, behind a Door."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    server._server.app = Door(server._server.app)
    yield server
    server.stop()


@pytest.fixture(scope="session")
def s3(s3_server):
    """The URL of a bucket on that server, for this process and those that it starts."""
    host, port = s3_server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        patch.setenv("AWS_ACCESS_KEY_ID", "test")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "test")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        ObjectStore("s3://runs")._files.mkdir("runs")
        yield "s3://runs"
