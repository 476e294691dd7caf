"""Models of Transformers as runs: made by the real library, bit for bit there and back, and nothing hostile gets in."""

import hashlib
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st

from gpt_cli.cli.main import main
from gpt_cli.corpus.turn_template import TurnTemplate
from gpt_cli.errors import RequestError, UserError
from gpt_cli.export import numbers
from gpt_cli.export.huggingface import export_huggingface
from gpt_cli.export.import_hf import find_model, import_huggingface
from gpt_cli.files import DamagedError
from gpt_cli.run.load_model import load_model
from gpt_cli.tokenizer import ForeignTokenizer, load_tokenizer
from tests.support.export_models import MODELS, TOKENIZERS, make_run

pytestmark = pytest.mark.system

transformers = pytest.importorskip("transformers", reason="the extra [hf] is not installed")
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

IMPORTED = {"GPT2LMHeadModel", "LlamaForCausalLM", "Qwen3ForCausalLM", "NanoChatForCausalLM"}
CPU = torch.device("cpu")
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 24,
         "intermediate_size": 48, "vocab_size": 290}  # fmt: skip
LLAMA31 = {"rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
           "original_max_position_embeddings": 12}  # fmt: skip
THEIRS: dict[str, Callable[[], Any]] = {
    "gpt2": lambda: transformers.GPT2Config(n_embd=32, n_layer=2, n_head=4, n_positions=24, vocab_size=290),
    "llama": lambda: transformers.LlamaConfig(**SIZES, num_key_value_heads=2, tie_word_embeddings=True),
    "llama 3.1": lambda: transformers.LlamaConfig(**SIZES, num_key_value_heads=2, rope_parameters=LLAMA31),
    "qwen3": lambda: transformers.Qwen3Config(**SIZES, num_key_value_heads=2, head_dim=8),
    "qwen3 with a window": lambda: transformers.Qwen3Config(
        **SIZES, num_key_value_heads=2, head_dim=8, use_sliding_window=True, sliding_window=5, max_window_layers=0
    ),
    "nanochat": lambda: transformers.NanoChatConfig(**SIZES, num_key_value_heads=4),
}


