"""The operator as a process that kills itself with SIGKILL at a chosen write.

`python -m tests.integration.dying_operator after 3 NAMESPACE`: right after the API server has answered the third write
to an object of the namespace. `before 3`: right before it would be sent.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from tfgpujob.kube.connection import Connection
from tfgpujob.shell.main import main


def arm(moment: str, number: int, namespace: str) -> None:
    """Every write of this process passes here from now on."""
    send = Connection.send
    seen = 0

    async def counted(self: Connection, method: str, path: str, **options: Any) -> Any:
        nonlocal seen
        if method == "GET" or f"/namespaces/{namespace}/" not in path:
            return await send(self, method, path, **options)
        seen += 1
        mine = seen == number
        if mine and moment == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        answer = await send(self, method, path, **options)
        if mine:
            os.kill(os.getpid(), signal.SIGKILL)
        return answer

    Connection.send = counted  # type: ignore[method-assign]


if __name__ == "__main__":
    moment, number, namespace = sys.argv[1:]
    # The operator has arguments of its own.
    del sys.argv[1:]
    arm(moment, int(number), namespace)
    main()
