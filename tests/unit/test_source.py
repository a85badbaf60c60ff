"""One version of a file by itself: replies of two versions are told apart, whatever the client lets through."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import pytest

from cloudsimfs.errors import VersionChanged
from cloudsimfs.prefetch.source import Source
from cloudsimfs.service import Client, Download
from cloudsimfs.service.model import Entry

ENTRY = Entry(17, "", "f", is_dir=False, size=4, mtime_ns=0)


class Reply:
    """An open body with an ETag, as `Fetched`."""

    offset = 0

    def __init__(self, etag: str | None, total: int | None = 4) -> None:
        self.etag = etag
        self.total = total
        self.closed = False

    def __enter__(self) -> Reply:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.closed = True

    def blocks(self) -> Iterator[bytes]:
        yield b"data"


class Service:
    """Answers with these replies, one after the other; what is expected of them it leaves to who asks."""

    def __init__(self, *replies: Reply) -> None:
        self.left = list(replies)
        self.links = 0

    def download(self, _: int) -> Download:
        self.links += 1
        return Download(f"https://h/{self.links}")

    def fetch(self, _: Download, **__: Any) -> Reply:
        return self.left.pop(0)


def source(service: Service, earlier: Source | None = None) -> Source:
    return Source(cast(Client, service), ENTRY, earlier=earlier)


def test_a_reply_of_another_version_is_refused() -> None:
    """As when two first replies, of which neither could expect an ETag, come from two versions."""
    replies = Reply('"one"'), Reply('"two"')
    found = source(Service(*replies))
    assert found.read(0, 4) == b"data"
    with pytest.raises(VersionChanged):
        found.read(0, 4)
    assert all(reply.closed for reply in replies)


def test_a_reply_without_an_etag_is_believed() -> None:
    found = source(Service(Reply('"one"'), Reply(None)))
    assert found.read(0, 4) + found.read(0, 4) == b"datadata"
    assert found.etag == '"one"'


def test_an_earlier_versions_link_has_to_prove_what_it_serves() -> None:
    """Without a size its reply may be the version before: a link is asked for."""
    earlier = source(Service(Reply('"old"')))
    earlier.read(0, 4)
    unproved = Reply(None, total=None)
    service = Service(unproved, Reply(None))
    assert source(service, earlier).read(0, 4) == b"data"
    assert unproved.closed
    assert service.links == 1
