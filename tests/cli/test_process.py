"""The process around a verb: it ends with what it has to say said, and starts without looking for garbage."""

import subprocess
import sys

import pytest

from tests.support.command import ROOT
from tests.support.waiting import HANG


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=HANG, check=False
    )


@pytest.mark.parametrize("torch", ["sys.modules['torch'] = None", "pass"])
@pytest.mark.parametrize("code", [0, 1, 2, 70, 130])
def test_the_end_has_its_code_and_everything_that_was_to_happen_before(torch: str, code: int) -> None:
    completed = run(
        "import atexit, sys, threading, time\n"
        "from gpt_cli.__main__ import fast_exit\n"
        f"{torch}\n"
        "atexit.register(lambda: print('registered', flush=True))\n"
        "threading.Thread(target=lambda: (time.sleep(0.1), print('thread'))).start()\n"
        "sys.stdout.write('not flushed\\n')\n"
        "sys.stderr.write('said')\n"
        f"fast_exit({code})"
    )
    assert completed.returncode == code
    assert sorted(completed.stdout.split("\n")) == ["", "not flushed", "registered", "thread"]
    assert completed.stderr == "said"


def test_a_process_with_torch_ends_without_taking_it_apart() -> None:
    completed = run(
        "import sys\nfrom gpt_cli.__main__ import fast_exit\n"
        "class Left:\n    def __del__(self): print('taken apart', flush=True)\n"
        "sys.modules['torch'] = kept = Left()\nfast_exit(3)"
    )
    assert (completed.returncode, completed.stdout) == (3, "")


def test_imports_are_set_apart_from_garbage_collection_which_goes_on_afterwards() -> None:
    completed = run(
        "import gc, sys\nfrom gpt_cli.cli.process import gc_paused\n"
        "with gc_paused():\n    made = [[] for _ in range(100_000)]\n    assert not gc.isenabled()\n"
        "assert gc.isenabled() and gc.get_freeze_count() > 100_000\n"
        "gc.unfreeze()\nsys.modules['torch'] = None\n"
        "with gc_paused():\n    assert gc.isenabled()\n"
        "assert gc.get_freeze_count() == 0\n"
        "del sys.modules['torch']\n"
        "try:\n    with gc_paused():\n        raise ImportError\nexcept ImportError:\n    assert gc.isenabled()\n"
        "gc.disable()\nwith gc_paused():\n    pass\nassert not gc.isenabled()"
    )
    assert completed.returncode == 0, completed.stderr


# What follows the signal would take for ever.
LATE = {
    "a thread": "threading.Thread(target=lambda: (until_it_ends(), interrupt(), threading.Event().wait())).start()",
    "an exit handler": "atexit.register(lambda: (interrupt(), signal.pause()))",
    "two signals in an exit handler": "atexit.register(lambda: (interrupt(), interrupt(), signal.pause()))",
}


@pytest.mark.parametrize("torch", ["sys.modules['torch'] = None", "pass"])
@pytest.mark.parametrize("late", LATE)
def test_ctrl_c_while_the_process_ends_leaves_at_once_with_its_code_and_no_traceback(late: str, torch: str) -> None:
    completed = run(
        "import atexit, os, signal, sys, threading, time\n"
        "from gpt_cli.__main__ import fast_exit\n"
        "interrupt = lambda: os.kill(os.getpid(), signal.SIGINT)\n"
        "def until_it_ends():\n"
        "    while signal.getsignal(signal.SIGINT) is signal.default_int_handler: time.sleep(0.01)\n"
        f"{torch}\n{LATE[late]}\nfast_exit(3)"
    )
    assert (completed.returncode, completed.stderr) == (3, "")


def test_a_second_ctrl_c_while_the_first_unwinds_leaves_at_once_without_a_traceback() -> None:
    completed = run(
        "import os, signal, sys, time\n"
        "from gpt_cli import __main__ as entry\n"
        "from gpt_cli.cli import main as module\n"
        "interrupt = lambda: os.kill(os.getpid(), signal.SIGINT)\n"
        "def main():\n"
        "    try:\n        interrupt(); signal.pause()\n"
        "    finally:\n        interrupt(); signal.pause()\n"
        "module.main = main\n"
        "entry.run()"
    )
    assert (completed.returncode, completed.stderr) == (130, "")


SWALLOWED = "kept = type('Kept', (), {})()\n    reference = weakref.ref(kept, lambda _: interrupt())\n    del kept"
CAUGHT = "try: interrupt()\n    except BaseException: pass"
PLACES = [
    *((module, lost) for module in ("typer", "gpt_cli.cli.main", "pydantic", "numpy") for lost in (SWALLOWED, CAUGHT)),
    ("none", SWALLOWED),
]


@pytest.mark.parametrize(("module", "lost"), PLACES)
def test_a_ctrl_c_that_an_import_or_a_callback_would_swallow_ends_the_process(module: str, lost: str) -> None:
    completed = run(
        "import os, signal, sys, weakref\n"
        "from gpt_cli import __main__ as entry\n"
        "interrupt = lambda: os.kill(os.getpid(), signal.SIGINT)\n"
        f"def swallow():\n    {lost}\n"
        "class Finder:\n"
        "    def find_spec(self, name, *_):\n"
        f"        if name == {module!r}: swallow()\n"
        "sys.meta_path.insert(0, Finder())\n"
        f"if {module!r} == 'none':\n"
        "    from gpt_cli.cli import main as module\n"
        "    module.main = lambda: [swallow(), 0][1]\n"
        "sys.argv = ['gpt', 'train', 'nothing.txt']\n"
        "entry.run()"
    )
    assert (completed.returncode, completed.stderr) == (130, "")


def test_what_a_callback_raises_otherwise_is_told_and_the_work_goes_on() -> None:
    completed = run(
        "import sys\n"
        "from gpt_cli import __main__ as entry\n"
        "from gpt_cli.cli import main as module\n"
        "class Bad:\n    def __del__(self): raise ValueError('told')\n"
        "def main():\n    Bad()\n    return 3\n"
        "module.main = main\n"
        "entry.run()"
    )
    assert completed.returncode == 3
    assert "ValueError: told" in completed.stderr


def test_a_second_signal_to_a_run_says_that_it_stops_at_once() -> None:
    completed = run(
        "import os, signal\n"
        "from gpt_cli.runtime.signals import stop_requests\n"
        "with stop_requests() as request:\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    while request.received is None: pass\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    signal.pause()"
    )
    assert completed.returncode == 130
    assert completed.stderr.splitlines()[-2:] == [
        "to be stopped after this step, and saved; a second signal ends it at once",
        "stopped at once, by a second signal; what was saved before it is whole",
    ]
