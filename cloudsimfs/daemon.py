"""Going into the background, and logging there. The parent waits until the child says that it is ready.

Must run before the first thread starts: it forks.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
from collections.abc import Callable
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import NoReturn

from cloudsimfs.errors import CloudsimfsError, MountError
from cloudsimfs.service.redact import RedactingFilter, RedactingFormatter, redact

READY = b"ready"
LOG_SIZE = 5 << 20  # bytes of one log file; three old ones are kept
FORMAT = "%(asctime)s %(levelname)s %(threadName)s %(name)s: %(message)s"


def run_in_background(serve: Callable[[Callable[[], None]], None], *, log_file: Path, level: str) -> None:
    """Run `serve(ready)` in a daemon; return when it has called `ready`. Raises MountError with its failure."""
    readable, writable = os.pipe()
    if os.fork() == 0:
        os.close(readable)
        _be_daemon(serve, writable, log_file, level)
    os.close(writable)
    with open(readable, "rb") as pipe:
        said = pipe.read()
    if said != READY:
        raise MountError(said.decode("utf-8", "replace") or f"the daemon died; see {log_file}")


def _be_daemon(serve: Callable[[Callable[[], None]], None], writable: int, log_file: Path, level: str) -> NoReturn:
    """The child's whole life; never returns to the caller's code."""
    status = 1
    try:
        os.setsid()
        os.chdir("/")
        set_up_logging(log_file, level)
        errors = _redirect_output()

        def ready() -> None:
            os.write(writable, READY)
            os.close(writable)

        try:
            serve(ready)
            status = 0
        except CloudsimfsError as error:
            logging.getLogger(__name__).error("%s", error)
            told = os.pread(errors, 4096, 0).decode("utf-8", "replace").strip()
            _tell(writable, redact(f"{error}{': ' if told else ''}{told.splitlines()[-1] if told else ''}"))
        except Exception as error:  # the parent must hear of it, whatever it is
            logging.getLogger(__name__).exception("the mount failed")
            _tell(writable, redact(f"unexpected {type(error).__name__}: {error}; see {log_file}"))
    finally:
        logging.shutdown()
        os._exit(status)


def _tell(writable: int, message: str) -> None:
    with contextlib.suppress(OSError):  # the parent is gone, or was told "ready" before
        os.write(writable, message.encode())


def _redirect_output() -> int:
    """Detach from the terminal. Returns the file that collects what libfuse prints on stderr."""
    errors = os.memfd_create("stderr", os.MFD_CLOEXEC)
    null = os.open(os.devnull, os.O_RDWR)
    for fd, target in ((0, null), (1, null), (2, errors)):
        os.dup2(target, fd)
    os.close(null)
    return errors


def set_up_logging(log_file: Path | None, level: str) -> None:
    """Log to `log_file` (0600, rotated), or to stderr. Everything passes redaction."""
    if log_file is None:
        handler: logging.Handler = logging.StreamHandler(sys.stderr)
    else:
        log_file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        os.close(os.open(log_file, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600))
        handler = RotatingFileHandler(log_file, maxBytes=LOG_SIZE, backupCount=3, encoding="utf-8")
    handler.addFilter(RedactingFilter())
    handler.setFormatter(RedactingFormatter(FORMAT))
    logging.basicConfig(level=level, handlers=[handler], force=True)
    logging.getLogger("urllib3").setLevel(logging.WARNING)
    threading.excepthook = _log_end_of_thread


def _log_end_of_thread(end: threading.ExceptHookArgs) -> None:
    """What ends a thread is a bug, and stderr is not seen by anybody."""
    if end.exc_value is not None:
        name = end.thread.name if end.thread is not None else "a thread"
        logging.getLogger(__name__).error("%s ended: unexpected", name, exc_info=end.exc_value)
