"""Counts, lists and sizes as people read them."""

import pytest

from cloudsimfs.text import agree, count, gib, listed, mib, parse_size, printable, printable_lines


def test_counts_have_the_right_plural() -> None:
    assert [count(number, "file") for number in (0, 1, 2)] == ["0 files", "1 file", "2 files"]
    assert [count(number, "launch") for number in (1, 2)] == ["1 launch", "2 launches"]
    assert [agree(number, "waits", "wait") for number in (0, 1, 2)] == ["wait", "waits", "wait"]


def test_lists_end_with_and() -> None:
    assert [listed(list("abc")[:number]) for number in range(4)] == ["", "a", "a and b", "a, b and c"]


def test_sizes() -> None:
    assert (mib(3 << 19), gib(3 << 29)) == ("1.5 MiB", "1.5 GiB")
    assert [parse_size(text) for text in ("1000", "2k", "1.5M", "512MiB", "1GB")] == [
        *(1000, 2048, 3 << 19, 512 << 20, 1 << 30)
    ]
    for wrong in ("", "5 apples", "-1", "1e3"):
        with pytest.raises(ValueError, match="not a size"):
            parse_size(wrong)


def test_what_controls_a_terminal_is_shown_as_an_escape() -> None:
    assert printable("a b\u00e9\u6f22") == "a b\u00e9\u6f22"
    assert printable("a\nb\r\x1b[2J\x9b\u202e\u2028\udc80") == r"a\nb\r\x1b[2J\x9b\u202e\u2028\udc80"
    assert printable_lines("a\n\tb\x07\r\n") == "a\n\tb\\x07\\r\n"
