"""A GGUF file that `gpt export` wrote is the same model and the same tokenizer again; any other is refused by name."""

from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gpt_cli.cli.main import main
from gpt_cli.config import DataConfig
from gpt_cli.corpus.turn_template import TurnTemplate
from gpt_cli.errors import UserError
from gpt_cli.export.answer_borders import guarded_jinja
from gpt_cli.export.gguf import LAYOUTS, chat_keys, export_gguf
from gpt_cli.export.gguf_reading import import_gguf
from gpt_cli.export.gguf_vocabulary import gguf_vocabulary
from gpt_cli.export.huggingface import export_huggingface
from gpt_cli.export.layout import choose_layout
from gpt_cli.export.names import named_tensors
from gpt_cli.run.load_model import LoadedRun, load_model
from tests.support.export_models import GGUF_MODELS, TEXT, TOKENIZERS, make_run

gguf = pytest.importorskip("gguf", reason="the extra [gguf] is not installed")

EXACT = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
CPU = torch.device("cpu")


def imported(file: Path, run_dir: Path) -> LoadedRun:
    import_gguf(file, run_dir)
    return load_model(run_dir, CPU, pytest.fail)


@pytest.mark.parametrize("kind", [name for name in TOKENIZERS if "unk" not in name])
@pytest.mark.parametrize("name", GGUF_MODELS)
@torch.no_grad()
def test_what_is_exported_comes_back_with_the_same_weights_tokenizer_and_bytes(name, kind, tmp_path):
    run = make_run(GGUF_MODELS[name], TOKENIZERS[kind])
    export_gguf(run, tmp_path / "model.gguf")
    back = imported(tmp_path / "model.gguf", tmp_path / "back")
    assert back.tokenizer.digest == run.tokenizer.digest
    ours = choose_layout(run.config.model, LAYOUTS).rewrite(run.config.model, named_tensors(run.model.state_dict()))[1]
    theirs = named_tensors(back.model.state_dict())
    assert theirs.keys() == ours.keys()
    assert all(torch.equal(theirs[key], ours[key]) for key in ours)
    tokens = torch.from_numpy(run.tokenizer.encode(TEXT[:20]).astype(np.int64))[None]
    torch.testing.assert_close(back.model(tokens), run.model(tokens), rtol=0, atol=1e-5)
    export_gguf(back, tmp_path / "again.gguf")
    assert (tmp_path / "again.gguf").read_bytes() == (tmp_path / "model.gguf").read_bytes()


@pytest.mark.parametrize("dtype", EXACT)
def test_the_weights_are_those_that_the_file_has_rounded(dtype, tmp_path):
    run = make_run(GGUF_MODELS["qwen3"], TOKENIZERS["bpe"])
    export_gguf(run, tmp_path / "model.gguf", dtype)
    back = imported(tmp_path / "model.gguf", tmp_path / "back").model.state_dict()
    # The embedding is normalised in its table, which is another one then: `test_what_is_exported` compares it.
    for key, tensor in run.model.state_dict().items():
        if not key.startswith("embedding."):
            assert torch.equal(back[key], tensor.to(EXACT[dtype]).float() if tensor.dim() > 1 else tensor), key


@pytest.mark.parametrize("dtype", EXACT)
@pytest.mark.parametrize("kind", ["byte", "char"])
@torch.no_grad()
def test_a_rounded_file_exported_again_is_the_same_file(kind, dtype, tmp_path):
    run = make_run(GGUF_MODELS["qwen3"], TOKENIZERS[kind])
    export_gguf(run, tmp_path / "model.gguf", dtype)
    export_gguf(imported(tmp_path / "model.gguf", tmp_path / "back"), tmp_path / "again.gguf", dtype)
    assert (tmp_path / "again.gguf").read_bytes() == (tmp_path / "model.gguf").read_bytes()


@pytest.mark.parametrize("dtype", ["q8_0", "q4_0"])
def test_what_was_quantized_is_refused_by_the_name_of_a_tensor(dtype, tmp_path):
    export_gguf(make_run(GGUF_MODELS["qwen3"], TOKENIZERS["byte"]), tmp_path / "model.gguf", dtype)
    with pytest.raises(
        UserError, match=r"tensor token_embd\.weight is Q8_0, from which the weights cannot be restored"
    ):
        import_gguf(tmp_path / "model.gguf", tmp_path / "back")
    assert not (tmp_path / "back").exists()


