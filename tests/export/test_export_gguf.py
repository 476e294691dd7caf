"""Exports to GGUF: what the file says to the real library, and what llama.cpp makes of it where it is installed."""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gpt_cli.cli.main import main
from gpt_cli.config import DataConfig, TokenizerConfig
from gpt_cli.errors import RequestError
from gpt_cli.export.gguf import export_gguf
from gpt_cli.export.gguf_vocabulary import gguf_vocabulary
from gpt_cli.run.checkpoint import save
from gpt_cli.run.load_model import LoadedRun
from gpt_cli.tokenizer import CharTokenizer, train_tokenizer
from gpt_cli.training.evaluate import cross_entropy
from tests.support.export_models import GGUF_MODELS, GPT2, NANOCHAT, TEXT, TOKENIZERS, greedy, make_run

gguf = pytest.importorskip("gguf", reason="the extra [gguf] is not installed")

KINDS = ["char", "byte", "bpe", "bpe as gpt4"]


@pytest.fixture
def llama_cpp(monkeypatch: pytest.MonkeyPatch) -> Any:
    """llama.cpp, without the instructions of one kind of processor (AMX) that not every sandbox lets through."""
    library = pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
    defaults = library.llama_cpp.llama_model_default_params

    def plain() -> Any:
        parameters = defaults()
        parameters.use_extra_bufts = False
        return parameters

    monkeypatch.setattr(library.llama_cpp, "llama_model_default_params", plain)
    return library


def opened(library: Any, file: Path) -> Any:
    """The model in `file`, its keys and values kept in fp32 as ours are."""
    return library.Llama(str(file), n_ctx=64, n_threads=1, logits_all=True, verbose=False, type_k=0, type_v=0)


