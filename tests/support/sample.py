"""`gpt sample` in the process of the tests."""

from collections.abc import Callable, Iterator

import pytest

Sample = Callable[..., tuple[int, str, str]]


@pytest.fixture
def sample(capsys: pytest.CaptureFixture[str]) -> Iterator[Sample]:
    """`sample(*arguments)`: the exit code, stdout and stderr; afterwards torch has as many threads as before."""
    import torch

    from gpt_cli.cli.main import main

    def run(*arguments: object) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main(["sample", *map(str, arguments)])
        return code, *capsys.readouterr()

    threads = torch.get_num_threads()
    yield run
    torch.set_num_threads(threads)
