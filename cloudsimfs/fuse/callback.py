"""From what a callback raises to the errno that the kernel gets.

Threading: none of its own; runs in libfuse's threads.
"""

from __future__ import annotations

import errno
import functools
import logging
import os
from collections.abc import Callable
from typing import Any, TypeVar

from cloudsimfs.errors import CloudsimfsError
from cloudsimfs.fuse.binding import stay_attached

log = logging.getLogger(__name__)

T = TypeVar("T")


def callback(function: Callable[..., T]) -> Callable[..., T]:
    """Translate every failure to an OSError with the errno of its class; any other is EIO, with a traceback."""

    @functools.wraps(function)
    def translated(self: Any, *args: Any) -> T:
        stay_attached()
        try:
            return function(self, *args)
        except CloudsimfsError as error:
            level = logging.DEBUG if error.errno in (errno.ENOENT, errno.EEXIST) else logging.INFO
            log.log(level, "%s %s: %s: %s", function.__name__, args[:1], type(error).__name__, error)
            raise OSError(error.errno, os.strerror(error.errno)) from error
        except OSError as error:
            if error.errno is None:
                log.exception("%s %s: unexpected", function.__name__, args[:1])
                raise OSError(errno.EIO, os.strerror(errno.EIO)) from error
            raise
        except Exception as error:  # a bug must cost one call, not the mount
            log.exception("%s %s: unexpected", function.__name__, args[:1])
            raise OSError(errno.EIO, os.strerror(errno.EIO)) from error

    return translated
