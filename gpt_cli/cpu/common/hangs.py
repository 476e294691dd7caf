"""Remember a compiler that hung, so that it is not tried again until it is replaced."""

import json
from contextlib import suppress
from dataclasses import asdict

from gpt_cli.cpu.common.build_store import DamagedLibraryError, Store
from gpt_cli.cpu.common.compiler import Compiler

_FILE = "hang.json"
_LIMIT = 10_000  # bytes


def remember_hang(store: Store, compiler: Compiler, seconds: float) -> None:
    """Record that `compiler` did not end within `seconds`; a store that cannot be written to forgets it."""
    fields = {**asdict(compiler), "version": compiler.version(), "seconds": seconds}
    with suppress(OSError):
        store.write_file(_FILE, json.dumps(fields, indent=1).encode())


def remembered_hang(store: Store, compiler: Compiler) -> float | None:
    """The seconds within which this very compiler, of this version, did not end; None if it is to be tried."""
    try:
        fields = json.loads(store.read_file(_FILE, _LIMIT) or b"{}")
        if any(fields[name] != value for name, value in asdict(compiler).items()):
            return None
        if fields["version"] and fields["version"] != compiler.version():  # one that hung here, too, said nothing
            return None
        return float(fields["seconds"])
    except (DamagedLibraryError, ValueError, TypeError, KeyError):
        return None


def forget_hang(store: Store) -> None:
    """Forget a remembered hang, after a compilation that ended."""
    with suppress(OSError):
        store.remove(_FILE)
