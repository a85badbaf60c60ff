"""Who looks into files uninvited, and how many API calls that may take.

Showing a folder, a file manager reads the head of each file whose name does not tell its type, and a thumbnailer
reads each picture: a call per file. The one opens with O_NOATIME, to leave no trace, as backups do; the others
(tumbler, gdk-pixbuf, indexers) run at the lowest priority there is. Both get what is here, and may fetch while the
hour has calls to spare. Who opens a file to work with it is never counted here. Pure but for asking the system.
"""

from __future__ import annotations

import os

from cloudsimfs.errors import BudgetSpent
from cloudsimfs.service.budget import BudgetState

SPARE = 0.8  # share of the hour's calls that previews leave to others
NICEST = 19  # nice(2)


def is_preview(flags: int, thread: int) -> bool:
    """Whether an open with these O_ flags by this thread is no more than a look. 0: the thread is not known."""
    if flags & os.O_ACCMODE != os.O_RDONLY:
        return False
    if flags & os.O_NOATIME:
        return True
    try:
        return thread > 0 and (
            os.getpriority(os.PRIO_PROCESS, thread) == NICEST or os.sched_getscheduler(thread) == os.SCHED_IDLE
        )
    except OSError:  # it has ended
        return False


def check_spare(state: BudgetState) -> None:
    """Raises BudgetSpent when a preview must not fetch. Not EPERM: GLib would try again without O_NOATIME."""
    if state.limit and state.remaining is not None and state.remaining < SPARE * state.limit:
        raise BudgetSpent(f"previews leave {SPARE:.0%} of the {state.limit} API calls of the hour to others")
