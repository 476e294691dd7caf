"""The command that puts back a lost or damaged file of a run from a checkpoint, each of which has copies of some."""

from pathlib import Path
from shlex import quote

from gpt_cli.files.sums import SUMS, matches


def how_to_put_back(path: Path, name: str) -> str | None:
    """The command for the file `name` of the run directory `path`; None if no checkpoint has a copy.

    It takes the newest copy with the file's SHA-256. Where none has it, as of a config that was changed since, it takes
    the newest one, and removes the line of SHA256SUMS, which is of another.
    """
    copies = sorted(path.glob(f"checkpoints/*/{name}"), reverse=True)
    if not copies:
        return None
    same = next((copy for copy in copies if matches(path, name, copy)), None)
    command = f"cp {quote(str(same or copies[0]))} {quote(str(path))}"
    return command if same is not None else f"{command} && sed -i.old '/  {name}$/d' {quote(str(path / SUMS))}"
