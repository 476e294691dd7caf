"""A newcomer's first week: each command of `trial.txt` ends with its exit code, and an error is one line."""

import gzip
import io
import json
import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from gpt_cli.cli.main import main
from tests.support.command import ROOT

pytestmark = pytest.mark.robust

TINY = (
    "model.n_layer=1 model.n_head=1 model.n_embd=8 model.context_length=8 train.batch_size=1 train.steps=1"
    " sample.every=null runtime.threads=1"
)
BOOK = "the king and the queen went to the town, and thé mouse lived in a shoe there.\n" * 40
_GROUP = re.compile(r"^## (.*)\n((?:(?!## ).*\n)*)", flags=re.MULTILINE)
_ROW = re.compile(r"^\$ gpt ?(.*)\n(\d+)$", flags=re.MULTILINE)
GROUPS = dict(_GROUP.findall((ROOT / "tests/cli/trial.txt").read_text(encoding="utf-8")))
TOGETHER = (
    "what is trained",
    "to others and back",
    "keys and values",
    *(name for name in GROUPS if " user" in name),
)
LONGEST = 20  # commands of a test, so that the tests can be shared out


@pytest.fixture(scope="module")
def work_dir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with texts of many kinds, two runs, of which runs/book is the newest, and a damaged one."""
    work_dir = tmp_path_factory.mktemp("trial")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(work_dir)
        patch.setenv("GPT_CACHE", str(tmp_path_factory.mktemp("cache")))
        texts = {"book.txt": BOOK, "a.txt": BOOK[::-1], "two words.txt": BOOK, "notes.md": BOOK, "texts/a.txt": BOOK}
        texts |= {"empty.txt": "", "blank.txt": "\n\n", "one.txt": "the king", "same.txt": "a" * 9000}
        texts |= {"greek.txt": "Ωμέγα the king\n" * 9, "prompts.txt": "the\nqueen\n", "notyaml.yaml": "a: [1\n"}
        texts |= {"crlf.txt": BOOK.replace("\n", "\r\n"), "table.tsv": BOOK.replace(" ", "\t")}
        texts |= {"-dash.txt": BOOK, "semicolons.csv": "text;label\n" + "the king;x\n" * 99}
        texts |= {"broken.yaml": "model:\n  n_layr: 1\n"}
        texts |= {
            "mine.yaml": "data: {source: book.txt}\nmodel: {n_layer: 1, n_head: 1, n_embd: 12, context_length: 8}\n"
        }
        lines = BOOK.splitlines()
        texts |= {"bodies.csv": "body,label\n" + "".join(f'"{line}",kind {n % 3}\n' for n, line in enumerate(lines))}
        texts |= {"notes.jsonl": "".join(json.dumps({"id": 3, "body": line}) + "\n" for line in lines)}
        alpaca = [json.dumps({"instruction": f"say {n}", "input": "", "output": f"it is {n % 5}"}) for n in range(80)]
        asks = (
            "\n".join(alpaca)
            .replace("instruction", "question")
            .replace('"input": "", ', "")
            .replace("output", "answer")
        )
        texts |= {
            "asks.jsonl": asks,
            "lists.jsonl": "\n".join(json.dumps([{"role": "user", "content": "a"}]) for _ in alpaca),
        }
        texts |= {"alpaca.jsonl": "\n".join(alpaca)}
        chat = json.dumps({"messages": [{"role": "user", "content": "hi"}]})
        texts |= {"chats.jsonl": f"{chat}\n" * 40, "small.yaml": "model: {n_layer: 1, n_head: 1, n_embd: 8}\n"}
        pairs = [json.dumps({"prompt": f"q {n}", "completion": f"answer {n % 7}"}) for n in range(80)]
        talks = [
            {"messages": [{"role": "user", "content": f"hi {n}"}, {"role": "assistant", "content": "yo"}]}
            for n in range(80)
        ]
        texts |= {"pairs.jsonl": "\n".join(pairs), "talks.jsonl": "\n".join(map(json.dumps, talks))}
        marks = [json.dumps({"text": f"it is {['bad', 'good'][n % 2]} {n}", "label": n % 2}) for n in range(40)]
        texts |= {"marks.jsonl": "\n".join(marks), "others.jsonl": "\n".join(pairs[:20]).replace("prompt", "q")}
        robot = json.dumps({"messages": [{"role": "robot", "content": "hi"}]})
        texts |= {"half.jsonl": '{"prompt": "q"}\n' * 40, "robots.jsonl": f"{robot}\n" * 40}
        texts |= {"UPPER.YAML": texts["mine.yaml"], "capital.csv": " Text,Label\n" + "the king,x\n" * 99}
        texts |= {"marked.csv": "\ufefftext,label\n" + "".join(f"the king {n},{n % 2}\n" for n in range(40))}
        texts |= {"null.jsonl": pairs[0] + '\n{"prompt": "q", "completion": null}\n'}
        texts |= {"twice.csv": "text,label,text\n" + "the king,the queen,a shoe\n" * 99}
        texts |= {"twice.jsonl": '{"text": "the king"}\n{"text": "the king", "text": "a shoe"}\n' * 40}
        texts |= {"inner.jsonl": '{"text": "the king", "of": {"text": "a shoe", "text": "a town"}}\n' * 40}
        texts |= {"ragged.csv": "text,label\nthe king,a\nhello, world,b\n" + "the queen,b\n" * 99}
        texts |= {"two.txt": BOOK, "sixteenth.txt": "a" * 900, "sixteenth.jsonl": '{"prompt": "the", "seed": 9}\n'}
        small = "model: {n_layer: 1, n_head: 1, n_embd: 8, context_length: 8}\nruntime: {threads: 1}\n"
        texts |= {"budget.yaml": f"data: {{source: book.txt}}\ntrain: {{budget: 5s, batch_size: 1}}\n{small}"}
        texts |= {"seventeenth.html": BOOK, "seventeenth.jsonl": "\n".join(pairs)}
        texts |= {"stopped/lock": '{"pid": 1}'}
        texts |= {"fifth.ndjson": "\n".join(pairs)}
        texts |= {"mixed/book.txt": BOOK, "mixed/picture.raw": "\0\1"}
        texts |= {
            "nan-id.jsonl": '{"prompt": "the", "id": NaN}\n',
            "inf-id.jsonl": '{"prompt": "the", "id": [1e999]}\n',
        }
        texts |= {"unknown.csv": "text\nit is good\nit is Ωμέγα\nΩ\n", "unknown.md": "it is Ω\n"}
        texts |= {"conversations.jsonl": texts["talks.jsonl"].replace("messages", "conversation")}
        texts |= {"moods.csv": "text,label\n" + "".join(f"it is {n},{['bad', 'good'][n % 2]}\n" for n in range(40))}
        texts |= {"stars.csv": "review,stars\n" + "".join(f"it is {n},{n % 2}\n" for n in range(40))}
        texts |= {"decimal.jsonl": '{"text": "the king", "label": 1.5}\n' * 40, "hidden/.poem.txt": BOOK}
        texts |= {"number.jsonl": '{"prompt": "the king", "completion": 5}\n' * 40, "list.json": f"[{','.join(pairs)}]"}
        texts |= {"talks.csv": "messages\n" + "".join(f'"{n} hi"\n' for n in range(40))}
        texts |= {"nameless.yaml": 'data: {source: pairs.jsonl, format: pairs, completion_end: ""}\n'}
        bye = '}, {"role": "user", "content": "bye"}]'
        texts |= {"unanswered.jsonl": texts["talks.jsonl"].replace("}]", bye, 3)}
        texts |= {
            "moods.tsv": texts["moods.csv"].replace(",", "\t"),
            "kept.json": texts["list.json"],
            "kept.jsonl": "{}\n",
        }
        texts |= {"alike.csv": texts["moods.csv"].replace(",good", ", Good", 10)}
        texts |= {"records.txt": texts["pairs.jsonl"]}
        texts |= {"qa.jsonl": texts["pairs.jsonl"].replace("prompt", "q").replace("completion", "a")}
        texts |= {"configs/c.yaml": f"data: {{source: beside.txt}}\n{small}", "configs/beside.txt": BOOK}
        texts |= {"headless.csv": "".join(f"bad,it is not number {n}\n" for n in range(40))}
        for name, text in texts.items():
            Path(name).parent.mkdir(exist_ok=True)
            Path(name).write_bytes(text.encode())
        Path("folder").mkdir()
        Path("broken-link.txt").symlink_to("gone")
        Path("latin1.txt").write_bytes(BOOK.encode("latin-1"))
        Path("dangling.yaml").symlink_to("nothing.yaml")
        Path("moods.csv.gz").write_bytes(gzip.compress(Path("moods.csv").read_bytes()))
        Path("moods-gz").write_bytes(Path("moods.csv.gz").read_bytes())
        Path("letter.doc").write_bytes(b"PK\3\4" + b"x" * 900)
        Path("latin1.jsonl").write_bytes('{"text": "thé"}\n'.encode("latin-1") * 40)
        Path("utf16.txt").write_bytes("it is 7".encode("utf-16"))
        Path("binary.bin").write_bytes(bytes(range(256)) * 20)
        assert main(["tokenize", "book.txt", "--out", "store"]) == 0
        for run, kind, steps in (("bytes", "byte", 1), ("book", "char", 2)):
            keys = [f"train.steps={steps}", "checkpoint.every=1", f"tokenizer.kind={kind}", f"run_dir=runs/{run}"]
            assert main(["train", "book.txt", *TINY.split(), *keys]) == 0
        shutil.copytree("runs/bytes", "damaged")
        for weights in Path("damaged").rglob("model.safetensors"):
            weights.write_bytes(weights.read_bytes()[:-4] + b"\0\0\0\1")
        assert main(["export", "runs/book", "nan"]) == 0
        shutil.copytree("nan", "altered")
        *rest, last = Path("altered/model.safetensors").read_bytes()
        Path("altered/model.safetensors").write_bytes(bytes([*rest, last ^ 1]))
        tensors = load_file("nan/model.safetensors")
        next(iter(tensors.values())).reshape(-1)[0] = np.nan
        save_file(tensors, "nan/model.safetensors", {"format": "pt"})
        yield work_dir


def parts() -> Iterator[tuple[str, list[tuple[str, str]]]]:
    for name, body in GROUPS.items():
        rows = _ROW.findall(body)
        assert len(rows) == body.count("$ gpt"), name
        # Later commands of a group may need what earlier ones made: only groups whose commands are apart are divided.
        size = len(rows) if name in TOGETHER else LONGEST
        for start in range(0, len(rows), size):
            yield f"{name} {start // size + 1}", rows[start : start + size]


PARTS = dict(parts())


@pytest.mark.parametrize("name", PARTS)
def test_each_command_ends_with_its_exit_code(name, work_dir, monkeypatch, capsys):
    monkeypatch.chdir(work_dir)
    failures = []
    for command, code in PARTS[name]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
        Path("runs/book/checkpoints/step-00000002").touch()
        ended = main(shlex.split(command.replace("TINY", TINY)))
        out, err = capsys.readouterr()
        output = out + err
        faults = [] if ended == int(code) else [f"exit code {ended}, not {code}"]
        faults += ["a traceback"] * ("Traceback" in output) + ["a bug"] * ("a bug in gpt" in output)
        faults += ["no error"] * (ended != 0 and err.count("error: ") != 1 and "FAILED" not in out)
        if faults:
            failures.append(f"$ gpt {command}\n  {'; '.join(faults)}\n  {(out[-300:] + err[-500:]).strip()}")
    assert not failures, "\n\n".join(failures)


def test_there_are_three_hundred_of_them():
    assert sum(map(len, PARTS.values())) >= 300
