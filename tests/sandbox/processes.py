"""The processes that belong to a sandbox."""

import time
from pathlib import Path


def server_processes():
    """Ids of all processes that are servers for programs, or were forked by one."""
    found = set()
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and b"inside/programs.py" in (entry / "cmdline").read_bytes():
                found.add(int(entry.name))
        except OSError:  # it has just ended
            continue
    return found


def none_is_left_of(before, seconds=10):
    """Whether no server has been added to those `before`, or all that were are gone within some seconds."""
    until = time.monotonic() + seconds
    while not server_processes() <= before and time.monotonic() < until:
        time.sleep(0.1)
    return server_processes() <= before
