"""The command `gpt`, and `python -m gpt_cli`."""

from typing import NoReturn

from gpt_cli.cli.main import main
from gpt_cli.cli.process import end


def run() -> NoReturn:
    """Do what the arguments of the process ask, and end it."""
    end(main())


if __name__ == "__main__":
    run()
