"""Pairs and chats: each example is learned as if it were alone, and nothing but what is to be learned counts."""

import io
import json
import math
import re
import runpy
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from jinja2.sandbox import ImmutableSandboxedEnvironment

import gpt_cli
from gpt_cli.cli.main import main
from gpt_cli.config import Config, ModelConfig, dump_config, load_config, parse_config
from gpt_cli.corpus.examples import read_examples
from gpt_cli.corpus.prepare import Corpus, prepare_corpus
from gpt_cli.corpus.turn_template import TurnTemplate
from gpt_cli.distributed.world import World
from gpt_cli.errors import RequestError, UserError
from gpt_cli.model.gpt import GPT
from gpt_cli.runtime.device import Runtime
from gpt_cli.sampling import encode_prompt
from gpt_cli.sampling.conversation import Conversation
from gpt_cli.training.evaluate import IGNORED, evaluate
from gpt_cli.training.example_batches import ExampleBatches, open_batches, open_evaluation
from gpt_cli.training.example_rows import ExampleRows
from gpt_cli.training.state import TrainingState
from gpt_cli.training.step import train_step
from gpt_cli.training.torch_engine import token_loss
from tests.support.command import ROOT

CPU = torch.device("cpu")
TINY = ("model.n_layer=2", "model.n_head=2", "model.n_embd=32", "model.context_length=40", "train.batch_size=6")
WORDS = ["eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun", "zehn"]


