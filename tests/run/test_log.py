"""What a run tells about itself: whole lines, each step once, whatever happened to the process."""

import json
import math
import shutil
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpt_cli.run.log import EVENTS, METRICS, SAMPLES, RunLog, read_events, read_metrics, read_samples
from tests.support.command import Run
from tests.support.tiny_run import make_config, run


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


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


def test_any_flipped_bit_costs_the_lines_that_it_damages_and_no_resume(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    write(tmp_path, 1, 20)
    with RunLog(tmp_path) as log:
        log.event("started", step=0)
        log.event("note", text="deadbeef")
    originals = {name: (tmp_path / name).read_bytes() for name in (METRICS, SAMPLES, EVENTS)}
    flips = 0
    for name, read in ((METRICS, read_metrics), (SAMPLES, read_samples), (EVENTS, read_events)):
        path, data, whole = tmp_path / name, originals[name], read(tmp_path, pytest.fail)
        for at, bit in product(range(len(data)), range(8)):
            path.write_bytes(data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :])
            number, notes = data[:at].count(b"\n"), list[str]()
            found = read(tmp_path, notes.append)
            after = whole[number + 2 if data[at] == ord("\n") else number + 1 :]  # without a newline two lines are one
            assert found[:number] == whole[:number]
            assert found[len(found) - len(after) :] == after
            if len(found) < len(whole) and at + 1 < len(data):
                places = [f"{path}:{number + 1} is damaged and skipped", f"{path}:{number + 2} is damaged and skipped"]
                assert notes == places[: len(notes)] != []  # two, if the flip made a newline
            else:
                assert notes == []
            if bit == at % 8:
                with RunLog(tmp_path) as log:
                    log.truncate(10)
                    log.metrics(11, time=1.1)
                assert read_metrics(tmp_path)[-1] == {"step": 11, "time": 1.1}
                kept = [line for line in found if name == EVENTS or line["step"] <= 10]
                assert read(tmp_path)[: len(kept)] == kept
                for other, content in originals.items():
                    (tmp_path / other).write_bytes(content)
            flips += 1
        path.write_bytes(data)
    record_property("faults", flips)


@pytest.mark.parametrize(
    "line", [b"", b"{", b"[]", b"3", b'{"loss": 1}', b'{"step": "1"}', b"[" * 100_000, b"\0\0", b"\xff"]
)
def test_a_damaged_line_is_named_by_its_place(tmp_path: Path, line: bytes) -> None:
    write(tmp_path, 1)
    path, notes, again = tmp_path / METRICS, list[str](), list[str]()
    with path.open("ab") as file:
        file.write(line + b'\n{"step": 2, "time": 1}\n')
    before = path.read_bytes()
    assert [record["step"] for record in read_metrics(tmp_path, notes.append)] == [1, 2]
    assert notes == [f"{path}:2 is damaged and skipped"]
    with RunLog(tmp_path) as log:
        log.truncate(2, again.append)
        assert path.read_bytes() == before
        log.truncate(1)
    assert again == notes
    assert path.read_bytes() == before[: before.rindex(b"{")]


def test_lines_of_an_older_run_have_no_sum_and_are_read_as_before(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "time": 0.1, "loss": 2.5}\n')
    write(tmp_path, 2)
    assert [line["step"] for line in read_metrics(tmp_path)] == [1, 2]


def test_a_sum_at_the_end_of_a_line_of_version_0_2_is_left_out(tmp_path: Path) -> None:
    (tmp_path / METRICS).write_text('{"step": 1, "time": 0.1, "loss": 2.5, "crc32": "00000000"}\n')
    (tmp_path / SAMPLES).write_text('{"step": 1, "prompt": "a", "text": "b", "crc32": "00000000"}\n')
    (tmp_path / EVENTS).write_text('{"time": "", "event": "started", "crc32": "00000000"}\n')
    assert read_metrics(tmp_path) == [{"step": 1, "time": 0.1, "loss": 2.5}]
    assert read_samples(tmp_path) == [{"step": 1, "prompt": "a", "text": "b"}]
    assert read_events(tmp_path) == [{"time": "", "event": "started"}]


def test_what_is_no_finite_number_is_no_figure(tmp_path: Path) -> None:
    (tmp_path / METRICS).write_text('{"step": 1, "loss": "low", "lr": [1], "bpb": NaN, "bpc": 1e999, "epochs": 2}\n')
    assert read_metrics(tmp_path) == [{"step": 1, "epochs": 2}]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the runs one and two."""
    folder = tmp_path_factory.mktemp("trained")
    for name in ("one", "two"):
        run(make_config(folder, name=name))
    return folder


@pytest.mark.robust
@pytest.mark.parametrize(
    ("name", "verbs"), [(METRICS, ["report", "diff", "plot", "export"]), (SAMPLES, ["report"]), (EVENTS, ["report"])]
)
def test_every_command_that_reads_a_log_notes_a_damaged_line_once_and_works(
    trained: Path, tmp_path: Path, gpt_here: Run, name: str, verbs: list[str]
) -> None:
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    path = Path("one", name)
    path.write_bytes(b"\0" + path.read_bytes())
    commands = {
        "report": ["report", "one", "two", "-o", "report.html"],
        "diff": ["diff", "one", "two"],
        "plot": ["plot", "one", "-o", "loss.png"],
        "export": ["export", "one", "hf", "--to", "hf"],
        "train": ["train", "one", "train.steps=16"],
        "train again": ["train", "one"],
    }
    for command in [commands[verb] for verb in (*verbs, "train", "train again")]:
        outcome = gpt_here(*command)
        assert outcome.rc == 0, (command, outcome)
        assert outcome.stderr.count(f"{path}:1 is damaged and skipped\n") == 1, (command, outcome)
    assert path.read_bytes().startswith(b"\0{")
    assert [line["step"] for line in read_metrics(Path("one")) if "loss" in line][-4:] == [13, 14, 15, 16]
    assert "damaged" not in gpt_here("runs", ".").stdout
    examined = gpt_here("doctor", "one")
    assert examined.rc == 1
    assert f"{path}:1 is damaged and skipped" in " ".join(examined.stdout.split())


def test_a_log_of_garbage_is_one_note_with_the_first_place(tmp_path: Path) -> None:
    write(tmp_path, 1)
    path, notes = tmp_path / "metrics.jsonl", list[str]()
    with path.open("a") as file:
        file.write(f'{{"step": 1{"0" * 400}, "time": 1}}\n' + '{"step": -1}\n' + "garbage\n" * 3_000)
    assert [line["step"] for line in read_metrics(tmp_path, notes.append)] == [1]
    (note,) = notes
    assert note.startswith(f"{path}:2 is damaged")
    assert "3,001 more" in note
