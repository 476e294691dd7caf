"""Measures `gpt serve`: throughput with one client and with many, and first-token latency.

    python -m bench.serve                                 10.65M parameters, fp32, 64 clients
    python -m bench.serve --weights int8 --clients 16
    python -m bench.serve --run runs/quickstart           a run of yours
    python -m bench.serve --beside 8123 ./exported        and another server's throughput, in turns

The server is a process of its own; clients are threads of this one, each with a connection, and ask for whole texts of
`--tokens` tokens until `--seconds` are over. A newcomer asks for a streamed text while all others are being written.
Some texts of the many are compared with the same texts written alone: exit code 1 where one differs.

One client and many take turns, `--rounds` times, and so does the decoder without a server, whose ratio is what a server
can reach; the table has medians. Clients take processor time from the server where there are few cores: so the table
has the server's own, too, in microseconds a token.

Another server is one that listens on this port of 127.0.0.1 and answers /v1/completions, with the name it has for the
model: such as `transformers serve ./exported --device cpu --port 8123`, of a run that `gpt export RUN exported` wrote.
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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
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
def server(run: Path, weights: str, seats: int) -> Iterator[tuple[int, int]]:
    """`gpt serve` in a process of its own: its port and process id."""
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
            yield int(line.rpartition(":")[2]), process.pid
        finally:
            process.terminate()


def ask(connection: http.client.HTTPConnection, seed: int, tokens: int, model: str | None = None) -> str:
    """Request the text of this seed, of the server's `model`."""
    body: dict[str, Any] = {"prompt": "THE ", "seed": seed, "max_tokens": tokens, "temperature": 1}
    if model is None:
        body["stop"] = []
    else:
        body["model"] = model
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    content = response.read()
    if response.status != HTTPStatus.OK:
        sys.exit(f"port {connection.port} answered {response.status}: {content.decode(errors='replace')[:500]}")
    text: str = json.loads(content)["choices"][0]["text"]
    return text


def load(
    port: int, clients: int, tokens: int, seconds: float, newcomers: list[float] | None, model: str | None = None
) -> tuple[float, dict[int, str]]:
    """Tokens per second of `clients` clients, and their texts by seed. First-token latencies go into `newcomers`."""
    texts: dict[int, str] = {}
    until = time.perf_counter() + seconds

    def client(number: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port)
        seed = number
        while time.perf_counter() < until:
            texts[seed] = ask(connection, seed, tokens, model)
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


def processor_seconds(pid: int) -> float:
    """The processor time that a process has used. 0 where the system has no /proc."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def decoder_alone(run: Path, weights: Any) -> Callable[[int, int], float]:
    """(texts, tokens) -> tokens/s of the decoder that the server has, without the server."""
    from gpt_cli.cpu.decode.decoder import NativeDecoder
    from gpt_cli.cpu.decode.numpy_sampler import TokenChoice
    from gpt_cli.cpu.decode.seats import ContinuousBatch, Seat
    from gpt_cli.serve.model_registry import EngineOptions, open_model

    decoder = open_model("bench", run, EngineOptions(weights=weights), print, None).generator.decoder
    assert isinstance(decoder, NativeDecoder), "torch writes this model"

    def measure(texts: int, tokens: int) -> float:
        batch = ContinuousBatch(decoder)
        seats = [Seat(batch, [1, 2, 3, 4], i, TokenChoice(1.0)) for i in range(texts)]
        started = time.perf_counter()
        for first in range(0, tokens, 4):
            batch.step(seats, min(4, tokens - first), 256)
        return texts * tokens / (time.perf_counter() - started)

    return measure


def first_token(port: int) -> float:
    """Seconds from a request to its first token."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    started = time.perf_counter()
    connection.request("POST", "/v1/completions", json.dumps({"prompt": "A" * 100, "max_tokens": 4, "stream": True}))
    connection.getresponse().readline()
    seconds = time.perf_counter() - started
    connection.close()
    return seconds


@dataclass
class Measurements:
    """The measurements of each round with one number of clients."""

    decoder: list[float] = field(default_factory=list)
    served: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)
    first: list[float] = field(default_factory=list)
    beside: list[float] = field(default_factory=list)


def main() -> int:
    """Measure and print a table. Returns 1 where a text differs from the same one written alone."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path)
    parser.add_argument("--weights", choices=["fp32", "bf16", "int8"], default="fp32")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--beside", nargs=2, metavar=("PORT", "MODEL"))
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gpt-bench-") as folder:
        run = arguments.run or make_run(Path(folder) / "run")
        alone = decoder_alone(run, arguments.weights)
        with server(run, arguments.weights, arguments.clients + 1) as (port, pid):
            load(port, 1, 8, 0.1, None)
            if arguments.beside is not None:
                ask(http.client.HTTPConnection("127.0.0.1", int(arguments.beside[0])), 0, 8, arguments.beside[1])
            by_clients = {n: Measurements() for n in (1, arguments.clients)}
            texts: dict[int, str] = {}
            for _ in range(arguments.rounds):
                for n, measured in by_clients.items():
                    measured.decoder.append(alone(n, arguments.tokens))
                    before, seconds = processor_seconds(pid), arguments.seconds / arguments.rounds
                    newcomers = measured.first if n > 1 else None
                    rate, new_texts = load(port, n, arguments.tokens, seconds, newcomers)
                    measured.served.append(rate)
                    measured.processor.append((processor_seconds(pid) - before) / len(new_texts) / arguments.tokens)
                    texts |= new_texts
                    if arguments.beside is not None:
                        other_port, model = arguments.beside
                        rate, _ = load(int(other_port), n, arguments.tokens, seconds, None, model)
                        measured.beside.append(rate)
                by_clients[1].first += [first_token(port) for _ in range(5)]
            connection = http.client.HTTPConnection("127.0.0.1", port)
            seeds = sorted(texts)[:: max(1, len(texts) // 8)]
            same = all(ask(connection, seed, arguments.tokens) == texts[seed] for seed in seeds)
            connection.close()
    heads = [
        "clients",
        "decoder alone",
        "times",
        "served",
        "times",
        "server's CPU",
        "first token, ms",
        "the latest, ms",
    ]
    rows = [
        [
            str(n),
            f"{statistics.median(measured.decoder):,.0f}",
            f"{statistics.median(measured.decoder) / statistics.median(by_clients[1].decoder):.1f}",
            f"{statistics.median(measured.served):,.0f}",
            f"{statistics.median(measured.served) / statistics.median(by_clients[1].served):.1f}",
            f"{1e6 * statistics.median(measured.processor):,.0f}",
            f"{1000 * statistics.median(measured.first):.0f}",
            f"{1000 * max(measured.first):.0f}",
        ]
        for n, measured in by_clients.items()
    ]
    print(render_table(rows, header=heads))
    if arguments.beside is not None:
        for n, measured in by_clients.items():
            beside, served = statistics.median(measured.beside), statistics.median(measured.served)
            print(
                f"{n} clients, the server beside: {beside:,.0f} tokens/s; gpt serve {served / beside:.1f} times as many"
            )
    print(
        f"{len(seeds)} texts of the {arguments.clients} written again alone: {'the same' if same else 'ANOTHER TEXT'}"
    )
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
