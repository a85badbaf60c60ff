"""Programs that open files only to show a preview, and how many API calls they may take.

When a folder is shown, a file manager reads the head of each file whose name does not tell its type, and a
thumbnailer reads each picture: a call per file. They differ from programs that work with a file by:

    O_NOATIME              how GLib looks for a type: leaving no trace, as backups do
    the lowest priority    tumbler (Thunar) and indexers run at nice 19, or as SCHED_IDLE
    the program's name     the thumbnailers of GNOME (gdk-pixbuf-thumbnailer, evince-thumbnailer, ...)

They get what is cached, and may fetch while the hour has calls to spare. After that they are refused with EDQUOT:
after an EPERM, GLib would open the file again without the flag.
"""

from __future__ import annotations

import os

from cloudsimfs.service.budget import BudgetState

SPARE_SHARE = 0.8  # share of the hour's calls that previews leave to others
NICEST = 19  # nice(2)
PATH_MAX = 4096  # bytes


def is_preview(flags: int, thread: int) -> bool:
    """Whether an open with these O_ flags by this thread is for a preview. 0: the thread is not known."""
    if flags & os.O_ACCMODE != os.O_RDONLY:
        return False
    return bool(flags & os.O_NOATIME) or (thread > 0 and _is_previewer(thread))


def _is_previewer(thread: int) -> bool:
    try:
        if os.getpriority(os.PRIO_PROCESS, thread) == NICEST or os.sched_getscheduler(thread) == os.SCHED_IDLE:
            return True
        with open(f"/proc/{thread}/cmdline", "rb") as words:
            program = words.read(PATH_MAX).partition(b"\0")[0]
    except OSError:  # the program has ended, or may not be seen
        return False
    return b"thumbnail" in os.path.basename(program)


def is_spare(state: BudgetState) -> bool:
    """Whether a preview may make a call."""
    return not state.limit or state.remaining is None or state.remaining >= SPARE_SHARE * state.limit
