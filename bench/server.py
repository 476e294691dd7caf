"""Measure `gpt serve`: throughput with one client and with many, and first-token latency.

    python -m bench.server [--weights int8] [--clients 64] [--run RUN]
    python -m bench.server --run RUN --beside 8123 ./exported

The server, of 10.65M untrained parameters or of RUN, is a process; clients are threads of this one, which request texts
of `--tokens` tokens for `--seconds`. Each round measures the decoder without a server, which is the most that the
server can reach, and the server, with one client and with many; the table has medians. Clients take processor time from
the server where cores are few, so its own is in the table, too. A newcomer requests a streamed text while the many are
generated. Some texts of the many are requested again alone: exit code 1 if one differs.

`--beside` measures another server in turn, on this port of 127.0.0.1, which answers /v1/completions for this model,
such as `transformers serve ./exported --device cpu --port 8123`, of a run that `gpt export RUN exported` wrote.
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
from argparse import Namespace
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any

from bench.common import environment, gpt, make_run, number, write_record
from gpt_cli.terminal.table import render_table


@contextmanager
def server(run: Path, options: Namespace) -> Iterator[tuple[int, int]]:
    """Start `gpt serve`; return its port and process id."""
    command = gpt("serve", str(run), "--port", "0", "--weights", options.weights, "--drain", "1")
    command += ["--seats", str(options.clients + 1)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment()) as process:
        try:
            line = next((line for line in process.stderr or () if "http://" in line), None)
            if line is None:
                sys.exit("the server did not start")
            yield int(line.rpartition(":")[2]), process.pid
        finally:
            process.terminate()


def post(port: int | http.client.HTTPConnection, **body: Any) -> str:
    """Request a completion, on a connection or on one of its own; return its text."""
    if isinstance(port, int):
        with closing(http.client.HTTPConnection("127.0.0.1", port)) as connection:
            return post(connection, **body)
    body = {"prompt": "THE ", "temperature": 1, **({} if "model" in body else {"stop": []}), **body}
    port.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    response = port.getresponse()
    content = response.read()
    if response.status != HTTPStatus.OK:
        sys.exit(f"port {port.port} answered {response.status}: {content.decode(errors='replace')[:500]}")
    return str(json.loads(content)["choices"][0]["text"])


def first_token(port: int) -> float:
    """Return the milliseconds from a request to its first token."""
    with closing(http.client.HTTPConnection("127.0.0.1", port)) as connection:
        started = time.perf_counter()
        body = {"prompt": "A" * 100, "max_tokens": 4, "stream": True}
        connection.request("POST", "/v1/completions", json.dumps(body))
        connection.getresponse().readline()
        return 1000 * (time.perf_counter() - started)


def load(
    port: int, clients: int, options: Namespace, newcomers: list[float] | None = None, **model: Any
) -> tuple[float, dict[int, str]]:
    """Return tokens/s of `clients` clients, and their texts by seed; add first-token latencies to `newcomers`."""
    texts: dict[int, str] = {}
    seconds = options.seconds / options.rounds
    until = time.perf_counter() + seconds

    def client(seed: int) -> None:
        with closing(http.client.HTTPConnection("127.0.0.1", port)) as connection:
            while time.perf_counter() < until:
                texts[seed] = post(connection, seed=seed, max_tokens=options.tokens, **model)
                seed += clients

    threads = [threading.Thread(target=client, args=[number]) for number in range(clients)]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    while newcomers is not None and time.perf_counter() < until - 0.1 * seconds:
        newcomers.append(first_token(port))
        time.sleep(0.02 * seconds)
    for thread in threads:
        thread.join()
    return len(texts) * options.tokens / (time.perf_counter() - started), texts


def processor_seconds(pid: int) -> float:
    """Return the processor time that a process has used; 0 where the system has no /proc."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def decoder_alone(run: Path, weights: Any) -> Callable[[int, int], float]:
    """Return (texts, tokens) -> tokens/s of the server's decoder."""
    from gpt_cli.cpu.decode.decoder import NativeDecoder
    from gpt_cli.cpu.decode.numpy_sampler import TokenChoice
    from gpt_cli.cpu.decode.seats import ContinuousBatch, Seat
    from gpt_cli.serve.model_registry import EngineOptions, open_model

    decoder = open_model("bench", run, EngineOptions(weights=weights), print, None).generator.decoder
    assert isinstance(decoder, NativeDecoder), "torch generates with this model"

    def measure(texts: int, tokens: int) -> float:
        batch = ContinuousBatch(decoder)
        seats = [Seat(batch, [1, 2, 3, 4], i, TokenChoice(1.0)) for i in range(texts)]
        started = time.perf_counter()
        for first in range(0, tokens, 4):
            batch.step(seats, min(4, tokens - first), 256)
        return texts * tokens / (time.perf_counter() - started)

    return measure


def main() -> None:
    """Measure, print a table, write a record; exit with 1 if a text differs from the same one generated alone."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path)
    parser.add_argument("--weights", choices=["fp32", "bf16", "int8"], default="fp32")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--beside", nargs=2, metavar=("PORT", "MODEL"))
    options = parser.parse_args()
    counts = sorted({1, options.clients})
    figures: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    texts: dict[int, str] = {}
    with tempfile.TemporaryDirectory(prefix="gpt-bench-") as folder:
        run = options.run or make_run(Path(folder) / "run", n_layer=6, n_head=6, n_embd=384, context_length=256)
        alone = decoder_alone(run, options.weights)
        with server(run, options) as (port, pid):
            post(port, max_tokens=8)
            if options.beside is not None:
                other, model = int(options.beside[0]), options.beside[1]
                post(other, max_tokens=8, model=model)
            for _ in range(options.rounds):
                for n in counts:
                    figures["decoder alone"][n].append(alone(n, options.tokens))
                    before = processor_seconds(pid)
                    newcomers = figures["first token, ms"][n] if n > 1 else None
                    rate, written = load(port, n, options, newcomers)
                    used = processor_seconds(pid) - before
                    figures["gpt serve"][n].append(rate)
                    figures["server's CPU, us a token"][n].append(1e6 * used / len(written) / options.tokens)
                    texts |= written
                    if options.beside is not None:
                        figures["the other server"][n].append(load(other, n, options, model=model)[0])
                figures["first token, ms"][1] += [first_token(port) for _ in range(5)]
            seeds = sorted(texts)[:: max(1, len(texts) // 8)]
            differ = [seed for seed in seeds if post(port, seed=seed, max_tokens=options.tokens) != texts[seed]]
    table = {name: [statistics.median(by_clients[n]) for n in counts] for name, by_clients in figures.items()}
    table["first token at the latest, ms"] = [max(figures["first token, ms"][n]) for n in counts]
    rows = [(name, *map(number, values), f"{values[-1] / values[0]:.1f}") for name, values in table.items()]
    header = (options.weights, *(f"{n} client{'s'[: n > 1]}" for n in counts), "ratio")
    print(render_table(rows, header=header, right=range(1, len(header))))
    print(f"{len(seeds)} texts of the {options.clients} clients requested again alone: {len(differ)} differ")
    write_record("server", [options.weights], {**vars(options), "run": str(options.run), "figures": figures})
    sys.exit(bool(differ))


if __name__ == "__main__":
    main()
