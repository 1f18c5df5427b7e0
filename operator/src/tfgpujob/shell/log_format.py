"""The format of the operator's own log lines: JSON for a log store, or text for a person; fields come in `extra`."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any

_ESCAPED = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160))}
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def set_up(log_format: str, level: str) -> None:
    """Send all logging to standard error in this format: json or text."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    logging.basicConfig(level=level, handlers=[handler], force=True)
    # kopf logs every object it sees; only its warnings matter.
    logging.getLogger("kopf").setLevel(logging.WARNING)


class JsonFormatter(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        line = {"time": _time(record), "level": record.levelname, "message": record.getMessage(), **_extra(record)}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class TextFormatter(logging.Formatter):
    """Time, level, message, and the rest as name=value."""

    def format(self, record: logging.LogRecord) -> str:
        extra = "".join(f" {name}={value}" for name, value in _extra(record).items())
        # A newline in other text must not start what looks like a log line of ours.
        line = f"{_time(record)} {record.levelname} {record.getMessage()}{extra}".translate(_ESCAPED)
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")


def _extra(record: logging.LogRecord) -> dict[str, Any]:
    return {name: value for name, value in vars(record).items() if name not in _STANDARD}
