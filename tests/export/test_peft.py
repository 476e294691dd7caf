"""LoRA adapters in PEFT's format, against PEFT: the same logits in both directions, or a refusal with its reason."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from gpt_cli.cli.main import main
from gpt_cli.config import LoraConfig, OptimConfig, TrainConfig
from gpt_cli.errors import RequestError, UserError
from gpt_cli.export import peft as peft_module
from gpt_cli.export.architectures import LLAMA as LLAMA_LAYOUT
from gpt_cli.export.huggingface import export_huggingface
from gpt_cli.export.peft import export_peft, import_peft
from gpt_cli.run.checkpoint import Checkpoint, load, load_newest, save
from gpt_cli.run.load_model import LoadedRun, load_model
from gpt_cli.training.lora import LoRA
from tests.support.export_models import GPT2, LLAMA, MODELS, TEXT, TOKENIZERS, make_run

pytestmark = [
    pytest.mark.system,
    # PEFT asks Transformers for an attribute by its old name.
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning"),
]

transformers = pytest.importorskip("transformers", reason="the extra [hf] is not installed")
peft = pytest.importorskip("peft", reason="peft is not installed")
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

CPU = torch.device("cpu")
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 24,
         "intermediate_size": 48, "vocab_size": 290}  # fmt: skip
THEIRS: dict[str, Callable[[], Any]] = {
    "gpt2": lambda: transformers.GPT2Config(n_embd=32, n_layer=2, n_head=4, n_positions=24, vocab_size=290),
    "llama": lambda: transformers.LlamaConfig(**SIZES, num_key_value_heads=2, tie_word_embeddings=True),
    "qwen3": lambda: transformers.Qwen3Config(**SIZES, num_key_value_heads=2, head_dim=8),
    "nanochat": lambda: transformers.NanoChatConfig(**SIZES, num_key_value_heads=4),
}
ALL = ["qkv", "out", "up", "down"]


@pytest.fixture
def adapted(tmp_path: Path) -> Callable[..., tuple[Path, Any]]:
    """A random adapter, made by PEFT over a random model of Transformers, and the merged model.

    In `tmp_path` the model is `base`, and the adapter `adapter`.
    """

    def make(kind: str, **settings: Any) -> tuple[Path, Any]:
        torch.manual_seed(0)
        base = transformers.AutoModelForCausalLM.from_config(THEIRS[kind]())
        for parameter in base.parameters():
            torch.nn.init.normal_(parameter, std=0.2)
        base.save_pretrained(tmp_path / "base")
        TOKENIZERS["bpe"].save(tmp_path / "base" / "tokenizer.json")
        base = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "base")
        is_conv = {"fan_in_fan_out": True} if kind == "gpt2" else {}
        model = peft.get_peft_model(base, peft.LoraConfig(task_type="CAUSAL_LM", **is_conv, **settings))
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                torch.nn.init.normal_(parameter, std=0.1)
        model.save_pretrained(tmp_path / "adapter", save_embedding_layers="lm_head" in settings["target_modules"])
        return tmp_path / "adapter", model.merge_and_unload().eval()

    return make


def change(directory: Path, **keys: Any) -> None:
    file = directory / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | keys))


def logits_of(run: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """(tokens, logits) of a run."""
    loaded = load_model(run, CPU, print)
    tokens = torch.randint(
        loaded.tokenizer.vocab_size, (2, loaded.config.model.context_length), generator=torch.Generator().manual_seed(1)
    )
    with torch.no_grad():
        return tokens, loaded.model(tokens)


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("gpt2", {"r": 3, "lora_alpha": 5, "target_modules": ["c_attn", "c_proj"]}),
        ("gpt2", {"r": 4, "target_modules": "all-linear", "alpha_pattern": {"attn.c_proj": 3, "c_proj": 7}}),
        ("gpt2", {"r": 2, "target_modules": ["attn.c_proj"], "use_rslora": True, "lora_alpha": 9}),
        ("llama", {"r": 4, "target_modules": ["q_proj", "v_proj", "gate_proj"], "use_rslora": True}),
        ("llama", {"r": 8, "target_modules": "all-linear", "exclude_modules": ["k_proj"], "lora_dropout": 0.1}),
        ("qwen3", {"r": 4, "target_modules": r".*layers\.1\..*(q|down)_proj", "init_lora_weights": "gaussian"}),
        (
            "qwen3",
            {
                "r": 4,
                "target_modules": ["k_proj", "o_proj", "up_proj", "lm_head"],
                "rank_pattern": {r"layers\.0\..*k_proj": 2, "^model.layers.1.self_attn.o_proj": 5},
                "alpha_pattern": {"up_proj": 3, r".*layers\.[1-9]\..*k_proj": 11},
                "use_rslora": True,
            },
        ),
        ("qwen3", {"r": 4, "target_modules": ["q_proj", "v_proj"], "layers_to_transform": [1]}),
        ("nanochat", {"r": 4, "target_modules": ["q_proj", "k_proj", "fc1", "fc2"]}),
    ],
)
def test_an_adapter_of_peft_becomes_a_run_with_the_logits_of_merge_and_unload(kind, settings, adapted, tmp_path):
    directory, merged = adapted(kind, **settings)
    assert import_peft(str(directory), tmp_path / "run").model_type == kind
    tokens, logits = logits_of(tmp_path / "run")
    with torch.no_grad():
        torch.testing.assert_close(logits, merged(tokens).logits, rtol=0, atol=1e-5)


def test_embeddings_that_were_stored_beside_an_adapter_must_be_those_of_its_base(adapted, tmp_path):
    directory, _ = adapted("qwen3", r=2, target_modules=["lm_head"])
    stored = safetensors.torch.load_file(directory / "adapter_model.safetensors")
    assert "base_model.model.lm_head.base_layer.weight" in stored
    import_peft(str(directory), tmp_path / "run")
    with pytest.raises(UserError, match="is no adapter, and not the same in its base"):
        import_peft(str(directory), tmp_path / "again", str(tmp_path / "run"))


def test_the_base_is_found_where_the_adapter_says_or_beside_it_or_where_the_option_says(adapted, tmp_path, monkeypatch):
    directory, _ = adapted("llama", r=2, target_modules=["q_proj"])
    assert main(["import", str(directory), str(tmp_path / "named")]) == 0
    change(directory, base_model_name_or_path="../base")
    assert main(["import", str(directory), str(tmp_path / "beside")]) == 0
    change(directory, base_model_name_or_path=None, revision="main")
    assert main(["import", str(directory), str(tmp_path / "given"), "--base", str(tmp_path / "base")]) == 0
    assert main(["import", str(tmp_path / "base"), str(tmp_path / "base-run")]) == 0
    assert main(["import", str(directory), str(tmp_path / "run"), "--base", str(tmp_path / "base-run")]) == 0
    expected = logits_of(tmp_path / "named")[1]
    assert all(torch.equal(logits_of(tmp_path / name)[1], expected) for name in ("beside", "given", "run"))


@pytest.mark.parametrize("base", [None, "", "nowhere", "no/where", "a\0b", "x" * 5000])
def test_a_base_that_is_not_there_is_a_wrong_request_that_names_the_option(base, adapted, tmp_path, capsys):
    directory, _ = adapted("llama", r=2, target_modules=["q_proj"])
    change(directory, base_model_name_or_path=base)
    assert main(["import", str(directory), str(tmp_path / "run")]) in (1, 2)
    assert "--base PATH" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "keys",
    [
        {"peft_type": "IA3"},
        {"use_dora": True},
        {"lora_bias": True},
        {"bias": "all"},
        {"layer_replication": [[0, 1], [0, 2]]},
        {"init_lora_weights": "pissa"},
        {"init_lora_weights": "loftq"},
        {"modules_to_save": ["lm_head"]},
        {"modules_to_save": ["score"]},
        {"target_parameters": ["mlp.experts"]},
        {"trainable_token_indices": [1, 2]},
        {"alora_invocation_tokens": [3]},
        {"use_qalora": True},
        {"task_type": "SEQ_CLS"},
        {"revision": "abcdef"},
        {"use_rslora": "yes"},
        {"r": 0},
        {"r": "4"},
        {"r": None},
        {"lora_alpha": float("nan")},
        {"rank_pattern": [1]},
        {"rank_pattern": {"q_proj": 1.5}},
        {"alpha_pattern": {"q_proj": -1}},
        {"alpha_pattern": {"(a+)+b": 1}},
        {"alpha_pattern": {".*.*.*.*b": 1}},
        {"alpha_pattern": {"[": 1}},
        {"a_key_of_next_year": 3},
    ],
    ids=lambda keys: json.dumps(keys),
)
def test_whatever_is_no_plain_lora_is_refused_by_name(keys, adapted, tmp_path):
    directory, _ = adapted("llama", r=2, target_modules=["q_proj"])
    change(directory, **keys)
    with pytest.raises(UserError, match=next(iter(keys))):
        import_peft(str(directory), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_key_that_is_off_changes_nothing_even_one_that_is_not_known(adapted, tmp_path):
    directory, _ = adapted("llama", r=2, target_modules=["q_proj"])
    change(directory, a_key_of_next_year=None, another={}, and_another=False)
    import_peft(str(directory), tmp_path / "run")


@pytest.mark.parametrize("settings", [{"use_dora": True}, {"bias": "lora_only"}])
def test_what_peft_itself_writes_for_other_methods_is_refused(settings, adapted, tmp_path):
    directory, _ = adapted("gpt2", r=2, target_modules=["c_attn"], **settings)
    with pytest.raises(UserError, match=next(iter(settings))):
        import_peft(str(directory), tmp_path / "run")
    change(directory, use_dora=False, bias="none")
    with pytest.raises(UserError, match="is no adapter"):
        import_peft(str(directory), tmp_path / "run")


Q_PROJ = "base_model.model.model.layers.0.self_attn.q_proj"


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({f"{Q_PROJ}.lora_B.weight": None}, "is not adapted by"),
        ({f"{Q_PROJ}.lora_A.weight": torch.zeros(2)}, "is not adapted by"),
        ({f"{Q_PROJ}.lora_B.weight": torch.zeros(32, 3)}, "is not adapted by"),
        ({f"{Q_PROJ}.lora_B.weight": torch.zeros(16, 2)}, "is no matrix of 16 x 32"),
        ({f"{Q_PROJ}.lora_A.weight": torch.zeros(1, 32), f"{Q_PROJ}.lora_B.weight": torch.zeros(32, 1)}, "rank 1"),
        ({f"{Q_PROJ}.lora_A.weight": torch.full((2, 32), torch.inf)}, "not finite"),
        ({f"{Q_PROJ}.lora_A.weight": torch.zeros(2, 32, dtype=torch.int32)}, "not a float"),
        ({"base_model.model.lm_head.weight": torch.zeros(290, 32)}, "is no adapter"),
        ({"base_model.model.model.embed_tokens.lora_embedding_A": torch.zeros(2, 290)}, "is no adapter"),
        (
            {f"{Q_PROJ}x.lora_{kind}.weight": torch.zeros(size) for kind, size in (("A", (2, 32)), ("B", (32, 2)))},
            "no matrix of 32 x 32",
        ),
    ],
)
def test_factors_that_do_not_fit_the_base_are_refused_by_name(tensors, message, adapted, tmp_path):
    directory, _ = adapted("llama", r=2, target_modules=["q_proj"])
    file = directory / "adapter_model.safetensors"
    changed = safetensors.torch.load_file(file) | tensors
    safetensors.torch.save_file({name: tensor for name, tensor in changed.items() if tensor is not None}, file)
    with pytest.raises(UserError, match=message):
        import_peft(str(directory), tmp_path / "run")


def test_a_pickle_is_never_read_and_an_adapter_is_not_a_model(adapted, tmp_path, capsys):
    directory, _ = adapted("llama", r=2, target_modules=["q_proj"])
    (directory / "adapter_model.safetensors").rename(directory / "adapter_model.bin")
    with pytest.raises(UserError, match=r"has no adapter_model\.safetensors"):
        import_peft(str(directory), tmp_path / "run")
    assert main(["import", str(tmp_path / "base"), str(tmp_path / "run"), "--base", str(tmp_path / "base")]) == 2
    assert "--base is for an adapter" in capsys.readouterr().err


def tuned(
    options: dict[str, Any], directory: Path, targets: list[str] | None = None, **sections: Any
) -> tuple[LoadedRun, Checkpoint]:
    """A random model saved as a run in `directory`/base, and what LoRA with random factors makes of it."""
    base = make_run(options, TOKENIZERS["byte"])
    save(directory / "base", 0, base.model.state_dict(), {}, {"seconds": 0.0}, base.config, base.tokenizer)
    lora = LoraConfig(rank=3, alpha=4.0, targets=targets or ALL)
    train = TrainConfig(init_from=str(next((directory / "base" / "checkpoints").iterdir())))
    config = base.config.model_copy(update={"lora": lora, "train": train, **sections})
    model = make_run(options, TOKENIZERS["byte"]).model
    optimizer = LoRA(model, lora, OptimConfig(), seed=1)
    for factor in optimizer.adamw.parameters.values():
        torch.nn.init.normal_(factor, std=0.1)
    optimizer.merge()
    state = {"seconds": 0.0}
    path = save(directory / "tuned", 3, model.state_dict(), optimizer.state_tensors(), state, config, base.tokenizer)
    return base, load(path)


@pytest.mark.parametrize(("architecture", "options"), MODELS)
def test_peft_reads_our_adapter_over_our_base_with_the_logits_of_the_run_and_it_comes_back(
    architecture, options, tmp_path
):
    base, checkpoint = tuned(options, tmp_path)
    export_huggingface(base, tmp_path / "hf")
    assert export_peft(checkpoint, tmp_path / "adapter", "f32", print).architecture == architecture
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hf")
    theirs = peft.PeftModel.from_pretrained(theirs, tmp_path / "adapter").eval()
    tokens, logits = logits_of(checkpoint.path)
    with torch.no_grad():
        torch.testing.assert_close(theirs(tokens).logits, logits, rtol=0, atol=1e-5)
    import_peft(str(tmp_path / "adapter"), tmp_path / "back")
    torch.testing.assert_close(logits_of(tmp_path / "back")[1], logits, rtol=0, atol=1e-5)


@pytest.mark.parametrize("targets", [["out"], ["down"], ["qkv"], ["up", "down"], ALL], ids="-".join)
@pytest.mark.parametrize("options", [GPT2, LLAMA, {}], ids=["gpt2", "llama", "qwen3"])
def test_target_modules_are_those_that_have_tensors_and_no_others(options, targets, tmp_path):
    base, checkpoint = tuned(options, tmp_path, targets)
    export_huggingface(base, tmp_path / "hf")
    export_peft(checkpoint, tmp_path / "adapter", "bf16", print)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hf")
    theirs = peft.PeftModel.from_pretrained(theirs, tmp_path / "adapter")
    written = safetensors.torch.load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    assert peft.get_peft_model_state_dict(theirs, save_embedding_layers=False).keys() == written.keys()
    assert {tensor.dtype for tensor in written.values()} == {torch.bfloat16}


def test_a_layout_that_does_more_than_rearrange_rows_is_refused_with_the_matrix(tmp_path, monkeypatch):
    def flipped(config, tensors):
        return {key: tensor.flip(-1) if tensor.dim() == 2 else tensor for key, tensor in tensors.items()}

    monkeypatch.setattr(peft_module, "LAYOUTS", (replace(LLAMA_LAYOUT, transform=flipped),))
    _, checkpoint = tuned(LLAMA, tmp_path)
    with pytest.raises(RequestError, match=r"blocks\.0\.attention\.qkv\.weight"):
        export_peft(checkpoint, tmp_path / "adapter", "f32", print)
    assert not (tmp_path / "adapter").exists()


def test_a_run_without_an_adapter_of_its_own_is_refused(tmp_path):
    base, checkpoint = tuned(LLAMA, tmp_path)
    plain = load(Path(checkpoint.config.train.init_from))
    averaged = replace(checkpoint, config=checkpoint.config.model_copy(update={"optim": OptimConfig(ema=0.9)}))
    bare = replace(plain, config=checkpoint.config)
    capped = base.config.model.model_copy(update={"logit_softcap": 3.0})
    odd = replace(checkpoint, config=checkpoint.config.model_copy(update={"model": capped}))
    for refused, message in ((plain, "lora.rank"), (averaged, "ema"), (bare, "optimizer state"), (odd, "softcap")):
        with pytest.raises(RequestError, match=message):
            export_peft(refused, tmp_path / "adapter", "f32", print)
    assert not (tmp_path / "adapter").exists()


FEW = ["model.n_layer=1", "model.n_head=2", "model.n_embd=16", "model.context_length=24", "train.batch_size=4"]
FEW += ["train.steps=2", "sample.every=null", "eval.every=null", "runtime.threads=1", "runtime.device=cpu"]
FASTER = ["optim.adamw_lr=0.05", "schedule.warmup_steps=0"]


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a trained run, `base`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    Path("text.txt").write_text(TEXT)
    assert main(["train", "text.txt", "run_dir=base", "tokenizer.kind=byte", *FEW]) == 0
    return tmp_path


def adapter_config(directory: str) -> Any:
    return json.loads((Path(directory) / "adapter_config.json").read_text())


def test_the_adapter_names_the_run_that_it_began_with_or_what_that_was_imported_from(work, capsys):
    tune = ["train", "--config", "base/config.yaml", "data.source=text.txt", "lora.rank=2", *FASTER]
    assert main([*tune, "train.init_from=base", "run_dir=tuned"]) == 0
    assert main(["export", "tuned", "--to", "peft", "adapter"]) == 0
    assert adapter_config("adapter")["base_model_name_or_path"] == "base"
    assert main(["import", "adapter", "back"]) == 0
    torch.testing.assert_close(logits_of(Path("back"))[1], logits_of(Path("tuned"))[1], rtol=0, atol=1e-5)
    assert main(["export", "base", "--to", "hf", "hf"]) == 0
    assert main(["import", "hf", "hf", "imported"]) == 0
    assert main([*tune, "train.init_from=imported", "run_dir=tuned-too"]) == 0
    assert main(["export", "tuned-too", "--to", "peft", "adapter-too"]) == 0
    assert adapter_config("adapter-too")["base_model_name_or_path"] == "hf"
    theirs = peft.AutoPeftModelForCausalLM.from_pretrained("adapter-too").eval()
    tokens, logits = logits_of(Path("tuned-too"))
    with torch.no_grad():
        torch.testing.assert_close(theirs(tokens).logits, logits, rtol=0, atol=1e-5)
    assert main(["train", "base", "train.steps=4"]) == 0  # it has other weights now
    capsys.readouterr()
    assert main(["export", "tuned", "--to", "peft", "nameless"]) == 0
    assert adapter_config("nameless")["base_model_name_or_path"] is None
    assert "names no base" in capsys.readouterr().err
    for arguments in (["--dtype", "q8_0", "other"], ["adapter"], ["adapter.gguf"], ["adapter.safetensors"]):
        assert main(["export", "tuned", "--to", "peft", *arguments]) == 2


def test_an_adapter_of_a_classifier_has_its_head_and_the_same_logits_both_ways(work):
    rows = [{"text": f"{word} {i}", "label": word[0]} for i in range(30) for word in ("fig", "iron", "owl")]
    Path("texts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    classify = ["train", "--config", "base/config.yaml", "task.kind=classes", "data.source=texts.jsonl"]
    classify += ["data.format=labelled", "train.batch_size=6", *FASTER]
    assert main([*classify, "train.init_from=base", "lora.rank=2", "run_dir=tuned"]) == 0
    assert main(["export", "tuned", "--to", "peft", "adapter"]) == 0
    assert main(["export", "base", "--to", "hf", "hf"]) == 0
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained("hf", num_labels=3)
    theirs = peft.PeftModel.from_pretrained(theirs, "adapter").eval()
    ours = load_model(Path("tuned"), CPU, print, "classes").model
    tokens = torch.tensor([list(b"an owl, a fig")])
    with torch.no_grad():
        torch.testing.assert_close(theirs(tokens).logits, ours(tokens), rtol=0, atol=1e-5)
    with pytest.raises(UserError, match="task_type is 'SEQ_CLS'"):  # whose labels nothing says
        import_peft("adapter", Path("back"))

    assert main([*classify, "train.init_from=base", "run_dir=classifier"]) == 0
    assert main([*classify, "train.init_from=classifier", "lora.rank=2", "run_dir=tuned-too"]) == 0
    assert main(["export", "tuned-too", "--to", "peft", "adapter-too"]) == 0
    assert main(["import", "adapter-too", "back"]) == 0
    back, expected = (load_model(Path(run), CPU, print, "classes") for run in ("back", "tuned-too"))
    assert back.config.task.labels == expected.config.task.labels == ["f", "i", "o"]
    with torch.no_grad():
        torch.testing.assert_close(back.model(tokens), expected.model(tokens), rtol=0, atol=1e-5)

    assert main([*classify, "train.init_from=base", "task.pooling=mean", "lora.rank=2", "run_dir=mean"]) == 0
    assert main(["export", "mean", "--to", "peft", "refused"]) == 2


def test_a_checkpoint_alone_is_enough(work):
    tune = ["train", "--config", "base/config.yaml", "data.source=text.txt", "lora.rank=2", "train.init_from=base"]
    assert main([*tune, "run_dir=tuned", *FASTER]) == 0
    newest = load_newest(Path("tuned"), print)
    assert newest is not None
    shutil.copytree(newest.path, "kept")
    shutil.rmtree("tuned")
    assert main(["export", "kept", "--to", "peft", "adapter"]) == 0
    assert main(["import", "adapter", "back", "--base", "base"]) == 0
    torch.testing.assert_close(logits_of(Path("back"))[1], logits_of(Path("kept"))[1], rtol=0, atol=1e-5)