@pytest.fixture
def saved(tmp_path: Path) -> Callable[..., tuple[Path, Any]]:
    """A model of Transformers' own, in safetensors of at most `shard` bytes, beside a tokenizer of 290 ids."""

    def save(kind: str, shard: str = "5GB") -> tuple[Path, Any]:
        torch.manual_seed(0)
        model = transformers.AutoModelForCausalLM.from_config(THEIRS[kind]()).eval()
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.2)
        directory = tmp_path / kind
        model.save_pretrained(directory, max_shard_size=shard)
        TOKENIZERS["bpe"].save(directory / "tokenizer.json")
        (directory / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
        return directory, model

    return save


def tensors(directory: Path) -> dict[str, torch.Tensor]:
    return {
        name: tensor
        for path in directory.glob("*.safetensors")
        for name, tensor in safetensors.torch.load_file(path).items()
    }


@pytest.mark.parametrize("kind", THEIRS)
@torch.no_grad()
def test_a_model_of_theirs_has_the_same_logits_here_and_goes_back_bit_for_bit(kind, saved, tmp_path):
    directory, theirs = saved(kind)
    import_huggingface(str(directory), tmp_path / "run")
    run = load_model(tmp_path / "run", CPU, print)
    tokens = torch.randint(290, (2, 24))
    torch.testing.assert_close(run.model(tokens), theirs(tokens).logits, rtol=0, atol=1e-5)
    layout = export_huggingface(run, tmp_path / "back")
    assert layout.model_type == kind.split()[0]
    back, before = tensors(tmp_path / "back"), tensors(directory)
    assert back.keys() == before.keys()
    assert all(torch.equal(back[name], before[name]) for name in before)
    assert load_tokenizer(tmp_path / "back").digest == TOKENIZERS["bpe"].digest


@torch.no_grad()
def test_llama_3_1_is_read_as_it_was_published_too_and_its_config_goes_back(saved, tmp_path):
    directory, theirs = saved("llama 3.1")
    scaling = {key: value for key, value in LLAMA31.items() if key != "rope_theta"}
    published = json.loads((directory / "config.json").read_text())
    del published["rope_parameters"]
    published |= {"rope_scaling": scaling, "rope_theta": 500.0}
    (directory / "config.json").write_text(json.dumps(published))
    import_huggingface(str(directory), tmp_path / "run")
    run = load_model(tmp_path / "run", CPU, print)
    assert run.config.model.rope_scaling == (8.0, 1.0, 4.0, 12)
    tokens = torch.randint(290, (2, 24))
    torch.testing.assert_close(run.model(tokens), theirs(tokens).logits, rtol=0, atol=1e-5)
    export_huggingface(run, tmp_path / "back")
    back = json.loads((tmp_path / "back" / "config.json").read_text())
    assert (back["rope_parameters"], back["rope_scaling"]) == (LLAMA31, scaling)


def test_a_rotary_key_is_refused_where_there_are_no_rotary_positions(saved, tmp_path):
    directory, _ = saved("gpt2")
    change(directory, rope_scaling={"rope_type": "llama3"})
    with pytest.raises(UserError, match="rope_scaling"):
        import_huggingface(str(directory), tmp_path / "run")


EXPORTED = [(*pair, "byte") for pair in MODELS if pair[0] in IMPORTED]
EXPORTED += [
    (*pair, kind) for pair in dict(MODELS).items() if pair[0] in IMPORTED for kind in ("char with <unk>", "bpe as gpt4")
]


@pytest.mark.parametrize(("architecture", "options", "kind"), EXPORTED)
def test_what_was_exported_comes_back_and_is_exported_again_as_the_same_bytes(architecture, options, kind, tmp_path):
    export_huggingface(make_run(options, TOKENIZERS[kind]), tmp_path / "a")
    import_huggingface(str(tmp_path / "a"), tmp_path / "run")
    run = load_model(tmp_path / "run", CPU, print)
    assert run.tokenizer == TOKENIZERS[kind]
    assert export_huggingface(run, tmp_path / "b").architecture == architecture
    for name in ("model.safetensors", "tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes(), name


FOREIGN_TEMPLATES = [
    "{% for m in messages %}{{ '<|' + m['role'] + '|>' }}{% endfor %}",
    '{% if x == "tool" %}\n{{ "' + "a\n" + '" }}{% endif %}',
    TurnTemplate("chat", "", "").to_jinja(),
    TurnTemplate("pairs", "assistant", "b").to_jinja(),
]


@pytest.mark.parametrize("template", FOREIGN_TEMPLATES)
@pytest.mark.parametrize("place", ["chat_template.jinja", "tokenizer_config.json", "named"])
def test_a_chat_template_that_is_not_ours_is_kept_with_the_tokenizer_and_exported(template, place, saved, tmp_path):
    directory, _ = saved("gpt2")
    several = [{"name": "tool_use", "template": "x"}, {"name": "default", "template": template}]
    if place == "chat_template.jinja":
        (directory / place).write_text(template)
    else:
        file = directory / "tokenizer_config.json"
        file.write_text(json.dumps({"chat_template": several if place == "named" else template}))
    import_huggingface(str(directory), tmp_path / "run")
    run = load_model(tmp_path / "run", CPU, print)
    assert isinstance(run.tokenizer, ForeignTokenizer)
    assert run.tokenizer.chat_template == template
    assert (run.config.data.format, run.config.sample.suffix) == ("text", "")
    export_huggingface(run, tmp_path / "again")
    assert json.loads((tmp_path / "again" / "tokenizer_config.json").read_text())["chat_template"] == template


def test_a_chat_template_that_is_not_valid_stays_behind_and_the_import_says_so(saved, tmp_path):
    directory, _ = saved("gpt2")
    (directory / "chat_template.jinja").write_text("{% for")
    notes: list[str] = []
    import_huggingface(str(directory), tmp_path / "run", note=notes.append)
    assert "not valid" in notes[0]
    assert load_model(tmp_path / "run", CPU, print).tokenizer.chat_template is None  # type: ignore[attr-defined]


@given(st.text())
def test_a_template_of_ours_is_read_back_from_no_other_text(source):
    for text in (source, "{{" + json.dumps(source) + "}}" * 2, TurnTemplate("chat", "a", source).to_jinja()):
        template = TurnTemplate.from_jinja(text)
        assert template is None or template.to_jinja() == text


def test_shards_half_precision_and_names_as_gpt2_was_published_are_read(saved, tmp_path):
    directory, _ = saved("gpt2", shard="20KB")
    assert len(list(directory.glob("*.safetensors"))) > 2
    import_huggingface(str(directory), tmp_path / "sharded")
    bare = {name.removeprefix("transformer."): tensor for name, tensor in tensors(directory).items()}
    bare |= {"h.0.attn.bias": torch.ones(1, 1, 24, 24).tril()}
    for path in directory.glob("*.safetensors*"):
        path.unlink()
    safetensors.torch.save_file(bare, directory / "model.safetensors")
    import_huggingface(str(directory), tmp_path / "bare")
    halves = {name: tensor.bfloat16() for name, tensor in bare.items()}
    safetensors.torch.save_file(halves, directory / "model.safetensors")
    import_huggingface(str(directory), tmp_path / "halves")
    runs = [load_model(tmp_path / name, CPU, print) for name in ("sharded", "bare", "halves")]
    assert runs[0].weights_sha256 == runs[1].weights_sha256
    export_huggingface(runs[2], tmp_path / "back", "bf16")
    back = tensors(tmp_path / "back")
    assert all(torch.equal(back[f"transformer.{n}"], t) for n, t in halves.items() if not n.endswith("attn.bias"))


def test_an_imported_run_is_evaluated_sampled_inspected_and_never_mixed_up(saved, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    saved("llama")
    Path("text.txt").write_text("The quick brown fox\n" * 5)
    assert main(["import", "hf", "llama", "run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["architecture"] == "LlamaForCausalLM"
    assert main(["eval", "--run", "run", "--text", "text.txt"]) == 0
    assert main(["sample", "--run", "run", "--prompt", "The", "--max-new-tokens", "5"]) == 0
    assert main(["info", "run"]) == 0
    capsys.readouterr()
    assert main(["eval", "--run", "run"]) == 2
    assert "imported" in capsys.readouterr().err
    assert main(["import", "hf", "llama", "run"]) == 2
    assert main(["import", "hf", "nowhere/at-all", "other"]) == 2
    assert "--download" in capsys.readouterr().err
    assert main(["import", "hf", "text.txt", "other"]) == 2
    capsys.readouterr()
    assert main(["import", "hf", "run", "other"]) == 2
    with pytest.raises(RequestError, match="run is a run, not a model") as caught:
        import_huggingface("run", Path("other"))
    assert (caught.value.kind, caught.value.path) == ("run", "run")
    assert not Path("other").exists()


def test_a_file_that_sha256sums_lists_is_verified_if_it_is_read(tmp_path):
    """Every such file, altered or missing, is named; what is not read, or not listed, may be anything."""
    export_huggingface(make_run(dict(MODELS)["Qwen3ForCausalLM"], TOKENIZERS["byte"]), tmp_path / "exported")

    def copy() -> Path:
        shutil.rmtree(tmp_path / "copy", ignore_errors=True)
        return shutil.copytree(tmp_path / "exported", tmp_path / "copy")

    def refused(directory: Path, message: str) -> None:
        with pytest.raises(DamagedError, match=message):
            import_huggingface(str(directory), tmp_path / "run")
        assert not (tmp_path / "run").exists()

    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        directory = copy()
        data = bytearray((directory / name).read_bytes())
        data[-5] ^= 1
        (directory / name).write_bytes(data)
        refused(directory, f"{name} does not match its SHA-256")
        (directory / name).unlink()
        refused(directory, f"{name} is missing")
    directory = copy()
    with (directory / "SHA256SUMS").open("a") as sums:
        sums.write("no line of it\n")
    refused(directory, "SHA256SUMS has a malformed line")
    directory = copy()
    (directory / "README.md").unlink()
    (directory / "notes.txt").write_text("not listed")
    import_huggingface(str(directory), tmp_path / "changed")
    directory = copy()
    for path in list(directory.iterdir()):  # as in the cache of the hub
        path.unlink()
        path.symlink_to(tmp_path / "exported" / path.name)
    import_huggingface(str(directory), tmp_path / "links")


def test_a_shard_that_sha256sums_lists_is_verified(saved, tmp_path):
    directory, _ = saved("gpt2", shard="20KB")
    shard = max(directory.glob("*.safetensors"))
    (directory / "SHA256SUMS").write_text(f"{'0' * 64}  {shard.name}\n")
    with pytest.raises(DamagedError, match=f"{shard.name} does not match its SHA-256"):
        import_huggingface(str(directory), tmp_path / "run")
    (directory / "SHA256SUMS").write_text(f"{hashlib.sha256(shard.read_bytes()).hexdigest()}  {shard.name}\n")
    import_huggingface(str(directory), tmp_path / "run")


def change(directory: Path, **keys: Any) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **keys}))


@pytest.mark.parametrize("architectures", [None, ["LlamaForCausalLM"]])
@pytest.mark.parametrize("layer_types", [None, ["full_attention"] * 2])
def test_architectures_and_layer_types_that_change_nothing_are_read(architectures, layer_types, saved, tmp_path):
    directory, _ = saved("llama")
    change(directory, architectures=architectures, layer_types=layer_types)
    import_huggingface(str(directory), tmp_path / "run")


def test_gpt2_without_a_head_is_read_as_transformers_saves_it(saved, tmp_path):
    directory, theirs = saved("gpt2")
    import_huggingface(str(directory), tmp_path / "whole")
    theirs.transformer.save_pretrained(directory)
    assert json.loads((directory / "config.json").read_text())["architectures"] == ["GPT2Model"]
    import_huggingface(str(directory), tmp_path / "run")
    digests = {load_model(tmp_path / name, CPU, print).weights_sha256 for name in ("whole", "run")}
    assert len(digests) == 1


@pytest.mark.parametrize("architecture", sorted(IMPORTED))
@torch.no_grad()
def test_a_tied_model_stored_with_either_of_the_two_tensors_is_the_same_model(architecture, tmp_path):
    """safetensors' `save_model` keeps one of two shared tensors, which may be the head."""
    tied = dict(MODELS)[architecture] | {"tie_embeddings": True, "embedding_norm": architecture.startswith("Nano")}
    export_huggingface(make_run(tied, TOKENIZERS["byte"]), tmp_path / "whole")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "whole")
    for alone in (theirs.get_input_embeddings(), theirs.lm_head):
        (name,) = {n for n, m in theirs.named_modules() if m is alone}
        shutil.copytree(tmp_path / "whole", tmp_path / name)
        (tmp_path / name / "SHA256SUMS").unlink()
        stored = {key: t for key, t in theirs.state_dict().items() if t.data_ptr() != alone.weight.data_ptr()}
        stored[f"{name}.weight"] = alone.weight
        safetensors.torch.save_file(stored, tmp_path / name / "model.safetensors")
        import_huggingface(str(tmp_path / name), tmp_path / f"run of {name}")
    import_huggingface(str(tmp_path / "whole"), tmp_path / "run of whole")
    runs = [load_model(path, CPU, print) for path in sorted(tmp_path.glob("run of *"))]
    assert len(runs) == 3
    assert len({run.weights_sha256 for run in runs}) == 1
    tokens = torch.randint(256, (2, 24))
    torch.testing.assert_close(runs[0].model(tokens), theirs(tokens).logits, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"model_type": "mamba"}, "model_type"),
        ({"model_type": ["gpt2"]}, "model_type"),
        ({"auto_map": {"AutoModel": "evil.Model"}}, "code of its own"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, "'yarn'"),
        ({"rope_parameters": None, "rope_scaling": {"type": "linear", "factor": 2.0}}, "'linear'"),
        ({"rope_parameters": {"rope_type": "dynamic", "type": "default"}}, "'dynamic'"),
        ({"rope_parameters": {"rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0}}, "low_freq_factor"),
        ({"rope_parameters": LLAMA31 | {"low_freq_factor": 9.0}}, "rope_scaling"),
        ({"rope_parameters": LLAMA31 | {"factor": "8"}}, r"rope_parameters\.factor must be a finite number"),
        ({"rope_parameters": LLAMA31 | {"factor": -8.0}}, r"rope_parameters\.factor must be a finite number"),
        ({"rope_parameters": LLAMA31 | {"attention_factor": 2.0}}, "attention_factor"),
        ({"rope_parameters": LLAMA31, "rope_scaling": {"rope_type": "default"}}, "rope_type"),
        ({"rope_parameters": LLAMA31 | {"partial_rotary_factor": 0.5}}, "part of each head"),
        ({"rope_parameters": ["llama3"]}, "rope_parameters"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"head_dim": 16}, "head_dim"),
        ({"attention_bias": True}, "mlp_bias"),
        ({"intermediate_size": 47}, "intermediate_size"),
        ({"intermediate_size": "48"}, "intermediate_size"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers"),
        ({"num_hidden_layers": 2.0}, "num_hidden_layers"),
        ({"num_hidden_layers": -1}, "num_hidden_layers"),
        ({"max_position_embeddings": 10**9}, "out of reach"),
        ({"rope_parameters": LLAMA31, "rope_theta": 10_000.0}, "rope_theta is 10000.0, and 500.0"),
        ({"hidden_size": 10**8, "intermediate_size": 10**8, "head_dim": None}, "hidden_size"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps"),
        ({"vocab_size": 289}, "vocab_size"),
        ({"surprise": 1}, "surprise"),
        ({"architectures": ["X"]}, r"architectures is \['X'\], not \['LlamaForCausalLM'\]"),
        ({"architectures": ["Qwen3ForCausalLM"]}, r"architectures is \['Qwen3ForCausalLM'\]"),
        ({"architectures": ["LlamaForCausalLM", "X"]}, "architectures is"),
        ({"architectures": "LlamaForCausalLM"}, "architectures is 'LlamaForCausalLM'"),
        ({"layer_types": ["linear_attention"] * 2}, r"layer_types is \['linear_attention', 'linear_attention'\]"),
        ({"tie_word_embeddings": False}, "lm_head.weight is missing"),
    ],
)
def test_a_config_that_is_no_model_of_ours_is_refused_by_its_key(keys, message, saved, tmp_path):
    directory, _ = saved("llama")
    change(directory, **keys)
    with pytest.raises(UserError, match=message) as refused:
        import_huggingface(str(directory), tmp_path / "run")
    assert not re.search("Input should|Value error|unable to|model\\.", refused.value.message)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"max_window_layers": 1, "layer_types": None}, "some of its layers"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "some of its layers"),
        ({"layer_types": "sliding_attention"}, "layer_types"),
        ({"layer_types": ["sliding_attention"] * 7}, "for each of 2 layers"),
        ({"layer_types": ["linear_attention"] * 2}, "layer_types is .*, not 'full_attention' for each of 2 layers"),
        ({"layer_types": 5, "use_sliding_window": False}, "layer_types is 5"),
        ({"layer_types": ["sliding_attention"] * 2, "use_sliding_window": False}, "not 'full_attention'"),
        ({"layer_types": None, "max_window_layers": None}, "max_window_layers"),
        ({"sliding_window": 0}, "sliding_window|window"),
        ({"use_sliding_window": "yes"}, "use_sliding_window"),
    ],
)
def test_a_window_that_is_not_that_of_every_layer_is_refused_by_its_reason(keys, message, saved, tmp_path):
    directory, _ = saved("qwen3 with a window")
    change(directory, **keys)
    with pytest.raises(UserError, match=message):
        import_huggingface(str(directory), tmp_path / "run")


