"""The synchronous client is what is generated from the asynchronous one."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tfgpujob.client.generate import SOURCE, TARGET, generated

ONE = '''
from collections.abc import AsyncIterator
from tfgpujob.client.job import Job
from tfgpujob.names import Condition, Phase

class AsyncClient:
    @classmethod
    async def connect(cls) -> None:
        """Not for scripts."""

    async def _private(self) -> None:
        """Not for anybody."""

    {method}
        """What it does."""
        await self._private()
'''


def made_of(method: str) -> str:
    return generated(ONE.format(method=method))


def test_the_repository_has_what_is_generated() -> None:
    assert TARGET.read_text() == generated(SOURCE.read_text()), "run `make crds`"


def test_a_coroutine_becomes_a_call_and_an_iterator_a_generator() -> None:
    one = made_of("async def stop(self, name: str, *, when: str = Condition.FINISHED) -> Job:")
    assert "    def stop(self, name: str, *, when: str = Condition.FINISHED) -> Job:\n" in one
    assert '"""What it does."""\n        return self._run(self._client.stop(name, when=when))\n' in one
    assert "from tfgpujob.names import Condition\n" in one
    assert "connect" not in one
    assert "_private" not in one
    several = made_of("async def watch(self) -> AsyncIterator[Job]:")
    assert "    def watch(self) -> Generator[Job, None, None]:\n" in several
    assert "return self._iterate(self._client.watch())\n" in several
    assert "from collections.abc import Generator\n" in several


def test_what_returns_nothing_returns_nothing() -> None:
    assert "        self._run(self._client.stop())\n" in made_of("async def stop(self) -> None:")


def test_a_long_call_is_folded_as_the_formatter_does() -> None:
    names = ", ".join(f"argument_{number}: int" for number in range(9))
    call = ", ".join(f"argument_{number}" for number in range(9))
    made = made_of(f"async def stop(self, {names}) -> Job:")
    assert f"        return self._run(\n            self._client.stop({call})\n        )\n" in made


def test_lines_of_logs_come_in_batches() -> None:
    made = made_of("async def logs(self, name: str) -> AsyncIterator[str]:")
    assert "        batches = self.log_batches(name)\n" in made
    assert "                yield from batch\n" in made


def test_arguments_without_a_name_are_refused() -> None:
    with pytest.raises(ValueError, match=r"AsyncClient\.stop: name each argument"):
        made_of("async def stop(self, *names: str) -> Job:")


def test_it_runs_without_the_package() -> None:
    """Also while synchronous.py cannot be imported."""
    command = [sys.executable, "-I", "-S", str(SOURCE.with_name("generate.py")), "--help"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (ran.returncode, ran.stderr) == (2, "usage: python generate.py --write\n")
