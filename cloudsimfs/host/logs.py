"""The mount's log: a file that is rotated here, the systemd journal, or stderr. Everything passes redaction.

This process rotates the file and keeps three old ones, since logrotate does not know a user's log. Under systemd, the
log goes to the journal instead.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import time
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path

from cloudsimfs.errors import ConfigError
from cloudsimfs.host.files import make_private
from cloudsimfs.redact import RedactingFilter, RedactingFormatter, redact

LOG_SIZE = 5 << 20  # bytes of one log file
OLD_LOGS = 3
FORMAT = "%(asctime)s %(levelname)s %(threadName)s %(name)s: %(message)s"
JOURNAL_FORMAT = "%(threadName)s %(name)s: %(message)s"  # the journal has time and level of its own

_PRIORITIES = ((logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6), (logging.NOTSET, 7))  # sd-daemon(3)


def set_up_logging(log_file: Path | None, level: str, log_format: str = "text") -> None:
    """Log to `log_file` (0600), or to stderr, which may be the journal. Raises ConfigError."""
    if log_file is None:
        handler: logging.Handler = logging.StreamHandler(sys.stderr)
    else:
        try:
            make_private(log_file.parent)
            handler = _PrivateFile(log_file, maxBytes=LOG_SIZE, backupCount=OLD_LOGS, encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"log file {log_file}: {error.strerror}") from None
    handler.addFilter(RedactingFilter())
    handler.setFormatter(_formatter(log_format, journal=log_file is None and stderr_is_journal()))
    logging.basicConfig(level=level, handlers=[handler], force=True)
    logging.getLogger("urllib3").setLevel(logging.WARNING)
    threading.excepthook = _log_end_of_thread


def stderr_is_journal() -> bool:
    """Whether stderr is the journal's stream: systemd.exec(5) names its device and inode."""
    try:
        stream = os.fstat(2)
    except OSError:
        return False
    return os.environ.get("JOURNAL_STREAM", "") == f"{stream.st_dev}:{stream.st_ino}"


class _PrivateFile(RotatingFileHandler):
    """Files made by a rotation are the user's alone, too."""

    def _open(self) -> TextIOWrapper:
        flags = os.O_APPEND | os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
        fd = os.open(self.baseFilename, flags, 0o600)  # the user may have named a link, as /dev/stderr
        return open(fd, "a", encoding=self.encoding)  # the handler closes it


class _Json(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname,
            "logger": record.name,
            "thread": record.threadName,
            "message": record.getMessage(),
        }
        if record.exc_text or record.exc_info:
            line["traceback"] = record.exc_text or self.formatException(record.exc_info)  # type: ignore[arg-type]
        return redact(json.dumps(line))


class _Journal(RedactingFormatter):
    """Puts the syslog level before each line (sd-daemon(3)): all lines of a traceback have the same one."""

    def __init__(self, inner: logging.Formatter) -> None:
        super().__init__()
        self._inner = inner

    def format(self, record: logging.LogRecord) -> str:
        priority = next(number for level, number in _PRIORITIES if record.levelno >= level)
        return "\n".join(f"<{priority}>{line}" for line in self._inner.format(record).splitlines())


def _formatter(log_format: str, *, journal: bool) -> logging.Formatter:
    inner = _Json() if log_format == "json" else RedactingFormatter(JOURNAL_FORMAT if journal else FORMAT)
    return _Journal(inner) if journal else inner


def _log_end_of_thread(end: threading.ExceptHookArgs) -> None:
    """Log the exception that ended a thread: it is a bug, and nobody sees stderr."""
    if end.exc_value is not None:
        name = end.thread.name if end.thread is not None else "a thread"
        logging.getLogger(__name__).error("%s ended: unexpected", name, exc_info=end.exc_value)