def test_what_is_not_to_be_had_is_refused_in_whole_words_and_with_the_hub_alone_to_blame(tmp_path, monkeypatch):
    import huggingface_hub

    def fail(*_: Any, **__: Any) -> str:
        raise OSError("a reason " + "of many words " * 50)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    with pytest.raises(RequestError) as refused:
        find_model("some/model", download=True)
    assert refused.value.message.endswith(("words [...]", "many [...]", "of [...]"))
    with pytest.raises(RequestError) as refused:
        find_model("some/model", download=False)
    assert refused.value.message.endswith("cache of this machine")
    assert "--download" in str(refused.value.hint)


NUMBERS = [float("nan"), float("inf"), -float("inf"), -1, -1.0, 0, 0.0, 1e30, 10**30, "x", "8", True, [8], {}, 1e-400]


@pytest.mark.parametrize("kind", ["gpt2", "llama 3.1", "nanochat"])
def test_a_number_that_cannot_be_one_is_refused_by_its_key_in_a_sentence_of_ours(
    kind, saved, tmp_path, record_property
):
    directory, _ = saved(kind)
    path = directory / "config.json"
    written = json.loads(path.read_text())
    nested = {"rope_parameters": written.get("rope_parameters") or {}, "": written}
    tried = 0
    for section, values in nested.items():
        for key in sorted(set(values) & set(numbers._KEYS) | ({"rope_theta"} if "llama" in kind else set())):
            for number in NUMBERS:
                if numbers._KEYS[key].allows(number):
                    continue
                tried += 1
                changed = {**values, key: number}
                path.write_text(json.dumps({**written, section: changed} if section else changed))
                with pytest.raises(UserError, match=rf"{key} must be a (whole|finite) number from \S+ to \S+, not "):
                    import_huggingface(str(directory), tmp_path / "run")
    record_property("faults", tried)
    assert tried > 100
    assert not (tmp_path / "run").exists()
    path.write_text(json.dumps(written))
    import_huggingface(str(directory), tmp_path / "run")


