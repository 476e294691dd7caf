"""The figures of /metrics, in Prometheus' format."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from gpt_cli.serve.scheduler import MetricsCallbacks, Scheduler

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class ServerMetrics(MetricsCallbacks):
    """Counters of one server; nothing of the process, the machine, or what was written."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        self._requests = Counter("gpt_requests", "Requests that were answered.", ["path", "status"], registry=registry)
        self._tokens = Counter("gpt_tokens", "Tokens that were written.", registry=registry)
        self._texts = Counter("gpt_texts", "Texts by how they ended.", ["ended"], registry=registry)
        self._first = Histogram(
            "gpt_first_token_seconds", "From a request to its first token.", buckets=_SECONDS, registry=registry
        )

    def watch(self, scheduler: Scheduler) -> None:
        """Tell of this scheduler."""
        told: tuple[tuple[str, str, Callable[[], float]], ...] = (
            ("gpt_texts_writing", "Texts that have a seat.", lambda: scheduler.writing),
            ("gpt_texts_waiting", "Texts in the queue.", lambda: scheduler.waiting),
        )
        for name, meaning, value in told:
            Gauge(name, meaning, registry=self._registry).set_function(value)

    def answered(self, path: str, status: int) -> None:
        self._requests.labels(path, str(status)).inc()

    def wrote(self, tokens: int) -> None:
        self._tokens.inc(tokens)

    def first_token(self, seconds: float) -> None:
        self._first.observe(seconds)

    def ended(self, how: str) -> None:
        self._texts.labels(how).inc()

    def text(self) -> bytes:
        return generate_latest(self._registry)
