"""The one error tree and the one error-to-errno table: the errno stands on the class.

    CloudsimfsError                 EIO           any failure of this package; the text says what to do
    |-- ConfigError                 EINVAL        a setting or file the user gave is wrong
    |-- MountError                  EIO           mounting or unmounting failed
    |   `-- Crashed                 EIO           the daemon died; the log says why
    |-- FsError                     EIO           the answer to a filesystem call
    |   |-- NotFound                ENOENT        definitely absent; never for "could not look"
    |   |-- Exists                  EEXIST
    |   |-- NotEmpty                ENOTEMPTY
    |   |-- IsDirectory             EISDIR
    |   |-- NotDirectory            ENOTDIR
    |   |-- NotPermitted            EPERM
    |   |-- Denied                  EACCES
    |   |-- Invalid                 EINVAL
    |   |-- BadHandle               EBADF
    |   |-- NameTooLong             ENAMETOOLONG
    |   |-- NotSupported            ENOTSUP
    |   |-- Stale                   ESTALE        the version was replaced on the service, or is gone: a listing tells
    |   |-- NoSpace                 ENOSPC
    |   |-- WrongState              EBUSY         a file, folder or run cannot do that now
    |   `-- TryAgain                EAGAIN        an earlier step is unresolved
    |       `-- NotFinished         EAGAIN        an earlier step is still going on
    `-- ServiceError                EIO           a call to the service failed
        |-- Unreachable             EHOSTUNREACH  no connection: DNS, refused, reset
        |-- TimedOut                ETIMEDOUT     the service did not answer in time
        |-- KeyRefused              EACCES        the API key is not accepted
        |   `-- VersionNotEnabled   EACCES        the key is good, but the account may not use API v2
        |-- BudgetSpent             EDQUOT        no API calls left in this hour (ours or the service's count)
        |-- NotOffered              ENOTSUP       this API version has no such call
        |-- NoSuchEntry             ENOENT        the service knows no such file, folder or run
        |-- Refused                 EIO           the service answered with an error of its own
        |   `-- Unexplained         EIO           an error without a reason: the call may have been carried out
        |-- ServerFault             EIO           5xx, or a web page in place of an answer
        |-- BadReply                EIO           an answer that fits no known shape
        |-- LinkExpired             EIO           a signed URL is no longer accepted
        |-- VersionChanged          ESTALE        the stored object is not the one asked for
        |-- Cancelled               EINTR         a transfer or a wait was called off here
        `-- LaunchUnresolved        EAGAIN        the answer to a launch was lost: look for the run, never send again

Pure: imports nothing of the product.
"""

from __future__ import annotations

import errno


class CloudsimfsError(Exception):
    """Base of all errors of this package; `errno` is what a FUSE callback answers with."""

    errno: int = errno.EIO


class ConfigError(CloudsimfsError):
    errno = errno.EINVAL


class MountError(CloudsimfsError):
    errno = errno.EIO


class Crashed(MountError):
    errno = errno.EIO


# -- the filesystem's own ---------------------------------------------------------------------------


class FsError(CloudsimfsError):
    errno = errno.EIO


class NotFound(FsError):
    errno = errno.ENOENT


class Exists(FsError):
    errno = errno.EEXIST


class NotEmpty(FsError):
    errno = errno.ENOTEMPTY


class IsDirectory(FsError):
    errno = errno.EISDIR


class NotDirectory(FsError):
    errno = errno.ENOTDIR


class NotPermitted(FsError):
    errno = errno.EPERM


class Denied(FsError):
    errno = errno.EACCES


class Invalid(FsError):
    errno = errno.EINVAL


class BadHandle(FsError):
    errno = errno.EBADF


class NameTooLong(FsError):
    errno = errno.ENAMETOOLONG


class NotSupported(FsError):
    errno = errno.ENOTSUP


class Stale(FsError):
    errno = errno.ESTALE


class NoSpace(FsError):
    errno = errno.ENOSPC


class WrongState(FsError):
    errno = errno.EBUSY


class TryAgain(FsError):
    errno = errno.EAGAIN


class NotFinished(TryAgain):
    errno = errno.EAGAIN


# -- the service's ----------------------------------------------------------------------------------


class ServiceError(CloudsimfsError):
    """A call to the service failed. The text names the call and never holds a secret."""

    errno = errno.EIO


class Unreachable(ServiceError):
    errno = errno.EHOSTUNREACH


class TimedOut(ServiceError):
    errno = errno.ETIMEDOUT


class KeyRefused(ServiceError):
    errno = errno.EACCES


class VersionNotEnabled(KeyRefused):
    errno = errno.EACCES


class BudgetSpent(ServiceError):
    """No API calls left. `retry_after` is in seconds, when the service or our own count knows it."""

    errno = errno.EDQUOT

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class NotOffered(ServiceError):
    errno = errno.ENOTSUP


class NoSuchEntry(ServiceError):
    errno = errno.ENOENT


class Refused(ServiceError):
    errno = errno.EIO


class Unexplained(Refused):
    errno = errno.EIO


class ServerFault(ServiceError):
    errno = errno.EIO


class BadReply(ServiceError):
    errno = errno.EIO


class LinkExpired(ServiceError):
    errno = errno.EIO


class VersionChanged(ServiceError):
    errno = errno.ESTALE


class Cancelled(ServiceError):
    errno = errno.EINTR


class LaunchUnresolved(ServiceError):
    errno = errno.EAGAIN
