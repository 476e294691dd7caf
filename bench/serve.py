"""What continuous batching brings: `gpt serve` with one client and with many; how soon a newcomer's first token comes.

    python -m bench.serve                                 10.65M parameters, fp32, 64 clients
    python -m bench.serve --weights int8 --clients 16
    python -m bench.serve --run runs/quickstart           a run of yours

The server is a process of its own; clients are threads of this one, each with a connection, and ask for whole texts of
`--tokens` tokens until `--seconds` are over. A newcomer asks for a streamed text while all others are being written.
Some texts of the many are compared with the same texts written alone: exit code 1 where one differs.
"""

import argparse
import http.client
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gpt_cli.terminal.table import render_table

ROOT = Path(__file__).resolve().parents[1]


def make_run(path: Path) -> Path:
    """A run of 10.65M parameters, untrained: the speed is the same."""
    from gpt_cli.config import Config, ModelConfig
    from gpt_cli.model.gpt import GPT
    from gpt_cli.run.directory import create_imported_run
    from gpt_cli.tokenizer import CharTokenizer

    shape = ModelConfig(n_layer=6, n_head=6, n_embd=384, context_length=256)
    tokenizer = CharTokenizer("".join(map(chr, range(32, 97))))
    config = Config(model=shape, run_dir=str(path))
    create_imported_run(config, tokenizer, GPT(shape, tokenizer.vocab_size).state_dict(), "bench")
    return path


@contextmanager
def server(run: Path, weights: str, seats: int) -> Iterator[int]:
    """`gpt serve` in a process of its own: its port."""
    command = [sys.executable, "-m", "gpt_cli", "serve", str(run), "--port", "0", "--weights", weights]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [*command, "--seats", str(seats), "--drain", "1"], stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stderr is not None
        try:
            line = next((line for line in process.stderr if "http://" in line), None)
            if line is None:
                sys.exit("the server did not start")
            yield int(line.rpartition(":")[2])
        finally:
            process.terminate()


def ask(connection: http.client.HTTPConnection, seed: int, tokens: int) -> str:
    """The text of this seed."""
    body = {"prompt": "THE ", "seed": seed, "max_tokens": tokens, "temperature": 1, "stop": []}
    connection.request("POST", "/v1/completions", json.dumps(body))
    answer = json.loads(connection.getresponse().read())
    text: str = answer["choices"][0]["text"]
    return text


def load(port: int, clients: int, tokens: int, seconds: float, newcomers: list[float] | None) -> tuple[float, Any]:
    """Tokens a second of so many clients, and the texts by their seeds; newcomers' delays go into the list."""
    texts: dict[int, str] = {}
    until = time.perf_counter() + seconds

    def client(number: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port)
        seed = number
        while time.perf_counter() < until:
            texts[seed] = ask(connection, seed, tokens)
            seed += clients
        connection.close()

    threads = [threading.Thread(target=client, args=[i]) for i in range(clients)]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    while newcomers is not None and time.perf_counter() < until - 0.1 * seconds:
        newcomers.append(first_token(port))
        time.sleep(0.02 * seconds)
    for thread in threads:
        thread.join()
    return len(texts) * tokens / (time.perf_counter() - started), texts


def first_token(port: int) -> float:
    """Seconds from a request to its first token."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    started = time.perf_counter()
    connection.request("POST", "/v1/completions", json.dumps({"prompt": "A" * 100, "max_tokens": 4, "stream": True}))
    connection.getresponse().readline()
    seconds = time.perf_counter() - started
    connection.close()
    return seconds


def main() -> int:
    """Measure, print a table; 1 where a text depended on its neighbours."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path)
    parser.add_argument("--weights", choices=["fp32", "bf16", "int8"], default="fp32")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=20.0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gpt-bench-") as folder:
        run = arguments.run or make_run(Path(folder) / "run")
        with server(run, arguments.weights, arguments.clients + 1) as port:
            load(port, 1, 8, 0.1, None)
            alone: list[float] = [first_token(port) for _ in range(10)]
            one, _ = load(port, 1, arguments.tokens, arguments.seconds, None)
            newcomers: list[float] = []
            many, texts = load(port, arguments.clients, arguments.tokens, arguments.seconds, newcomers)
            connection = http.client.HTTPConnection("127.0.0.1", port)
            some = sorted(texts)[:: max(1, len(texts) // 8)]
            same = all(ask(connection, seed, arguments.tokens) == texts[seed] for seed in some)
            connection.close()
    rows = [
        ["1", f"{one:,.0f}", "1.0", f"{1000 * statistics.median(alone):.0f}", f"{1000 * max(alone):.0f}"],
        [
            str(arguments.clients),
            f"{many:,.0f}",
            f"{many / one:.1f}",
            f"{1000 * statistics.median(newcomers):.0f}",
            f"{1000 * max(newcomers):.0f}",
        ],
    ]
    heads = ["clients", "tokens/s", "times", "first token, ms", "the latest, ms"]
    print(render_table(rows, header=heads))
    print(f"{len(some)} texts of the {arguments.clients} written again alone: {'the same' if same else 'ANOTHER TEXT'}")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
