"""Exports to Transformers, against Transformers: the same logits, ids and text, or a refusal that says why."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gpt_cli.cli.main import main
from gpt_cli.config import ModelConfig, SampleConfig, load_config
from gpt_cli.errors import RequestError
from gpt_cli.export.architectures import LAYOUTS
from gpt_cli.export.huggingface import export_huggingface
from gpt_cli.export.layout import choose_layout
from gpt_cli.model.position import Rotary, rotary_frequencies
from gpt_cli.run.checkpoint import save
from gpt_cli.run.load_model import load_model
from gpt_cli.tokenizer import CharTokenizer, UnknownCharacters
from tests.support.command import ROOT
from tests.support.export_models import GPT2, LLAMA, LLAMA31, MODELS, NANOCHAT, POST, TEXT, TOKENIZERS, greedy, make_run

pytestmark = pytest.mark.system

transformers = pytest.importorskip("transformers", reason="the extra [hf] is not installed")
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding  # noqa: E402

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

CONFIGS = sorted((ROOT / "configs").glob("*.yaml"))

each_model = pytest.mark.parametrize(("architecture", "options"), MODELS)


def load(directory: Path) -> Any:
    model, report = transformers.AutoModelForCausalLM.from_pretrained(directory, output_loading_info=True)
    assert not any(report.values()), report
    return model.eval()


@each_model
@torch.no_grad()
def test_each_model_is_the_architecture_it_should_be_with_the_same_logits_and_greedy_text(
    architecture, options, tmp_path
):
    run = make_run(options, TOKENIZERS["char"])
    layout = export_huggingface(run, tmp_path / "out")
    theirs = load(tmp_path / "out")
    assert layout.architecture == architecture == type(theirs).__name__
    tokens = torch.randint(run.tokenizer.vocab_size, (2, 24))
    torch.testing.assert_close(theirs(tokens).logits, run.model(tokens), rtol=0, atol=1e-5)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    inputs = tokenizer("The quick", return_tensors="pt")
    written = theirs.generate(**inputs, max_new_tokens=15, do_sample=False)[0]
    assert tokenizer.decode(written) == "The quick" + greedy(run, "The quick", 15)


@pytest.mark.parametrize("theta", [10_000.0, 500_000.0])
@pytest.mark.parametrize("scaling", [None, LLAMA31, (4.0, 1.0, 2.0, 64)])
@pytest.mark.parametrize("width", [8, 64, 128])
def test_rotary_tables_are_those_of_transformers_to_the_last_bit(width, scaling, theta):
    config = ModelConfig(n_embd=width, n_head=1, context_length=4096, rope_theta=theta, rope_scaling=scaling)
    described = transformers.LlamaConfig(**LAYOUTS[1].describe(config))
    theirs = LlamaRotaryEmbedding(described)(torch.zeros(1), torch.arange(4096)[None])
    ours = Rotary(4096, rotary_frequencies(config))
    assert all(torch.equal(t[0, :, : width // 2], o) for t, o in zip(theirs, (ours.cos, ours.sin), strict=True))


def test_no_rotary_scaling_is_left_to_a_default_of_transformers(tmp_path):
    """ApertusConfig of Transformers 4 scales the positions as Llama 3.1 unless `rope_scaling` is null."""
    export_huggingface(make_run(dict(MODELS)["ApertusForCausalLM"], TOKENIZERS["byte"]), tmp_path / "out")
    file = json.loads((tmp_path / "out" / "config.json").read_text())
    assert file["rope_scaling"] is None
    rope = transformers.AutoConfig.from_pretrained(tmp_path / "out").rope_parameters
    assert {key: rope[key] for key in file["rope_parameters"]} == file["rope_parameters"]
    assert rope["rope_type"] == "default"


@torch.no_grad()
def test_a_token_that_gpt_never_writes_is_not_written_by_transformers(tmp_path):
    """The head has <unk> as the likeliest token wherever the first character is at all likely."""
    run = make_run({}, CharTokenizer("".join(sorted(set(TEXT))), has_unknown=True))
    run.model.head.weight[-1] = 9 * run.model.head.weight[0]
    export_huggingface(run, tmp_path / "out")
    theirs, tokenizer = load(tmp_path / "out"), transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    inputs = tokenizer("The quick", return_tensors="pt")
    written = theirs.generate(**inputs, max_new_tokens=15, do_sample=False)
    assert run.tokenizer.unk_id in theirs(written).logits.argmax(-1)
    assert tokenizer.decode(written[0]) == "The quick" + greedy(run, "The quick", 15)


@pytest.mark.parametrize("kind", TOKENIZERS)
@pytest.mark.parametrize("options", [GPT2, LLAMA, {}, NANOCHAT], ids=["gpt2", "llama", "qwen3", "nanochat"])
def test_the_tokenizer_gives_the_same_ids_and_the_same_text_beside_any_architecture(kind, options, tmp_path):
    tokenizer = TOKENIZERS[kind]
    export_huggingface(make_run(options, tokenizer), tmp_path / "out")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert len(theirs) == tokenizer.vocab_size
    texts = st.text(st.characters(exclude_categories=["Cs"])) | st.text("".join(sorted(set(TEXT))) + "<|endoftext|>")

    @given(texts, st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=20))
    def agree(text: str, ids: list[int]) -> None:
        try:
            expected = tokenizer.encode(text).tolist()
        except UnknownCharacters:
            with pytest.raises(Exception, match=r"WordLevel error: Missing \[UNK\] token"):
                theirs(text)
        else:
            assert theirs(text)["input_ids"] == expected
        assert theirs.decode(ids) == tokenizer.decode(ids)

    agree()
    special = "<|endoftext|>"
    if tokenizer.eot_id is not None:
        assert theirs(f"a{special}")["input_ids"] == tokenizer.encode(f"a{special}").tolist()
        assert theirs.eos_token_id == theirs.convert_tokens_to_ids(special) == tokenizer.eot_id


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.stem)
def test_every_shipped_config_is_a_standard_architecture(config):
    model = load_config(config).model
    if not model.causal:
        with pytest.raises(RequestError, match=r"model\.causal is false"):
            choose_layout(model, LAYOUTS)
        return
    expected = {"gpt2": "GPT2LMHeadModel", "llama": "LlamaForCausalLM", "vaswani": "OPTForCausalLM"}
    family = config.stem.partition("_")[0]
    if config.stem == "shakespeare_char":
        family = "gpt2"
    assert choose_layout(model, LAYOUTS).architecture == expected.get(family, "Qwen3ForCausalLM")


@pytest.mark.parametrize(
    ("options", "named", "way_out"),
    [
        ({"logit_softcap": 5.0}, ["model.logit_softcap is 5.0"], "model.logit_softcap=null"),
        ({**GPT2, "norm": "rmsnorm"}, ["model.norm is rmsnorm"], "model.norm=layernorm"),
        ({**GPT2, "window": 3}, ["model.window is 3"], "model.window=null"),
        ({"bias": True}, ["is true"], "=false"),
        ({**POST, "qk_norm": True, "norm_eps": 1e-6, "position": "learned"}, ["qk_norm is true"], "=false"),
    ],
)
def test_a_model_that_nothing_represents_is_refused_with_the_option_and_the_way_out(options, named, way_out, tmp_path):
    with pytest.raises(RequestError) as refused:
        export_huggingface(make_run(options, TOKENIZERS["char"]), tmp_path / "out")
    assert all(name in refused.value.message for name in named)
    assert way_out in str(refused.value.hint)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.architecture)
def test_following_the_way_out_leads_to_an_export(layout):
    """From a model with everything unusual, the hint is followed until there is a layout."""
    options: dict[str, Any] = {"position": "learned", "norm": "rmsnorm", "norm_position": "post", "logit_softcap": 3.0}
    for _ in range(3):
        config = ModelConfig(**options)
        options |= {option: fits[0] for option, fits in layout.mismatches(config).items()}
    assert not layout.mismatches(ModelConfig(**options))


def test_half_precision_is_half_and_close(tmp_path):
    run = make_run({}, TOKENIZERS["byte"])
    for dtype, name in (("f16", "float16"), ("bf16", "bfloat16")):
        export_huggingface(run, tmp_path / dtype, dtype)
        theirs = load(tmp_path / dtype)
        assert str(theirs.dtype) == f"torch.{name}"
        assert (tmp_path / dtype / "model.safetensors").stat().st_size < 0.6 * 4 * sum(
            p.numel() for p in run.model.parameters()
        )


def test_a_search_is_left_out_and_told_and_generate_takes_the_likeliest_token(tmp_path, capsys):
    run = make_run({}, TOKENIZERS["char"])
    config = run.config.model_copy(update={"sample": SampleConfig(max_new_tokens=8, beams=3)})
    checkpoint = save(tmp_path / "run", 7, run.model.state_dict(), {}, {}, config, run.tokenizer)
    assert main(["export", str(checkpoint), "--to", "hf", str(tmp_path / "out")]) == 0
    assert "sample.beams is not in generation_config.json" in capsys.readouterr().err
    settings = json.loads((tmp_path / "out" / "generation_config.json").read_text())
    assert not {"do_sample", "top_k", "temperature", "num_beams"} & settings.keys()
    theirs, prompt = load(tmp_path / "out"), torch.tensor([[1, 2, 3]])
    assert theirs.generate(prompt).tolist() == theirs.generate(prompt, do_sample=False, num_beams=1).tolist()
    drawing = save(tmp_path / "drawing", 7, run.model.state_dict(), {}, {}, run.config, run.tokenizer)
    assert main(["export", str(drawing), str(tmp_path / "drawn")]) == 0
    assert "generation_config" not in capsys.readouterr().err
    settings = json.loads((tmp_path / "drawn" / "generation_config.json").read_text())
    assert settings["temperature"] == run.config.sample.temperature


def test_the_command_writes_all_that_belongs_to_it_and_nothing_over_what_is_there(tmp_path, capsys):
    run = make_run({}, TOKENIZERS["bpe"])
    checkpoint = save(tmp_path / "run", 7, run.model.state_dict(), {}, {"val_loss": 1.25}, run.config, run.tokenizer)
    assert main(["export", str(checkpoint), "--to", "hf", str(tmp_path / "out"), "--json"]) == 0
    output = json.loads(capsys.readouterr().out)
    assert (output["architecture"], output["step"]) == ("Qwen3ForCausalLM", 7)
    names = {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    assert {path.name for path in (tmp_path / "out").iterdir()} == names | {"README.md", "SHA256SUMS"}
    card = (tmp_path / "out" / "README.md").read_text()
    assert "1.2500 nats per token" in card
    assert "step | 7" in card
    assert load_model(checkpoint, torch.device("cpu"), print).weights_sha256 in card
    assert main(["export", str(checkpoint), "--to", "hf", str(tmp_path / "out")]) == 2
    assert "exists already" in capsys.readouterr().err
    assert main(["export", str(tmp_path / "no"), "--to", "hf", str(tmp_path / "other")]) == 2
