"""The journal by itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from cloudsimfs.errors import FsError
from cloudsimfs.journal.journal import Journal


def test_a_closed_journal_is_an_error_of_ours(tmp_path: Path) -> None:
    """What ends late at an unmount must not die of an AttributeError."""
    journal = Journal(tmp_path / "journal.db")
    journal.close()
    with pytest.raises(FsError):
        journal.drop_folder("d")
