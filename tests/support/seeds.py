"""Torch's default generator begins anew for each test, and for each fixture that several share.

Torch seeds it from the system's entropy: what a test draws would be other numbers in every run.
"""

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    _begin_anew()


@pytest.hookimpl(tryfirst=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[object]) -> None:
    if fixturedef.scope != "function":
        _begin_anew()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call() -> None:
    _begin_anew()


def _begin_anew() -> None:
    import torch  # only where tests run, after OMP_NUM_THREADS is set

    torch.default_generator.manual_seed(0)
