"""Resolve an argument of `gpt train` to a config; reject what is neither a config, a run nor text."""

from pathlib import Path

from gpt_cli.errors import RequestError, UserError
from gpt_cli.files.kinds import CONFIG, RUN, YAML, Kind, kind_of, refuse_unless

TEXTS: tuple[Kind | None, ...] = ("text", "token store", None)
"""Kinds that a config is fitted to."""


def config_file(source: str) -> Path | None:
    """The config that `source` means: itself, or that of the run it is; None for a text.

    Raises RequestError for anything else, and UserError for a run that has lost a file.
    """
    path, kind = Path(source), kind_of(source)
    if kind == "config":
        return path
    if kind == "run":
        return _config_of(path)
    if kind == "damaged run":
        from gpt_cli.run.find_run import refuse_without_record

        refuse_without_record(path)
    refuse_unless(TEXTS, source, "text")
    names = sorted(file.name for file in path.iterdir()) if path.is_dir() else []
    configs = [name for name in names if Path(name).suffix.lower() in YAML]
    if configs and configs == [name for name in names if not name.startswith(".")]:
        raise RequestError(f"{source} is a folder of configs", kind="config", path=path / configs[0])
    return None


def _config_of(run: Path) -> Path:
    if not (run / RUN).exists():
        raise RequestError(f"{run} is a run that was stopped before it began: there is nothing to resume")
    if not (run / CONFIG).exists():
        raise UserError(f"{run} is damaged: {CONFIG} is missing", kind="damaged run", path=run)
    return run / CONFIG
