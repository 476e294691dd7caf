"""Does the outcome of a test depend on what it should not? `make flaky`, or

    python -m tests.flaky [--runs 5] [--seed N] [--busy N] [TEST ...]      where pytest would be run

Runs the tests again and again, each time in another order, with a process beside that keeps a core busy for each core
there is. Lists each test whose outcome changed from run to run, and those that fail in every one. Exits with 1 if there
is any, with 2 if the tests could not be run.
"""

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.junit import Case, read_cases

ROOT = Path(__file__).parents[1]
BUSY = "import os, sys\nwhile os.getppid() == int(sys.argv[1]):\n    sum(range(100_000))"
FAILED = ("failed", "error")


@contextmanager
def neighbours(count: int) -> "Iterator[list[subprocess.Popen[bytes]]]":
    """Within: so many processes do nothing but keep the machine busy."""
    processes = [subprocess.Popen([sys.executable, "-c", BUSY, str(os.getpid())]) for _ in range(count)]
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.wait()


def run_tests(tests: list[str], seed: int) -> dict[str, Case]:
    """Run them in the order of `seed`; what became of each, by its name. Exits with 2 if they could not be run."""
    with tempfile.TemporaryDirectory(prefix="gpt-flaky-") as folder:
        report = Path(folder) / "report.xml"
        command = [
            sys.executable,
            "-m",
            "pytest",
            f"--shuffle={seed}",
            "-p",
            "no:cacheprovider",
            f"--junitxml={report}",
        ]
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        completed = subprocess.run([*command, *tests], env=environment, capture_output=True, text=True, check=False)
        if completed.returncode not in (0, 1) or not report.exists():
            print(
                f"error: pytest ended with {completed.returncode}",
                completed.stdout[-3000:] + completed.stderr[-3000:],
                sep="\n",
                file=sys.stderr,
            )
            sys.exit(2)
        return {case.name: case for case in read_cases(report)}


def describe(name: str, runs: dict[int, dict[str, Case]]) -> str:
    """How often a test ended in which way, in which orders it failed, and as what."""
    outcomes: dict[str, list[int]] = defaultdict(list)
    for seed, cases in runs.items():
        outcomes[cases[name].outcome if name in cases else "not run"].append(seed)
    lines = [name]
    for outcome, seeds in sorted(outcomes.items()):
        orders = f": --shuffle {', '.join(map(str, seeds))}" if outcome in FAILED else ""
        lines.append(f"    {outcome} {len(seeds)} of {len(runs)}{orders}")
    messages = {cases[name].message for cases in runs.values() if name in cases and cases[name].outcome in FAILED}
    return "\n".join([*lines, *(f"    {message[:200]}" for message in sorted(messages))])


def main(arguments: list[str]) -> int:
    """Run the tests and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tests", nargs="*", metavar="TEST", help="a file, a test, an option of pytest after --")
    parser.add_argument("--runs", type=int, default=5, help="how often (default: 5)")
    parser.add_argument(
        "--seed", type=int, help="of the first order; the next ones count up (default: a new one, told)"
    )
    parser.add_argument("--busy", type=int, default=os.cpu_count() or 1, help="busy processes (default: one a core)")
    options = parser.parse_args(arguments)
    first = random.SystemRandom().randrange(10**6) if options.seed is None else options.seed
    runs: dict[int, dict[str, Case]] = {}
    with neighbours(options.busy):
        for seed in range(first, first + options.runs):
            begun = time.monotonic()
            runs[seed] = run_tests(options.tests, seed)
            counts = Counter(case.outcome for case in runs[seed].values())
            summary = ", ".join(f"{count:,} {outcome}" for outcome, count in sorted(counts.items()))
            print(f"--shuffle {seed}: {summary or 'no tests'} in {time.monotonic() - begun:.0f} s", flush=True)
            for case in runs[seed].values():
                if case.outcome in FAILED:
                    print(f"    {case.name} {case.outcome}: {case.message[:200]}", flush=True)
    outcomes: dict[str, set[str]] = defaultdict(set)
    for name in {name for cases in runs.values() for name in cases}:
        outcomes[name] = {cases[name].outcome if name in cases else "not run" for cases in runs.values()}
    changed = sorted(name for name, results in outcomes.items() if len(results) > 1)
    failing = sorted(name for name, results in outcomes.items() if len(results) == 1 and not results.isdisjoint(FAILED))
    print(f"{len(changed):,} of {len(outcomes):,} tests changed their outcome, {len(failing):,} fail always")
    for name in changed + failing:
        print(describe(name, runs))
    return int(bool(changed or failing))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