@pytest.mark.parametrize("kind", ["gpt2", "nanochat"])
@pytest.mark.parametrize("named", ["gelu", "gelu_fast", "quick_gelu", "silu", None, ["gelu_new"]])
def test_an_activation_that_is_not_one_of_ours_to_the_last_bit_is_refused(kind, named, saved, tmp_path):
    directory, _ = saved(kind)
    key = "activation_function" if kind == "gpt2" else "hidden_act"
    change(directory, **{key: named})
    with pytest.raises(UserError, match=key):
        import_huggingface(str(directory), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_files_that_are_damaged_missing_or_hostile_are_refused(saved, tmp_path):
    directory, _ = saved("gpt2")
    weights = tensors(directory)

    def refused(message: str) -> None:
        with pytest.raises(UserError, match=message):
            import_huggingface(str(directory), tmp_path / "run")
        assert not (tmp_path / "run").exists()

    model = directory / "model.safetensors"
    data = model.read_bytes()
    for damaged in (b"", data[:100], b"\xff" * 64, data[:-4]):
        model.write_bytes(damaged)
        refused("not a safetensors file")
    for name, tensor, message in (
        ("transformer.wte.weight", torch.zeros(290, 31), "not"),
        ("transformer.wte.weight", torch.full((290, 32), torch.nan), "transformer.wte.weight has 9,280 of 9,280"),
        ("transformer.wte.weight", torch.zeros(290, 32, dtype=torch.int64), "int64"),
        ("lm_head.weight", torch.zeros(290, 32), "another head"),
        ("\x1b[2J", torch.zeros(1), "no place"),
    ):
        safetensors.torch.save_file({**weights, name: tensor}, model)
        refused(message)
    safetensors.torch.save_file({n: t for n, t in weights.items() if "wpe" not in n}, model)
    refused("wpe.weight is missing")
    model.unlink()
    (directory / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'true'\ntR.")
    refused("has no model.safetensors")
    for index in ({"weight_map": {"a": "../../etc/passwd"}}, {"weight_map": {"a": "no.safetensors"}}, {}, []):
        (directory / "model.safetensors.index.json").write_text(json.dumps(index))
        refused("weight_map|missing|object")
    (directory / "config.json").write_text("{" * 100_000)
    refused("not JSON")
