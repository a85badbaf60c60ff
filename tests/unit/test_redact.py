"""Nothing secret leaves in text; keys are read from files with clear errors."""

from __future__ import annotations

import io
import json
import logging
import os
from pathlib import Path

import pytest

from cloudsimfs.errors import ConfigError
from cloudsimfs.redact import RedactingFilter, RedactingFormatter, redact, register_secret
from cloudsimfs.service.credentials import Credentials, load_key

SECRET = "s3cr3t-Key-0123456789"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("GET https://h.example/a/b?sig=abc&x=1 failed", "GET https://h.example/a/b?... failed"),
        ("https://user:pass@h/a", "https://h/a"),
        ("https://h:8443/objects/abc123?x", "https://h:8443/objects/...?..."),
        ('"GET /objects/AbC_dEf HTTP/1.1" 200', '"GET /objects/... HTTP/1.1" 200'),
        ("https://h/bucket/0123456789abcdef0123456789/f", "https://h/bucket/.../f"),
        ("/api/v1/storage?api_key=abc HTTP/1.1", "/api/v1/storage?... HTTP/1.1"),
        ("api_key=abcdef and more", "api_key=*** and more"),
        ("{'api-key': 'abcdef'}", "{'api-key': ***}"),
        ("X-API-key: abcdef", "X-API-key: ***"),
        ('{"vnc_url": "https://h/x", "id": 1}', '{"vnc_url": ***, "id": 1}'),
        ('{"username": "u", "key": "abc"}', '{"username": "u", "key": ***}'),
        ("Authorization: Basic dXNlcg==", "Authorization: ***"),
        ("nothing here; key=token-1 stays", "nothing here; key=token-1 stays"),
        ("PUT /storage/17/list: HTTP 500", "PUT /storage/17/list: HTTP 500"),
    ],
)
def test_redact(text: str, expected: str) -> None:
    assert redact(text) == expected


def test_registered_secrets_are_hidden_everywhere() -> None:
    register_secret(SECRET)
    assert SECRET not in redact(f"so {SECRET} was said, /x/{SECRET}/y")
    register_secret("ab")
    assert redact("a cab") == "a cab"


@pytest.mark.parametrize("form", ["filter", "formatter"])
def test_logs_and_tracebacks_are_redacted(form: str) -> None:
    register_secret(SECRET)
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    if form == "filter":
        handler.addFilter(RedactingFilter())
    else:
        handler.setFormatter(RedactingFormatter("%(levelname)s %(message)s"))
    logger = logging.Logger("redaction")
    logger.addHandler(handler)
    try:
        raise ValueError(f"https://h/x?sig={SECRET}")
    except ValueError:
        logger.exception("failed with %s", {"api_key": SECRET}, stack_info=True)
    text = out.getvalue()
    assert "Traceback" in text
    assert "ValueError" in text
    assert "failed with" in text
    assert SECRET not in text


def test_a_record_cannot_be_forged() -> None:
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    handler.addFilter(RedactingFilter())
    handler.setFormatter(RedactingFormatter("%(levelname)s %(message)s"))
    logger = logging.Logger("forging")
    logger.addHandler(handler)
    try:
        raise ValueError("x\nERROR forged \x1b[2J")
    except ValueError:
        logger.exception("no file %s", "x\nERROR forged \x1b[2J")
    first, *more = out.getvalue().splitlines()
    assert first == r"ERROR no file x\nERROR forged \x1b[2J"
    assert r"  ERROR forged \x1b[2J" in more
    assert all(line.startswith("  ") for line in more)


def key_file(directory: Path, content: str | bytes) -> Path:
    path = directory / "key"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    path.chmod(0o600)
    return path


@pytest.mark.parametrize(
    ("content", "username"),
    [
        (SECRET, None),
        (f"\ufeff  {SECRET}\r\n\n", None),
        *[
            (json.dumps({"username": "ann", name: f" {SECRET} "}), "ann")
            for name in ("key", "api_key", "apiKey", "api-key", "API Key", "token", "license_key")
        ],
        (json.dumps({"user": "ann", "key": SECRET, "other": {"a": 1}}), "ann"),
        (json.dumps({"key": SECRET}), None),
    ],
)
def test_load_key(tmp_path: Path, content: str, username: str | None) -> None:
    found = load_key(key_file(tmp_path, content))
    assert found == Credentials(username, SECRET)
    assert SECRET not in repr(found)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "empty"),
        (" \n", "empty"),
        (b"\xff\xfe\x00", "not a text file"),
        ("abcdef0\nabcdef1\n", "more than one line"),
        ("abc def", "no spaces"),
        ("schlüssel", "ASCII"),
        ("{not json", "not valid JSON"),
        ('{"username": "ann"}', "no member"),
        ('{"key": 5}', "no member"),
        ("x" * 70_000, "too large"),
    ],
)
def test_bad_key_files(tmp_path: Path, content: str | bytes, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        load_key(key_file(tmp_path, content))
    told = str(caught.value).replace(str(tmp_path), "")
    assert "abcdef" not in told


def test_missing_key_files(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        load_key(tmp_path / "none")
    with pytest.raises(ConfigError, match="directory"):
        load_key(tmp_path)


def test_a_readable_key_file_warns(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = key_file(tmp_path, SECRET)
    load_key(path)
    assert not caplog.records
    path.chmod(0o644)
    load_key(path)
    assert "chmod 600" in caplog.text
    assert SECRET not in caplog.text


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_a_key_file_that_others_may_write_is_refused(tmp_path: Path, mode: int) -> None:
    path = key_file(tmp_path, SECRET)
    path.chmod(mode)
    with pytest.raises(ConfigError, match=f"others may write to it; run: chmod 600 {path}$"):
        load_key(path)
    path.chmod(0o600)
    assert load_key(path).key == SECRET


def test_a_key_file_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = key_file(tmp_path, SECRET)
    if os.geteuid() == 0:
        os.chown(path, 65534, 65534)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 65534)
    with pytest.raises(ConfigError, match="it belongs to another user"):
        load_key(path)


def test_a_key_file_is_a_regular_one(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    for path in (tmp_path / "pipe", Path("/dev/null")):
        with pytest.raises(ConfigError, match="no regular file"):
            load_key(path)
    (tmp_path / "link").symlink_to(key_file(tmp_path, SECRET))  # as those keep them who manage their dotfiles
    assert load_key(tmp_path / "link").key == SECRET
