"""What a run tells about itself: whole lines, each step once, whatever happened to the process."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpt_cli.files import DamagedError
from gpt_cli.run.log import RunLog, read_events, read_metrics, read_samples


def lines(path: Path) -> list[dict[str, Any]]:
    """What others read: its lines without their sums."""
    actual = [json.loads(line) for line in path.read_text().splitlines()]
    assert all(list(line)[-1] == "crc32" and int(line.pop("crc32"), 16) < 1 << 32 for line in actual)
    return actual


def write(run: Path, *steps: int) -> None:
    with RunLog(run) as log:
        for step in steps:
            log.metrics(step, time=step / 10, loss=1 / step)
            log.sample(step, prompt="a", text=f"text of {step}")


def test_what_is_recorded_is_what_is_read(tmp_path: Path) -> None:
    with RunLog(tmp_path) as log:
        log.metrics(10, time=0.5, loss=0.1 + 0.2, lr=1e-3)
        log.metrics(10, time=0.6, val_loss=2.0)
        log.sample(10, prompt="\n", text='"quoted"\n\x1b[31m and \u2028 日本語')
        log.event("resumed", step=10)
        assert read_metrics(tmp_path) == [  # while it is being written
            {"step": 10, "time": 0.5, "loss": 0.1 + 0.2, "lr": 1e-3},
            {"step": 10, "time": 0.6, "val_loss": 2.0},
        ]
    assert lines(tmp_path / "samples.jsonl") == [
        {"step": 10, "prompt": "\n", "text": '"quoted"\n\x1b[31m and \u2028 日本語'}
    ]
    [event] = lines(tmp_path / "events.jsonl")
    assert event["event"] == "resumed"
    assert event["time"].endswith("+00:00")


@given(st.text(st.characters()))
def test_any_text_is_one_ascii_line_that_drives_no_terminal(
    tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    run = tmp_path_factory.mktemp("run")
    with RunLog(run) as log:
        log.sample(1, prompt=text, text=text)
    written = (run / "samples.jsonl").read_bytes()
    assert written.endswith(b"\n")
    assert written[:-1].decode("ascii").isprintable()
    assert json.loads(written)["text"] == text


def test_a_value_that_is_not_finite_is_null_in_the_file_and_absent_when_read(tmp_path: Path) -> None:
    with RunLog(tmp_path) as log:
        log.metrics(1, time=0.1, loss=math.nan, grad_norm=math.inf, lr=0.5)
    assert lines(tmp_path / "metrics.jsonl") == [{"step": 1, "time": 0.1, "loss": None, "grad_norm": None, "lr": 0.5}]
    assert read_metrics(tmp_path) == [{"step": 1, "time": 0.1, "lr": 0.5}]


def test_a_run_that_has_recorded_nothing_has_no_metrics(tmp_path: Path) -> None:
    assert read_metrics(tmp_path) == []


@pytest.mark.parametrize("resumed", [0, 1, 2, 3, 4])
def test_after_resuming_each_step_is_recorded_once(tmp_path: Path, resumed: int) -> None:
    write(tmp_path, 1, 2, 3)
    with RunLog(tmp_path) as log:
        log.event("resumed", step=resumed)
        log.truncate(resumed)
    write(tmp_path, *range(resumed + 1, 6))
    expected = [step for step in range(1, 6) if step <= 3 or step > resumed]
    assert [line["step"] for line in read_metrics(tmp_path)] == expected
    assert [line["step"] for line in lines(tmp_path / "samples.jsonl")] == expected
    assert len(lines(tmp_path / "events.jsonl")) == 1


@pytest.mark.parametrize("size", range(1, 100, 7))
def test_a_line_half_written_when_the_process_died_is_dropped(tmp_path: Path, size: int) -> None:
    write(tmp_path, 1, 2)
    for name in ("metrics.jsonl", "samples.jsonl"):
        data = (tmp_path / name).read_bytes()
        last = data.splitlines(keepends=True)[-1]
        (tmp_path / name).write_bytes(data + last[: min(size, len(last) - 1)])
    assert [line["step"] for line in read_metrics(tmp_path)] == [1, 2]
    write(tmp_path, 3)
    assert [line["step"] for line in read_metrics(tmp_path)] == [1, 2, 3]
    assert [line["step"] for line in lines(tmp_path / "samples.jsonl")] == [1, 2, 3]


def test_every_flip_of_one_bit_in_a_log_is_told_also_while_it_is_opened(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    write(tmp_path, 1, 20)
    with RunLog(tmp_path) as log:
        log.event("note", text="deadbeef")
    flips = 0
    for name, read in (("metrics", read_metrics), ("samples", read_samples), ("events", read_events)):
        path = tmp_path / f"{name}.jsonl"
        data = path.read_bytes()
        for at in range(len(data)):
            for bit in range(8):
                path.write_bytes(data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :])
                with pytest.raises(DamagedError, match="damaged line"):
                    read(tmp_path)
                flips += 1
        path.write_bytes(data[:-1] + b"\x0b")
        with pytest.raises(DamagedError, match="damaged line"):
            RunLog(tmp_path)
        assert path.read_bytes()[-1:] == b"\x0b"
        path.write_bytes(data)
    record_property("faults", flips)
    assert [line["step"] for line in read_metrics(tmp_path)] == [1, 20]


def test_lines_of_an_older_run_have_no_sum_and_are_read_as_before(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "time": 0.1, "loss": 2.5}\n')
    write(tmp_path, 2)
    assert [line["step"] for line in read_metrics(tmp_path)] == [1, 2]


@pytest.mark.parametrize("line", ["", "{", "[]", "3", '{"loss": 1}', '{"step": "1"}', "[" * 100_000, "\0\0", "\udcff"])
def test_a_damaged_line_is_named_by_its_place(tmp_path: Path, line: str) -> None:
    write(tmp_path, 1)
    path = tmp_path / "metrics.jsonl"
    with path.open("a", encoding="utf-8", errors="surrogateescape") as file:
        file.write(f"{line}\n" + '{"step": 2, "time": 1}\n')
    with pytest.raises(DamagedError, match="damaged line") as caught:
        read_metrics(tmp_path)
    assert caught.value.where == f"{path}:2"
