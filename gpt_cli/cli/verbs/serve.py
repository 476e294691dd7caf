"""`gpt serve`: models behind an OpenAI-compatible API."""

from pathlib import Path
from typing import Annotated, Any

import typer

from gpt_cli.cli.options.complete import complete_checkpoint
from gpt_cli.cli.options.shared_options import DeviceOption, DtypeOption, EngineOption, option
from gpt_cli.cli.output import note
from gpt_cli.errors import require_package

_ADDRESS, _LIMITS = "Where, and for whom", "How much"
_RUN: dict[str, Any] = {"metavar": "RUN", "autocompletion": complete_checkpoint}


def serve(
    runs: Annotated[
        list[Path] | None, typer.Argument(help="Run directories. [default: the newest]", show_default=False, **_RUN)
    ] = None,
    run_option: Annotated[
        list[Path] | None, typer.Option("--run", help="The same as RUN. May be given several times.", **_RUN)
    ] = None,
    host: Annotated[str, option(_ADDRESS, "The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, option(_ADDRESS, "0: any that is free.", min=0, max=65535)] = 8000,
    api_key_file: Annotated[
        Path | None, option(_ADDRESS, "A key a line; a request needs one of them.", metavar="FILE")
    ] = None,
    allow_host: Annotated[
        list[str] | None, option(_ADDRESS, "Also answer to this Host. Repeatable.", metavar="NAME")
    ] = None,
    allow_origin: Annotated[
        list[str] | None, option(_ADDRESS, "Let pages of this origin ask (CORS). Repeatable.", metavar="URL")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Take up new checkpoints of the runs.")] = False,
    device: DeviceOption = "auto",
    engine: EngineOption = "auto",
    weights: DtypeOption = "fp32",
    seats: Annotated[int, option(_LIMITS, "Texts written at once.", min=1)] = 64,
    queue: Annotated[int, option(_LIMITS, "Texts that wait; beyond it: 429.", min=0)] = 256,
    max_tokens: Annotated[int, option(_LIMITS, "Tokens of a text.", min=1)] = 4096,
    max_prompt: Annotated[int, option(_LIMITS, "Tokens of a prompt.", min=1)] = 16_384,
    max_n: Annotated[int, option(_LIMITS, "Texts of a prompt.", min=1)] = 16,
    max_body: Annotated[int, option(_LIMITS, "Bytes of a request.", min=1)] = 1 << 20,
    time_limit: Annotated[float, option(_LIMITS, "Seconds for a request.", min=0.001, max=86_400)] = 300.0,
    drain: Annotated[float, option(_LIMITS, "Seconds to finish texts after SIGTERM.", min=0, max=86_400)] = 30.0,
) -> None:
    """Serve runs through an OpenAI-compatible API, with a web page.

    RUN is a run, a checkpoint or a folder of runs; a request names a run by its folder. A seed gives the text that
    `gpt sample` writes, whatever else is served. Only this machine is served unless --host names another address, which
    needs keys. Ctrl-C or SIGTERM stops the server after the texts in progress.

    Example: gpt serve runs/quickstart --port 8000
    """
    for package in ("fastapi", "uvicorn", "prometheus_client"):
        require_package(package, "gpt serve needs", "gpt-cli[serve]")
    from gpt_cli.run.find_run import find_run
    from gpt_cli.serve import server
    from gpt_cli.serve.access_control import make_access_policy
    from gpt_cli.serve.limits import Limits
    from gpt_cli.serve.model_registry import EngineOptions, expand

    policy = make_access_policy(host, allow_host or (), allow_origin or (), api_key_file)
    limits = Limits(seats, queue, max_prompt, max_tokens, max_n, max(Limits.texts, max_n), max_body, time_limit)
    named = [*(runs or ()), *(run_option or ())] or [find_run(None)]
    for path in named:  # report what is wrong with a run before the port
        expand(path, lambda _: None)
    options = EngineOptions(device, engine, weights)
    with server.bind(host, port) as listener:
        server.run(named, listener, policy, limits, options, note, follow=5.0 if follow else None, drain=drain)
