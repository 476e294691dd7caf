"""Exchange two names (RENAME_EXCHANGE) again and again, as somebody else would, until killed.

python -m tests.support.rename_exchange ONE OTHER
"""

import ctypes
import os
import sys

_RENAME_EXCHANGE = 2
_AT_FDCWD = -100


def exchange(first: str, second: str) -> None:
    """Exchange what two paths name, in one step. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(_AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second), _RENAME_EXCHANGE):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


if __name__ == "__main__":
    exchange(*sys.argv[1:])
    print("exchanging", flush=True)
    while True:
        exchange(*sys.argv[1:])