@cache
def trained(family: str, kind: str) -> LoadedRun:
    """A model after a little training, so that it is sure of what comes next."""
    run = make_run({**GGUF_MODELS[family], "context_length": 64}, TOKENIZERS[kind])
    tokens = torch.tensor(run.tokenizer.encode(TEXT).astype(np.int64))
    optimizer = torch.optim.AdamW(run.model.parameters(), lr=6e-3)
    for step in range(200):
        windows = torch.stack([tokens[i : i + 49] for i in range(step, len(tokens) - 49, len(tokens) // 8)])
        optimizer.zero_grad()
        cross_entropy(run.model(windows[:, :-1]), windows[:, 1:]).backward()
        torch.nn.utils.clip_grad_norm_(run.model.parameters(), 1.0)
        optimizer.step()
    return run


@pytest.mark.parametrize("options", GGUF_MODELS.values(), ids=GGUF_MODELS)
@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_llama_cpp_has_the_same_ids_and_logits(options, kind, llama_cpp, tmp_path):
    run = make_run({**options, "context_length": 64}, TOKENIZERS[kind])
    export_gguf(run, tmp_path / "model.gguf")
    theirs = opened(llama_cpp, tmp_path / "model.gguf")
    ids = run.tokenizer.encode(TEXT[:50])
    assert theirs.tokenize(TEXT[:50].encode(), add_bos=False, special=False) == ids.tolist()
    theirs.eval(ids.tolist())
    logits = torch.tensor(theirs.scores[: len(ids)])
    # its activations are looked up in tables of 16 bits
    ours = run.model(torch.tensor(ids.astype(np.int64))[None])[0]
    torch.testing.assert_close(logits[:, : run.tokenizer.vocab_size], ours, rtol=0, atol=5e-3)
    if run.tokenizer.eot_id is None:
        torch.testing.assert_close(logits[:, -1], ours.mean(dim=1), rtol=0, atol=5e-3)
    assert theirs.token_eos() == gguf_vocabulary(run.tokenizer).end_of_text


@pytest.mark.parametrize("dtype", ["f32", "f16", "q8_0"])
@pytest.mark.parametrize("kind", ["char", "bpe"])
@pytest.mark.parametrize("family", ["gpt2", "llama", "qwen3"])
def test_llama_cpp_writes_the_same_greedy_text_in_each_precision(family, kind, dtype, llama_cpp, tmp_path):
    run = trained(family, kind)
    export_gguf(run, tmp_path / "model.gguf", dtype)
    theirs = opened(llama_cpp, tmp_path / "model.gguf")
    written = theirs("The quick", max_tokens=30, temperature=0.0, repeat_penalty=1.0)["choices"][0]["text"]
    assert written == greedy(run, "The quick", 30).replace("\ufffd", "")  # half a character is left out there
    assert len(written) >= 20


@pytest.mark.parametrize("kind", ["byte", "bpe"])
def test_llama_cpp_answers_a_chat_as_gpt_does_and_ends_where_the_answer_does(kind, llama_cpp, tmp_path):
    data = DataConfig(format="chat")
    run = make_run({"context_length": 64}, TOKENIZERS[kind], data=data)
    text = "user\x02The quick\x03assistant\x02brown fox\x03"
    tokens = torch.tensor(run.tokenizer.encode(text).astype(np.int64))[None]
    optimizer = torch.optim.AdamW(run.model.parameters(), lr=6e-3)
    for _ in range(60):
        optimizer.zero_grad()
        cross_entropy(run.model(tokens[:, :-1]), tokens[:, 1:]).backward()
        optimizer.step()
    export_gguf(run, tmp_path / "model.gguf")
    theirs = opened(llama_cpp, tmp_path / "model.gguf")
    answer = theirs.create_chat_completion(
        [{"role": "user", "content": "The quick"}], temperature=0.0, repeat_penalty=1.0, max_tokens=30
    )["choices"][0]
    assert (answer["message"]["content"], answer["finish_reason"]) == ("brown fox", "stop")


@pytest.mark.parametrize("kind", KINDS)
def test_llama_cpp_gives_the_same_ids_for_any_text_of_the_vocabulary(kind, llama_cpp, tmp_path):
    tokenizer = CharTokenizer("\n aé—😀\U0001f601ÿ\x00") if kind == "char" else TOKENIZERS[kind]
    export_gguf(make_run({}, tokenizer), tmp_path / "model.gguf")
    theirs = opened(llama_cpp, tmp_path / "model.gguf")
    alphabet = (
        tokenizer.characters if isinstance(tokenizer, CharTokenizer) else "".join(sorted(set(TEXT))) + "é—😀 \n\tǅ'S1"
    )

    @settings(max_examples=50)
    @given(st.text(alphabet, min_size=1, max_size=30))
    def agree(text: str) -> None:
        ids = theirs.tokenize(text.encode(), add_bos=False, special=False)
        assert ids == tokenizer.encode(text).tolist()
        assert b"".join(theirs.detokenize([i]) for i in ids) == text.encode()

    agree()


@pytest.mark.parametrize("family", ["gpt2", "llama", "qwen3"])
@pytest.mark.parametrize("kind", ["bpe", "bpe as gpt4"])
def test_transformers_reads_the_tokenizer_of_a_bpe_file_with_the_same_ids(kind, family, tmp_path):
    transformers = pytest.importorskip("transformers", reason="the extra [hf] is not installed")
    run = make_run(GGUF_MODELS[family], TOKENIZERS[kind])
    export_gguf(run, tmp_path / "model.gguf")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path, gguf_file="model.gguf")
    for text in (TEXT, "'tis 12345 — naïve!\n\n  twice \n x"):
        assert theirs(text, add_special_tokens=False)["input_ids"] == run.tokenizer.encode(text).tolist()


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16", "q8_0", "q4_0"])
def test_the_file_holds_the_tensors_of_the_model_as_precisely_as_asked(dtype, tmp_path):
    run = make_run({**GGUF_MODELS["qwen3"], "n_embd": 48, "n_head": 6, "mlp_ratio": 2.0}, TOKENIZERS["char"])
    export_gguf(run, tmp_path / "model.gguf", dtype)
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(tmp_path / "model.gguf").tensors}
    down = tensors["blk.1.ffn_down.weight"]  # rows of 96; those of n_embd are no multiple of 32
    actual = gguf.quants.dequantize(down.data, down.tensor_type).reshape(48, 96)
    expected = run.model.blocks[1].mlp.down.weight.detach().numpy()
    assert np.abs(actual - expected).max() <= {"f32": 0.0, "f16": 1e-3, "bf16": 1e-2, "q8_0": 5e-3, "q4_0": 0.1}[dtype]
    if dtype != "f32":  # to the bit what the library itself makes of these weights, and of them again
        kind = gguf.GGMLQuantizationType[dtype.upper()]
        assert np.array_equal(actual, gguf.quants.dequantize(gguf.quants.quantize(expected, kind), kind))
    assert down.tensor_type.name == dtype.upper()
    assert tensors["blk.0.attn_norm.weight"].tensor_type.name == "F32"
    assert tensors["token_embd.weight"].tensor_type.name == {"q8_0": "F16", "q4_0": "F16"}.get(dtype, dtype.upper())


def test_four_bits_keep_the_embedding_and_the_head_at_eight(tmp_path):
    run = make_run(GGUF_MODELS["qwen3"], TOKENIZERS["byte"])
    export_gguf(run, tmp_path / "model.gguf", "q4_0")
    reader = gguf.GGUFReader(tmp_path / "model.gguf")
    kinds = {tensor.name: tensor.tensor_type.name for tensor in reader.tensors if tensor.data.ndim > 1}
    assert {kinds.pop("token_embd.weight"), kinds.pop("output.weight")} == {"Q8_0"}
    assert set(kinds.values()) <= {"Q4_0", "F16"}
    assert kinds["blk.0.attn_output.weight"] == "Q4_0"
    assert reader.fields["general.file_type"].contents() == gguf.LlamaFileType.MOSTLY_Q4_0


@pytest.mark.parametrize(
    ("options", "tokenizer", "message"),
    [
        (NANOCHAT, TOKENIZERS["byte"], "model."),
        ({"window": 3}, TOKENIZERS["byte"], "model.window is 3"),
        ({**GPT2, "mlp": "relu"}, TOKENIZERS["byte"], "model.mlp is relu"),
        ({}, TOKENIZERS["char with <unk>"], "<unk>"),
        (
            {},
            train_tokenizer([TEXT], TokenizerConfig(kind="bpe", vocab_size=290, pattern="o200k")),
            "pattern o200k",
        ),
    ],
)
def test_what_llama_cpp_would_run_as_something_else_is_refused_with_the_reason(options, tokenizer, message, tmp_path):
    with pytest.raises(RequestError, match=message):
        export_gguf(make_run(options, tokenizer), tmp_path / "model.gguf")
    assert list(tmp_path.iterdir()) == []


def test_the_command_writes_one_file_and_nothing_over_another(tmp_path, capsys):
    run = make_run({}, TOKENIZERS["bpe"])
    checkpoint = str(save(tmp_path / "run", 7, run.model.state_dict(), {}, {}, run.config, run.tokenizer))
    file = str(tmp_path / "model.gguf")
    assert main(["export", checkpoint, "--to", "gguf", file, "--dtype", "q8_0"]) == 0
    assert "a qwen3 of llama.cpp, q8_0" in capsys.readouterr().err
    assert main(["export", checkpoint, "--to", "gguf", file]) == 2
    for dtype in ("q8_0", "q4_0"):
        assert main(["export", checkpoint, "--to", "hf", str(tmp_path / "hf"), "--dtype", dtype]) == 2
        assert f"--dtype {dtype} is for --to gguf" in capsys.readouterr().err


@pytest.mark.parametrize(("name", "is_file"), [("model.gguf", True), ("model", False), ("model-0.6b", False)])
def test_the_suffix_decides_on_the_format(tmp_path, name, is_file):
    run = make_run({}, TOKENIZERS["bpe"])
    checkpoint = str(save(tmp_path / "run", 7, run.model.state_dict(), {}, {}, run.config, run.tokenizer))
    assert main(["export", checkpoint, str(tmp_path / name)]) == 0
    assert (tmp_path / name).is_file() == is_file


def test_a_directory_named_like_a_file_is_refused_and_the_hint_helps(tmp_path, capsys):
    run = make_run({}, TOKENIZERS["bpe"])
    checkpoint = str(save(tmp_path / "run", 7, run.model.state_dict(), {}, {}, run.config, run.tokenizer))
    assert main(["export", checkpoint, str(tmp_path / "model.gguf"), "--to", "hf"]) == 2
    assert f"did you mean {tmp_path / 'model'}?" in capsys.readouterr().err
    assert main(["export", checkpoint, str(tmp_path / "model"), "--to", "hf"]) == 0