@pytest.mark.parametrize("kind", ["byte", "bpe"])
@pytest.mark.parametrize(
    "data",
    [
        {"format": "chat"},
        {"format": "pairs", "completion_end": "\x04"},
        {"format": "chat", "prompt_end": "=>", "completion_end": "\n-->"},
        {"format": "pairs", "prompt_end": ": ", "completion_end": "\n--\n"},
    ],
    ids=["chat", "pairs", "an end of several tokens", "pairs whose answers are refused"],
)
def test_the_template_of_pairs_and_chats_comes_back_and_its_end_ends_an_answer(kind, data, tmp_path):
    run = make_run({}, TOKENIZERS[kind], data=DataConfig(**data))
    export_gguf(run, tmp_path / "model.gguf")
    fields = gguf.GGUFReader(tmp_path / "model.gguf").fields
    end = run.tokenizer.encode(run.config.data.completion_end).tolist()
    eot = fields.get("tokenizer.ggml.eot_token_id")
    assert (None if eot is None else eot.contents()) == (end[0] if len(end) == 1 else None)
    template = TurnTemplate.of(run.config.data)
    assert template is not None
    assert fields["tokenizer.chat_template"].contents() == guarded_jinja(template, run.tokenizer)
    back = imported(tmp_path / "model.gguf", tmp_path / "back")
    assert TurnTemplate.of(back.config.data) == template
    assert back.config.sample.stop == [data.get("completion_end", "\x03")]
    export_gguf(back, tmp_path / "again.gguf")
    assert (tmp_path / "again.gguf").read_bytes() == (tmp_path / "model.gguf").read_bytes()


@pytest.mark.parametrize("data", [{"format": "chat"}, {"format": "pairs", "prompt_end": ": "}], ids=["chat", "pairs"])
@pytest.mark.parametrize("kind", ["bpe", "bpe as gpt4"])
def test_a_template_that_refuses_nothing_as_earlier_versions_wrote_it_comes_back_too(kind, data, tmp_path):
    run = make_run({}, TOKENIZERS[kind])
    template = TurnTemplate.of(DataConfig(**data))
    assert template is not None
    export_gguf(run, tmp_path / "model.gguf")
    keys = chat_keys(gguf_vocabulary(run.tokenizer), run.tokenizer, template, template.to_jinja())
    rewritten(tmp_path / "model.gguf", tmp_path / "earlier.gguf", keys)
    assert TurnTemplate.of(imported(tmp_path / "earlier.gguf", tmp_path / "back").config.data) == template


@pytest.mark.parametrize("kind", [name for name in TOKENIZERS if "unk" not in name])
def test_a_file_with_the_unused_merge_that_earlier_versions_wrote_comes_back_too(kind, tmp_path):
    export_gguf(make_run({}, TOKENIZERS[kind]), tmp_path / "model.gguf")
    merges = gguf.GGUFReader(tmp_path / "model.gguf").fields["tokenizer.ggml.merges"].contents()
    earlier = [*(merge for merge in merges if merge != "ÿ ÿ"), "ÿ ÿ"]
    rewritten(tmp_path / "model.gguf", tmp_path / "earlier.gguf", {"tokenizer.ggml.merges": earlier})
    runs = [imported(tmp_path / f"{name}.gguf", tmp_path / name) for name in ("model", "earlier")]
    assert runs[0].weights_sha256 == runs[1].weights_sha256
    assert runs[0].tokenizer == runs[1].tokenizer == TOKENIZERS[kind]
    rewritten(tmp_path / "model.gguf", tmp_path / "more.gguf", {"tokenizer.ggml.merges": [*earlier, "a b"]})
    with pytest.raises(UserError, match=r"tokenizer\.ggml\.merges is"):
        import_gguf(tmp_path / "more.gguf", tmp_path / "back")


CHANGES: dict[str, tuple[dict[str, Any], str]] = {
    "another architecture": ({"general.architecture": "mamba"}, "general.architecture is 'mamba'"),
    "an unknown key": ({"qwen3.rope.scaling.factor": 2.0}, "it says qwen3.rope.scaling.factor"),
    "no tokenizer of ours": ({"tokenizer.huggingface.json": None}, "it has no tokenizer.huggingface.json"),
    "damaged tokenizer": ({"tokenizer.huggingface.json": "{}"}, "tokenizer.huggingface.json is no tokenizer of ours"),
    "damaged at length": (
        {"tokenizer.huggingface.json": '{"model": {"type": "%s"}}' % ("Unigram " * 99)},
        "Unigram ...",
    ),
    "no size": ({"qwen3.block_count": None}, "does not say qwen3.block_count"),
    "layers out of reach": ({"qwen3.block_count": 9000}, "9,000 layers"),
    "another width of heads": ({"qwen3.attention.key_length": 16}, "qwen3.attention.key_length is 16, and 8"),
    "no norm": ({"qwen3.attention.layer_norm_rms_epsilon": -1.0}, "no model of ours"),
    "width of nothing": ({"qwen3.embedding_length": 0}, "no model of ours"),
    "other ids": ({"tokenizer.ggml.bos_token_id": 3}, "tokenizer.ggml.bos_token_id is 3"),
    "begins with an id": ({"tokenizer.ggml.add_bos_token": True}, "tokenizer.ggml.add_bos_token is True"),
    "a template of others": ({"tokenizer.chat_template": "{{ messages }}"}, "it says tokenizer.chat_template"),
    "an end of no answers": ({"tokenizer.ggml.eot_token_id": 3}, "it says tokenizer.ggml.eot_token_id"),
    "another split": ({"tokenizer.ggml.pre": "llama-bpe"}, "tokenizer.ggml.pre is 'llama-bpe'"),
}