def write(path: Path, rows: list[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    rows = [{"prompt": f"{i} {'.' * (i % 5)}", "completion": f"{WORDS[i % 10]} {WORDS[i * 7 % 10]}"} for i in range(60)]
    return write(tmp_path / "pairs.jsonl", rows)


def config_of(path: Path, *overrides: str) -> Config:
    return parse_config("", "t", [f"data.source={path}", "data.format=pairs", *TINY, *overrides])


def corpus_of(config: Config) -> Corpus:
    return prepare_corpus(config.data, config.tokenizer, note=print)


def state_of(config: Config, corpus: Corpus) -> TrainingState:
    state = TrainingState.initialize(config, corpus.tokenizer.vocab_size, Runtime(CPU, "fp32", 2), print)
    torch.manual_seed(1)
    with torch.no_grad():  # none is zero
        for parameter in state.parameters:
            parameter.add_(0.1 * torch.randn_like(parameter))
    return state


def loss_alone(model: GPT, config: Config, corpus: Corpus, example: int, split: str = "train") -> tuple[float, int]:
    """The definition: one example without filling, its completion's tokens one by one."""
    prompt, completion = corpus.examples[split].last_turn(example)
    ids = torch.tensor(prompt + completion)
    with torch.no_grad():
        log_probs = model.eval()(ids[None, :-1])[0].log_softmax(-1)
    targets = ids[1:]
    first_target = 1 if config.data.loss_on == "all" else len(prompt)
    losses = -log_probs.gather(1, targets[:, None])[first_target - 1 :, 0].double()
    return float(losses.sum()), len(losses)


@pytest.mark.parametrize("engine", ["native", "torch"])
@pytest.mark.parametrize("loss_on", ["completion", "all"])
def test_the_loss_of_a_step_is_the_mean_of_what_counts_in_each_example_alone(pairs, engine, loss_on):
    config = config_of(pairs, f"runtime.engine={engine}", f"data.loss_on={loss_on}")
    corpus = corpus_of(config)
    state = state_of(config, corpus)
    batches = open_batches(config, corpus, CPU, print)
    assert isinstance(batches, ExampleBatches)
    actual = [loss_alone(state.model, config, corpus, int(batches.rows.indices[row])) for row in batches.indices(3)]
    loss, _ = train_step(state, batches.at(3), config, 3, 0.0, Runtime(CPU, "fp32", 2))
    assert loss.item() == pytest.approx(sum(f[0] for f in actual) / sum(f[1] for f in actual), rel=1e-6)


@pytest.mark.parametrize("engine", ["native", "torch"])
def test_gradients_do_not_depend_on_micro_batches(pairs, engine):
    """Though those of one step have unequal numbers of targets."""
    actual = []
    for size in (6, 3, 1):
        config = config_of(pairs, f"runtime.engine={engine}", f"train.micro_batch_size={size}")
        corpus = corpus_of(config)
        state = state_of(config, corpus)
        batches = open_batches(config, corpus, CPU, print)
        loss, norms = train_step(state, batches.at(0), config, 0, 0.0, Runtime(CPU, "fp32", 2))
        actual.append(torch.cat([loss[None], norms]))
    torch.testing.assert_close(actual[1], actual[0], rtol=2e-5, atol=1e-7)
    torch.testing.assert_close(actual[2], actual[0], rtol=2e-5, atol=1e-7)


@pytest.mark.parametrize(
    "options",
    [
        {"position": "rope"},
        {"position": "learned", "norm": "layernorm", "bias": True},
        {"position": "sinusoidal"},
        {"position": "alibi"},
        {"position": "none", "window": 4},
        {"n_kv_head": 1, "window": 5},
        {"position": "alibi", "window": 3},
    ],
    ids=str,
)
def test_padded_examples_have_the_loss_and_the_gradient_that_each_has_alone(pairs, options):
    config = config_of(pairs)
    corpus = corpus_of(config)
    rows = ExampleRows.of(config, corpus.examples["train"], "training", print)
    torch.manual_seed(3)
    sizes = {"n_layer": 2, "n_head": 2, "n_embd": 16, "context_length": 40, "zero_init": False}
    model = GPT(ModelConfig(**sizes, **options), corpus.tokenizer.vocab_size).double()
    chosen = list(range(12))
    widths = rows.widths[chosen].tolist()
    assert min(widths) < max(widths)
    padded = token_loss(model, *rows.tensors(chosen, max(widths), CPU), "sum")
    alone = [token_loss(model, *rows.tensors([row], widths[row], CPU), "sum") for row in chosen]
    parameters = list(model.parameters())
    expected = torch.autograd.grad(torch.stack(alone).sum(), parameters)
    torch.testing.assert_close(padded, torch.stack(alone).sum(), rtol=1e-6, atol=1e-6)
    for actual, gradient in zip(torch.autograd.grad(padded, parameters), expected, strict=True):
        torch.testing.assert_close(actual, gradient, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("batch_size", [1, 4, None])
@pytest.mark.parametrize("engine", ["native", "torch"])
def test_evaluation_is_exact_and_its_bits_are_per_byte_of_the_completions(pairs, engine, batch_size):
    config = config_of(pairs, f"runtime.engine={engine}")
    corpus = corpus_of(config)
    state = state_of(config, corpus)
    eval_data = open_evaluation(config, corpus, CPU, print)
    result = evaluate(state.model, state.engine, eval_data, batch_size)
    losses = [loss_alone(state.model, config, corpus, i, "val") for i in range(len(corpus.examples["val"]))]
    total, tokens = sum(a[0] for a in losses), sum(a[1] for a in losses)
    completions = [
        corpus.tokenizer.decode(corpus.examples["val"].last_turn(i)[1]).removesuffix("\x03") for i in range(len(losses))
    ]
    assert (result.tokens, result.of_tokens) == (tokens, tokens)
    assert result.loss == pytest.approx(total / tokens, rel=1e-6)
    assert (result.characters, result.bytes) == (len("".join(completions)), len("".join(completions).encode()))
    assert result.bpb == pytest.approx(total / math.log(2) / result.bytes, rel=1e-6)


def test_an_epoch_has_each_example_once_and_processes_share_the_rows_of_one(pairs):
    config = config_of(pairs, "data.val_fraction=0.2")
    corpus = corpus_of(config)
    batches = open_batches(config, corpus, CPU, print)
    n = len(batches.rows)
    seen_rows = [row for step in range(16 * n) for row in batches.indices(step)]  # 96 epochs
    assert np.bincount(seen_rows, minlength=n).tolist() == [96] * n
    for step in (0, 5, 40):
        inputs = torch.cat([i for i, _ in batches.at(step)])
        for size in (2, 3):
            worlds = [World(rank, size) for rank in range(size)]
            shares = [ExampleBatches(batches.rows, CPU, 40, 6, 1, config.seed, world).at(step) for world in worlds]
            assert torch.cat([i for share in shares for i, _ in share]).equal(inputs)


def test_filling_is_never_a_target_and_prompts_are_not(pairs):
    config = config_of(pairs)
    corpus = corpus_of(config)
    batches = open_batches(config, corpus, CPU, print)
    for step in range(4):
        for inputs, targets in batches.at(step):
            for row, ids in zip(inputs.tolist(), targets.tolist(), strict=True):
                target_text = corpus.tokenizer.decode([token for token in ids if token != IGNORED])
                assert target_text.endswith("\x03")
                assert "\x02" not in target_text
                assert target_text[:-1] in corpus.tokenizer.decode(row)


def test_what_is_too_long_is_told_and_left_out_or_cut_as_asked(tmp_path):
    rows = [{"prompt": f"p{i}", "completion": "c" * (10 if i % 2 else 60)} for i in range(20)]
    path = write(tmp_path / "long.jsonl", rows)
    notes: list[str] = []
    drop_batches = open_batches(config := config_of(path), corpus := corpus_of(config), CPU, notes.append)
    n_long = int((corpus.examples["train"].lengths > 41).sum())
    assert len(drop_batches.rows) == len(corpus.examples["train"]) - n_long
    cut_config = config_of(path, "data.too_long=cut")
    cut_batches = open_batches(cut_config, corpus, CPU, notes.append)
    assert len(cut_batches.rows) == len(corpus.examples["train"])
    assert int(cut_batches.rows.widths.max()) == 40
    message = f"{n_long} of {len(cut_batches.rows)} training examples are longer than model.context_length 40: {n_long}"
    assert notes == [f"{message} left out", f"{message} cut"]
    with pytest.raises(RequestError, match="no training example fits"):
        open_batches(config_of(path, "model.context_length=4"), corpus, CPU, notes.append)


@pytest.mark.parametrize("too_long", ["cut", "drop"])
def test_a_context_without_an_example_is_refused_with_the_smallest_that_both_splits_can_use(tmp_path, too_long):
    pairs = {
        split: write(
            tmp_path / f"{split}.jsonl",
            [{"prompt": f"{i:02d}" + "p" * (n + i % 7), "completion": "c" * 60} for i in range(20)],
        )
        for split, n in (("train", 4), ("val", 11))
    }
    keys = f"data.too_long={too_long}", f"data.val_source={pairs['val']}"
    corpus = corpus_of(config_of(pairs["train"], *keys))

    def open_splits(context: str) -> None:
        config = config_of(pairs["train"], *keys, context)
        open_batches(config, corpus, CPU, print)
        open_evaluation(config, corpus, CPU, print)

    with pytest.raises(RequestError, match="no training example") as refused:
        open_splits("model.context_length=2")
    assert refused.value.hint is not None
    (smallest,) = re.findall(r"model.context_length=(\d+)", refused.value.hint)
    open_splits(f"model.context_length={smallest}")
    with pytest.raises(RequestError, match="no validation example"):
        open_splits(f"model.context_length={int(smallest) - 1}")


@pytest.mark.parametrize("kind", ["char", "byte", "bpe"])
def test_every_vocabulary_spells_examples_as_a_prompt_is_spelt_that_a_model_continues(pairs, kind):
    config = config_of(pairs, f"tokenizer.kind={kind}", *(["tokenizer.vocab_size=270"] if kind == "bpe" else []))
    corpus = corpus_of(config)
    examples = corpus.examples["val"]
    for i in range(len(examples)):
        prompt, completion = examples.last_turn(i)
        prompt_text = corpus.tokenizer.decode(prompt).removesuffix("\x02")
        assert encode_prompt(corpus.tokenizer, config.sample.prefix + prompt_text + config.sample.suffix) == prompt
        assert corpus.tokenizer.decode(completion).endswith("\x03")


def test_the_template_is_that_of_samples_unless_a_config_says_otherwise(pairs):
    config = config_of(pairs)
    assert (config.sample.prefix, config.sample.suffix, config.sample.stop) == ("", "\x02", ["\x03"])
    assert parse_config(dump_config(config), "again") == config
    other_config = config_of(pairs, "data.prompt_end=' => '", "data.completion_end='|'", "sample.stop=[x]")
    assert (other_config.sample.suffix, other_config.sample.stop) == (" => ", ["x"])
    chat_config = parse_config("", "t", ["data.format=chat"])
    assert chat_config.sample.prefix + "Hi" + chat_config.sample.suffix == "user\x02Hi\x03assistant\x02"
    assert parse_config("", "t").sample.suffix == ""
    text_config_yaml = dump_config(parse_config("", "t"))  # every key is written down, as a run has it
    assert parse_config(text_config_yaml, "t", [f"data.source={pairs}", "data.format=pairs", *TINY]) == config


CHAT = [
    {"role": "system", "content": "Sei kurz."},
    {"role": "user", "content": "Hallo?"},
    {"role": "assistant", "content": "Ja."},
    {"role": "user", "content": "Gut."},
    {"role": "assistant", "content": "Schön."},
]


def test_of_a_chat_what_the_assistant_says_counts_and_a_conversation_is_spelt_alike(tmp_path):
    path = write(tmp_path / "c.jsonl", [{"messages": [{**CHAT[0], "content": f"{i}"}, *CHAT[1:]]} for i in range(9)])
    config = config_of(
        path, "data.format=chat", "tokenizer.kind=byte", "data.val_fraction=0.3", "model.context_length=99"
    )
    corpus = corpus_of(config)
    examples = corpus.examples["val"]
    ids, kinds = examples.tokens[: examples.starts[1]], examples.kinds[: examples.starts[1]]
    assert corpus.tokenizer.decode(ids[kinds > 0]) == "Ja.\x03Schön.\x03"
    template = TurnTemplate.of(config.data)
    talk = Conversation(corpus.tokenizer, 99, config.sample.prefix, config.sample.suffix, template)
    talk.say("Hallo?")
    talk.answer("Ja.", 0)
    head = corpus.tokenizer.decode(ids).partition("\x03")[0] + "\x03"
    assert head == template.message("system", head.removeprefix("system\x02").removesuffix("\x03"))
    assert head + corpus.tokenizer.decode(talk.say("Gut.").tokens) == corpus.tokenizer.decode(examples.last_turn(0)[0])


def test_of_pairs_a_conversation_shows_the_model_one_turn_alone(pairs):
    config = config_of(pairs, "tokenizer.kind=byte")
    talk = Conversation(corpus_of(config).tokenizer, 40, "", config.sample.suffix, TurnTemplate.of(config.data))
    talk.say("a")
    talk.answer("b", 0)
    assert bytes(talk.say("c").tokens) == b"c\x02"


def test_one_text_before_completions_is_in_one_split_and_the_order_of_files_does_not_matter(tmp_path):
    rows = [{"prompt": f"p{i % 30}", "completion": f"c{i}"} for i in range(90)]
    file = write(tmp_path / "a.jsonl", rows)
    reversed_file = write(tmp_path / "b.jsonl", rows[::-1])

    def prompts_of_split(path: Path, split: str) -> set[str]:
        corpus = prepare_corpus(
            config_of(path, "data.test_fraction=0.2").data, Config().tokenizer, note=print, with_test=True
        )
        examples = corpus.examples[split]
        return {corpus.tokenizer.decode(examples.last_turn(i)[0]) for i in range(len(examples))}

    actual = {split: prompts_of_split(file, split) for split in ("train", "val", "test")}
    assert {split: len(prompts) for split, prompts in actual.items()} == {"train": 21, "val": 3, "test": 6}
    assert len(set.union(*actual.values())) == 30
    assert actual["val"] == prompts_of_split(reversed_file, "val")


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_tables_hold_the_same_examples_as_json_lines(tmp_path, pairs, suffix):
    rows = [json.loads(line) for line in pairs.read_text(encoding="utf-8").splitlines()]
    path = tmp_path / f"pairs{suffix}"
    if suffix == ".csv":
        path.write_text("prompt,completion\n" + "".join(f"{r['prompt']},{r['completion']}\n" for r in rows), "utf-8")
    else:
        arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        parquet.write_table(arrow.Table.from_pylist(rows), path)
    actual, expected = corpus_of(config_of(path)), corpus_of(config_of(pairs))
    assert (actual.fingerprint, actual.val.tolist()) == (expected.fingerprint, expected.val.tolist())


def corpus_error(tmp_path: Path, rows: list[object], *overrides: str) -> UserError:
    path = tmp_path / "bad.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    with pytest.raises(UserError) as caught:
        corpus_of(config_of(path, *overrides))
    return caught.value


@pytest.mark.parametrize(
    ("rows", "overrides", "message", "hint"),
    [
        ([{"en": "a", "de": "b"}], (), "no text under the key 'prompt'", "data.prompt_key=en"),
        (
            [{"prompt": "a", "de": "b"}],
            (),
            "no text under the key 'completion'; keys: prompt, de",
            "data.completion_key=de",
        ),
        ([{"prompt": "a", "completion": ""}], (), "the completion is empty", ""),
        ([{"prompt": "a", "completion": "b\x03"}], (), "only the template may have", "data.completion_end="),
        ([{"prompt": 3, "completion": "b"}], (), "no text under the key 'prompt': it is a number", ""),
        ([{"messages": "Hi"}], ("data.format=chat",), "the messages are not JSON", ""),
        ([{"messages": [{"role": "user"}]}], ("data.format=chat",), "no role and content", ""),
        ([{"messages": [{"role": "bot", "content": "x"}]}], ("data.format=chat",), "no role 'bot'", "assistant"),
        ([{"messages": CHAT[:2]}], ("data.format=chat",), "no message of the assistant", ""),
    ],
)
def test_an_example_of_which_nothing_can_be_learned_is_one_error_with_its_line(
    tmp_path, rows, overrides, message, hint
):
    valid_row: dict[str, object] = {"prompt": "x", "completion": "y", "messages": CHAT}
    error = corpus_error(tmp_path, [valid_row, *rows], *overrides)
    assert message in error.message
    assert hint in (error.suggestion or "")
    assert (error.where or "").endswith("bad.jsonl:2")


def test_what_holds_no_examples_is_refused(tmp_path, pairs):
    text = tmp_path / "book.txt"
    text.write_text("Once upon a time", encoding="utf-8")
    with pytest.raises(RequestError, match=r"book\.txt is plain text: pairs are read from records"):
        corpus_of(config_of(text))
    with pytest.raises(RequestError, match=r"data\.split \(files\) is for texts"):
        config_of(pairs, "data.split=files")
    two_examples = write(tmp_path / "few.jsonl", [{"prompt": prompt, "completion": "c"} for prompt in "ab"])
    with pytest.raises(UserError, match="2 different prompts are too few to split"):
        corpus_of(config_of(two_examples, "data.test_fraction=0.3"))
    vocabulary = tmp_path / "abc.json"
    vocabulary.write_text('{"format": "gpt-char-1", "characters": "abc 0123456789"}\n', encoding="utf-8")
    with pytest.raises(RequestError) as caught:
        corpus_of(config_of(pairs, f"tokenizer.file={vocabulary}"))
    assert caught.value.suggestion == "data.prompt_end=TEXT"


@pytest.mark.parametrize("prompt", ["a\x02b", "a\x03b"])
def test_a_prompt_with_a_character_of_the_template_is_refused_with_its_line(tmp_path, prompt):
    examples = [{"prompt": prompt, "completion": "c"}] + [{"prompt": str(n), "completion": "c"} for n in range(20)]
    path = write(tmp_path / "pairs.jsonl", examples)
    with pytest.raises(UserError, match=r"this prompt contains '.x0[23]', which only the template may have") as caught:
        corpus_of(config_of(path))
    assert "pairs.jsonl:1" in str(caught.value.where)
    newline = [{**one, "prompt": one["prompt"].replace("\x02", "\n").replace("\x03", "\n")} for one in examples]
    corpus_of(config_of(write(tmp_path / "lines.jsonl", newline), "data.prompt_end='\n'"))


def test_a_run_learns_resumes_bit_for_bit_evaluates_and_samples(tmp_path, pairs, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    intervals = [f"{section}.every=20" for section in ("eval", "checkpoint", "sample")]
    keys = [f"data.source={pairs}", "data.format=pairs", *TINY, *intervals, "schedule.kind=constant"]
    Path("c.yaml").write_text("seed: 1\n", encoding="utf-8")

    def train(*overrides: str) -> dict[str, object]:
        assert main(["train", "--config", "c.yaml", *keys, *overrides, "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    full_run = train("run_dir=whole", "train.steps=40")
    train("run_dir=halves", "train.steps=20")
    assert train("run_dir=halves", "train.steps=40")["weights_sha256"] == full_run["weights_sha256"]
    assert main(["eval", "whole", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["loss"] == pytest.approx(full_run["val_loss"], rel=1e-5)
    assert main(["sample", "whole", "--prompt", "12 ..", "--temperature", "0", "--max-new-tokens", "30"]) == 0
    output = capsys.readouterr().out
    assert output.startswith("12 ..\n")
    assert not {"\x02", "\x03"} & set(output)
    assert main(["train", "--config", "c.yaml", *keys, "run_dir=dry", "--dry-run"]) == 0
    assert "validation" in capsys.readouterr().out


def test_a_stop_string_ends_a_learned_completion_besides_its_own_end(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [json.dumps({"prompt": f"q {n}", "completion": "abab"}) for n in range(60)]
    Path("p.jsonl").write_text("\n".join(rows), encoding="utf-8")
    assert main(["train", "p.jsonl", *TINY, "train.steps=60", "sample.every=null", "run_dir=run"]) == 0
    run = gpt_cli.load("run")
    texts = {stop: str(run.generate("q 7", temperature=0, max_new_tokens=9, stop=stop)) for stop in ("zz", "ba", None)}
    assert texts["zz"] == "abab"
    assert texts["ba"] == "a"
    assert texts[None].startswith("abab\x03")
    for stop, text in (("zz", "abab"), ("ba", "a")):
        capsys.readouterr()
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(f"q 7\n/stop {stop}\nq 7\n".encode())))
        options = ["--temperature", "0", "--max-new-tokens", "9"]
        assert main(["sample", "run", "--prompt", "q 7", "--stop", stop, *options]) == 0
        assert capsys.readouterr().out == f"q 7\n{text}\n"
        assert main(["chat", "run", *options]) == 0
        assert capsys.readouterr().out == f"abab\n{text}\n"


def test_the_example_reads_catalogues_into_pairs(tmp_path, capsys, monkeypatch):
    messages = {
        "": "Content-Type: text/plain; charset=UTF-8\n",
        "ctx\x04Save": "Sichern",
        "%d page\0%d pages": "%d Seite\0%d Seiten",
    }
    keys, values = [k.encode() for k in sorted(messages)], [messages[k].encode() for k in sorted(messages)]
    blob, descriptors = b"", []
    for text in keys + values:
        descriptors.append(struct.pack("<2I", len(text), 28 + 16 * len(keys) + len(blob)))
        blob += text + b"\0"
    header = struct.pack("<7I", 0x950412DE, 0, len(keys), 28, 28 + 8 * len(keys), 0, 0)
    folder = tmp_path / "app" / "locale" / "de" / "LC_MESSAGES"
    folder.mkdir(parents=True)
    (folder / "django.mo").write_bytes(header + b"".join(descriptors) + blob)
    monkeypatch.setattr("sys.argv", ["catalogues.py", "de", str(tmp_path)])
    runpy.run_path(str(ROOT / "examples" / "catalogues.py"), run_name="__main__")
    actual = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert actual == [{"en": "%d page", "de": "%d Seite"}, {"en": "Save", "de": "Sichern"}]


ENDS = [
    (),
    ("data.prompt_end=': \"'", "data.completion_end='\"\n'"),
    ("data.prompt_end=\U0001f600", "data.completion_end='\\\\'"),
]


@pytest.mark.parametrize("ends", ENDS)
def test_the_chat_template_of_an_export_makes_the_text_that_was_learned(tmp_path, ends):
    path = write(tmp_path / "c.jsonl", [{"messages": CHAT}] * 3)
    config = config_of(path, "data.format=chat", *ends)
    template = TurnTemplate.of(config.data)
    assert template is not None
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)  # as Transformers renders it
    chat_text = environment.from_string(template.to_jinja()).render(messages=CHAT[:-1], add_generation_prompt=True)
    (example, *_) = read_examples(str(path), config.data, print)
    assert chat_text == example.context
    pairs = TurnTemplate.of(config_of(path, *ends).data)
    assert pairs is not None
    pair_template = environment.from_string(pairs.to_jinja())
    prompt = pair_template.render(messages=CHAT[:2], add_generation_prompt=True)
    assert prompt == CHAT[1]["content"] + config.data.prompt_end
    assert pair_template.render(messages=CHAT[:3]) == prompt + CHAT[2]["content"] + config.data.completion_end
    for ours in (template, pairs):
        assert TurnTemplate.from_jinja(ours.to_jinja()) == ours
        assert TurnTemplate.from_jinja(ours.to_jinja() + " ") is None
        # llama.cpp's Jinja raises for other escapes
        assert set(re.findall(r"\\(.)", ours.to_jinja().replace("\\\\", ""))) <= set("'\"bfnrtv")
        older = ours.to_jinja().replace("\2", "\\u0002").replace("\3", "\\u0003")
        assert TurnTemplate.from_jinja(older) == ours


def test_an_exported_chat_model_says_its_template_and_what_ends_an_answer(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    path = write(tmp_path / "c.jsonl", [{"messages": [{**CHAT[1], "content": f"{i}"}, CHAT[2]]} for i in range(9)])
    Path("c.yaml").write_text(f"data: {{source: {path}, format: chat}}\nrun_dir: run\n", encoding="utf-8")
    keys = [*TINY, "train.steps=1", "sample.every=null", "data.val_fraction=0.3"]
    assert main(["train", "--config", "c.yaml", *keys]) == 0
    assert main(["export", "run", "out"]) == 0
    tokenizer_config = json.loads(Path("out/tokenizer_config.json").read_text(encoding="utf-8"))
    eos_id = json.loads(Path("out/generation_config.json").read_text(encoding="utf-8"))["eos_token_id"]
    assert tokenizer_config["chat_template"].startswith("{% for m in messages %}")
    assert corpus_of(parse_config(Path("run/config.yaml").read_text(), "run")).tokenizer.decode([eos_id]) == "\x03"
    assert main(["import", "out", "back"]) == 0
    trained, imported = load_config(Path("run/config.yaml")), load_config(Path("back/config.yaml"))
    assert [imported.sample.prefix, *imported.sample.stop] == ["user\x02", "\x03"]
    assert imported.sample.suffix == trained.sample.suffix
    assert TurnTemplate.of(imported.data) == TurnTemplate.of(trained.data)
    assert "chat template" not in capsys.readouterr().err
