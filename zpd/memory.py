"""IO. The process's allocator: keep what KV messages freed, for the next ones.

glibc gives a freed block of some MiB back to the kernel and takes a new one for the next message,
whose every page the kernel must clear first: that took libzmq's thread as long as the copy itself.
"""

from __future__ import annotations

import ctypes

MIB = 2**20
# Blocks below this come from the heap; the largest that glibc allows. One chunk's KV is below it.
FROM_HEAP = 32 * MIB
KEPT = 64 * MIB  # of free memory at a heap's end; what this can cost a node
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # as malloc.h has them


def keep_freed() -> None:
    """Where the C library is glibc; elsewhere nothing happens."""
    try:
        library = ctypes.CDLL(None)
    except OSError:
        return
    if hasattr(library, "gnu_get_libc_version"):
        library.mallopt(_MMAP_THRESHOLD, FROM_HEAP)
        library.mallopt(_TRIM_THRESHOLD, KEPT)