def rewritten(source: Path, target: Path, changes: dict[str, Any], drop: str | None = None) -> None:
    """The file with other values of keys (None: without them), and without a tensor."""
    reader = gguf.GGUFReader(source)
    keys = {key: field.contents() for key, field in reader.fields.items() if not key.startswith("GGUF.")} | changes
    writer = gguf.GGUFWriter(target, keys.pop("general.architecture"))
    add = {str: writer.add_string, bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32}
    for key, value in keys.items():
        if value is not None:
            add.get(type(value), writer.add_array)(key, value)
    for tensor in reader.tensors:
        if tensor.name != drop:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("exported") / "model.gguf"
    export_gguf(make_run({}, TOKENIZERS["byte"]), file)
    return file


@pytest.mark.parametrize("name", CHANGES)
def test_what_gpt_did_not_write_is_refused_by_the_name_of_the_key(name, exported, tmp_path):
    changes, message = CHANGES[name]
    rewritten(exported, tmp_path / "changed.gguf", changes)
    with pytest.raises(UserError) as refused:
        import_gguf(tmp_path / "changed.gguf", tmp_path / "back")
    assert message in refused.value.render()
    assert not (tmp_path / "back").exists()


def test_the_rewriting_of_these_tests_changes_nothing_else(exported, tmp_path):
    rewritten(exported, tmp_path / "same.gguf", {})
    imported(tmp_path / "same.gguf", tmp_path / "back")


def test_a_tensor_that_is_not_there_or_is_scaled_is_named(exported, tmp_path):
    rewritten(exported, tmp_path / "less.gguf", {}, drop="blk.1.ffn_up.weight")
    with pytest.raises(UserError, match=r"tensor blk\.1\.ffn_up\.weight is missing"):
        import_gguf(tmp_path / "less.gguf", tmp_path / "back")
    scaled = make_run({**GGUF_MODELS["llama"], "rope_scaling": (8.0, 1.0, 4.0, 12)}, TOKENIZERS["byte"])
    export_gguf(scaled, tmp_path / "s.gguf")
    with pytest.raises(UserError, match=r"tensor rope_freqs\.weight has no place"):
        import_gguf(tmp_path / "s.gguf", tmp_path / "back")


def test_a_file_that_was_cut_or_flipped_is_one_error_or_the_same_keys(exported, tmp_path):
    data = exported.read_bytes()
    damaged = [data[: len(data) * n // 20] for n in range(20)]
    for offset in range(0, 4000, 61):
        damaged.append(data[:offset] + bytes([data[offset] ^ 0x41]) + data[offset + 1 :])
    for number, content in enumerate(damaged):
        (tmp_path / "damaged.gguf").write_bytes(content)
        with suppress(UserError):  # and nothing else is raised
            import_gguf(tmp_path / "damaged.gguf", tmp_path / f"back{number}")


def test_a_model_in_the_current_folder_becomes_a_run_of_that_folders_name(tmp_path, monkeypatch, capsys):
    export_huggingface(make_run(GGUF_MODELS["qwen3"], TOKENIZERS["char"]), tmp_path / "mine", "f32")
    monkeypatch.chdir(tmp_path / "mine")
    assert main(["sample", "."]) == 2
    assert "hint: gpt import . RUN\n" in capsys.readouterr().err
    assert main(["import", "."]) == 0
    assert capsys.readouterr().err.startswith("runs/mine: ")


def test_the_suffix_says_the_format_and_the_name_the_run(exported, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.gguf").write_bytes(exported.read_bytes())
    assert main(["import", "small.gguf"]) == 0
    assert capsys.readouterr().err == "runs/small: small.gguf, a qwen3\n"
    assert main(["sample", "runs/small", "--max-new-tokens", "3"]) == 0
    assert main(["import", "gguf", "small.gguf", "runs/again", "--json"]) == 0
    assert main(["import", "small.gguf"]) == 2
    assert main(["import", "none.gguf"]) == 2
    assert "there is no file none.gguf" in capsys.readouterr().err
    assert main(["import", "gguf", "runs/small"]) == 2
    assert "runs/small is a directory, not a GGUF file" in capsys.readouterr().err
    assert main(["import", "hf", "small.gguf", "runs/x"]) == 2
    assert "hint: gpt import small.gguf RUN\n" in capsys.readouterr().err
    assert main(["import", "a", "b", "c"]) == 2
