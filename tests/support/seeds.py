"""Torch's default generator begins anew for each test, and for each fixture that several share.

Torch seeds it from the system's entropy: what a test draws would be other numbers in every run.
"""

from collections.abc import Generator

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    _begin_anew()


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[object]) -> Generator[None, object, object]:
    if fixturedef.scope == "function":
        return (yield)
    _begin_anew()
    value = yield
    _begin_anew()  # for the fixtures of the test that happens to be the first to need this one
    return value


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call() -> None:
    _begin_anew()


def _begin_anew() -> None:
    import torch  # only where tests run, after OMP_NUM_THREADS is set

    torch.default_generator.manual_seed(0)
