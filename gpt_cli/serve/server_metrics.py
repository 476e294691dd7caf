"""The metrics of /metrics, in Prometheus' format."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from gpt_cli.serve.scheduler import Scheduler

_LATENCY_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class ServerMetrics:
    """Counters of one server. They hold nothing of the process, the machine or the texts."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        self._requests = Counter("gpt_requests", "Requests that were answered.", ["path", "status"], registry=registry)
        self._tokens = Counter("gpt_tokens", "Tokens that were written.", registry=registry)
        self._texts = Counter("gpt_texts", "Texts by how they ended.", ["ended"], registry=registry)
        self._first_token_seconds = Histogram(
            "gpt_first_token_seconds", "From a request to its first token.", buckets=_LATENCY_BUCKETS, registry=registry
        )

    def watch(self, scheduler: Scheduler) -> None:
        """Add gauges that read this scheduler."""
        gauges: tuple[tuple[str, str, Callable[[], float]], ...] = (
            ("gpt_texts_writing", "Texts that have a seat.", lambda: scheduler.running),
            ("gpt_texts_waiting", "Texts in the queue.", lambda: scheduler.waiting),
        )
        for name, description, value in gauges:
            Gauge(name, description, registry=self._registry).set_function(value)

    def count_request(self, path: str, status: int) -> None:
        self._requests.labels(path, str(status)).inc()

    def tokens_generated(self, count: int) -> None:
        self._tokens.inc(count)

    def first_token(self, seconds: float) -> None:
        """Count the time from a sequence's submission to its first token."""
        self._first_token_seconds.observe(seconds)

    def sequence_finished(self, reason: str) -> None:
        """Count a sequence that ended for `reason`: stop, length, time, error or cancelled."""
        self._texts.labels(reason).inc()

    def render(self) -> bytes:
        return generate_latest(self._registry)
