"""SHA256SUMS that are made right again, as whoever wants to deceive would."""

import hashlib
from pathlib import Path


def reseal(path: Path) -> None:
    """Write the sums of the files in `path` anew."""
    names = sorted(file.name for file in path.iterdir() if file.name != "SHA256SUMS")
    sums = [f"{hashlib.sha256((path / name).read_bytes()).hexdigest()}  {name}\n" for name in names]
    (path / "SHA256SUMS").write_text("".join(sums))


def rewrite(path: Path, name: str, data: bytes) -> None:
    """Change a file in `path` and make the sums right again."""
    (path / name).write_bytes(data)
    reseal(path)
