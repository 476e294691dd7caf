"""`gpt serve`: a model at an address."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from gpt_cli.cli.options.complete import complete_checkpoint
from gpt_cli.cli.options.sampling_options import DeviceOption, DtypeOption
from gpt_cli.cli.output import note
from gpt_cli.errors import UserError

_ADDRESS, _LIMITS = "Where, and for whom", "How much"


def serve(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="RUN",
            help="Run directories. [default: the newest]",
            show_default=False,
            autocompletion=complete_checkpoint,
        ),
    ] = None,
    run_option: Annotated[
        list[Path] | None,
        typer.Option(
            "--run",
            metavar="RUN",
            help="The same as RUN. May be given several times.",
            autocompletion=complete_checkpoint,
        ),
    ] = None,
    host: Annotated[str, typer.Option(help="The address to listen on.", rich_help_panel=_ADDRESS)] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any that is free.", rich_help_panel=_ADDRESS)] = 8000,
    api_key_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A key a line; a request needs one of them.", rich_help_panel=_ADDRESS),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Also answer to this Host. Repeatable.", rich_help_panel=_ADDRESS),
    ] = None,
    allow_origin: Annotated[
        list[str] | None,
        typer.Option(metavar="URL", help="Let pages of this origin ask (CORS). Repeatable.", rich_help_panel=_ADDRESS),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Take up new checkpoints of the runs.")] = False,
    device: DeviceOption = "auto",
    engine: Annotated[
        Literal["auto", "native", "torch"], typer.Option(help="native: compiled code, on a CPU. auto: that, if it can.")
    ] = "auto",
    weights: DtypeOption = "fp32",
    seats: Annotated[int, typer.Option(min=1, help="Texts written at once.", rich_help_panel=_LIMITS)] = 64,
    queue: Annotated[int, typer.Option(min=0, help="Texts that wait; beyond it: 429.", rich_help_panel=_LIMITS)] = 256,
    max_tokens: Annotated[int, typer.Option(min=1, help="Tokens of a text.", rich_help_panel=_LIMITS)] = 4096,
    max_prompt: Annotated[int, typer.Option(min=1, help="Tokens of a prompt.", rich_help_panel=_LIMITS)] = 16_384,
    max_n: Annotated[int, typer.Option(min=1, help="Texts of a prompt.", rich_help_panel=_LIMITS)] = 16,
    max_body: Annotated[int, typer.Option(min=1, help="Bytes of a request.", rich_help_panel=_LIMITS)] = 1 << 20,
    time_limit: Annotated[
        float, typer.Option(min=0.001, max=86_400, help="Seconds for a request.", rich_help_panel=_LIMITS)
    ] = 300.0,
    drain: Annotated[
        float, typer.Option(min=0, max=86_400, help="Seconds to finish texts after SIGTERM.", rich_help_panel=_LIMITS)
    ] = 30.0,
) -> None:
    """Put runs behind OpenAI's API, and open a page on them.

    RUN is a run, a checkpoint or a folder of runs; a request names a run by its folder. The same seed gives the text
    of `gpt sample`, whoever else is served. Only this machine is served unless --host says otherwise, which needs
    keys. Ctrl-C or SIGTERM ends it after what is being written.

    Example: gpt serve runs/quickstart --port 8000
    """
    try:
        from gpt_cli.serve import server
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("gpt_cli"):
            raise
        raise UserError(f"gpt serve needs {error.name}", hint="pip install 'gpt-cli[serve]'") from error
    from gpt_cli.run.find_run import find_run
    from gpt_cli.serve.access_control import make_access_policy
    from gpt_cli.serve.limits import Limits
    from gpt_cli.serve.model_registry import EngineOptions, expand

    policy = make_access_policy(host, allow_host or (), allow_origin or (), api_key_file)
    limits = Limits(
        seats=seats,
        queue=queue,
        prompt_tokens=max_prompt,
        max_tokens=max_tokens,
        n=max_n,
        texts=max(Limits.texts, max_n),
        body=max_body,
        seconds=time_limit,
    )
    named = [*(runs or ()), *(run_option or ())] or [find_run(None)]
    for path in named:  # what is wrong with a run is said whatever the port is
        expand(path, lambda _: None)
    listener = server.bind(host, port)
    with listener:
        server.run(
            named,
            listener,
            policy,
            limits,
            EngineOptions(device, engine, weights),
            note,
            follow=5.0 if follow else None,
            drain=drain,
        )
