"""An option of the model that an engine, a cache or an export does not know is never ignored by it."""

from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import numpy as np
import pytest
import torch
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from gpt_cli.capabilities import ANY, ENGINES, NATIVE_DECODER, NATIVE_TRAINER, Capabilities
from gpt_cli.config import Config, LoraConfig, ModelConfig, OptimConfig, RuntimeConfig
from gpt_cli.cpu.common.kernel import KernelUnavailable
from gpt_cli.cpu.decode import numpy_gpt
from gpt_cli.cpu.decode.weights import WeightMismatch, read_weights
from gpt_cli.cpu.train.native_engine import NativeEngine
from gpt_cli.cpu.train.train_bindings import NativeLibrary
from gpt_cli.errors import RequestError
from gpt_cli.evaluation.attention_capture import capture_attention
from gpt_cli.export import architectures, gguf, huggingface
from gpt_cli.export.layout import choose_layout
from gpt_cli.model.gpt import GPT
from gpt_cli.model.kv_cache import KVCache
from gpt_cli.run.checkpoint import Checkpoint
from gpt_cli.run.load_model import LoadedRun
from gpt_cli.runtime.device import Runtime
from gpt_cli.sampling import SamplingParams
from gpt_cli.sampling.generate import SequenceBatch, generate
from gpt_cli.sampling.graphed_decode import GraphedDecoder
from gpt_cli.sampling.native_decoder import open_decoder
from gpt_cli.sampling.text_generator import TextGenerator
from gpt_cli.tokenizer import ByteTokenizer
from gpt_cli.training.evaluate import cross_entropy
from gpt_cli.training.lora import LoRA
from gpt_cli.training.select_engine import build_native_engine

ROWS = (*ENGINES, *(layout.capabilities for layout in (*architectures.LAYOUTS, *gguf.LAYOUTS)))
each_row = pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
UNCLAIMED: dict[str, set[str]] = {}
"""Row -> options that it does not know: a new option goes to torch alone until it is in a row."""

TINY: dict[str, Any] = {"n_layer": 2, "n_head": 2, "n_embd": 16, "context_length": 8, "zero_init": False}
BYTES = ByteTokenizer()
CPU = Runtime(torch.device("cpu"), "fp32", threads=1)


class ExtendedConfig(ModelConfig):
    """A schema of tomorrow, with an option that adds no parameter: no missing tensor gives it away."""

    value_residual: bool = False


EXTENDED = ExtendedConfig(**TINY, value_residual=True)


def extended_model() -> GPT:
    torch.manual_seed(0)
    return GPT(EXTENDED, BYTES.vocab_size).eval()


def arrays_of(model: GPT) -> dict[str, np.ndarray[Any, Any]]:
    return {name: tensor.detach().numpy() for name, tensor in model.state_dict().items()}


def choices_of(name: str) -> tuple[Any, ...] | None:
    """The values of a switch or a choice by name, None for a number."""
    annotation = ModelConfig.model_fields[name].annotation
    if annotation is bool:
        return (False, True)
    return get_args(annotation) if get_origin(annotation) is Literal else None


@each_row
def test_a_row_claims_every_option_of_the_schema_or_is_known_not_to(row: Capabilities) -> None:
    assert set(ModelConfig.model_fields) - set(row.options) == UNCLAIMED.get(row.name, set())
    assert set(row.options) <= set(ModelConfig.model_fields)


@each_row
def test_what_a_row_does_not_claim_is_off_by_default(row: Capabilities) -> None:
    """Else its default would be what the row ignores."""
    for option in UNCLAIMED.get(row.name, set()):
        assert not ModelConfig.model_fields[option].default


@each_row
def test_switches_and_choices_are_claimed_value_by_value_so_that_a_new_value_is_refused(row: Capabilities) -> None:
    for option, values in row.options.items():
        if (choices := choices_of(option)) is not None:
            assert values is not ANY, option
            assert set(values) <= set(choices), option
            config = ModelConfig().model_copy(update={option: "a new value"})
            assert option in row.unsupported(config)


@each_row
def test_a_new_option_is_refused_by_name_and_changes_nothing_while_it_is_off(row: Capabilities) -> None:
    off, on = ExtendedConfig(), ExtendedConfig(value_residual=True)
    assert row.unsupported(off) == row.unsupported(ModelConfig())
    assert row.unsupported(on) == {**row.unsupported(off), "value_residual": (False,)}
    fitting = on.model_copy(update={option: values[0] for option, values in row.unsupported(off).items()})
    assert row.refusal(fitting) == "model.value_residual: true"


def test_a_model_with_a_new_option_is_trained_by_torch() -> None:
    assert build_native_engine(extended_model(), RuntimeConfig(), CPU) is None
    with pytest.raises(RequestError, match=r"model\.value_residual: true"):
        build_native_engine(extended_model(), RuntimeConfig(engine="native"), CPU)


def test_a_model_with_a_new_option_is_decoded_by_torch() -> None:
    model = extended_model()
    with pytest.raises(WeightMismatch, match=r"model\.value_residual: true"):
        read_weights(EXTENDED, BYTES.vocab_size, arrays_of(model))
    assert open_decoder(EXTENDED, BYTES.vocab_size, arrays_of(model)) is None
    config = Config().model_copy(update={"model": EXTENDED})
    saved = Checkpoint(Path("run"), 1, {}, config, BYTES, arrays_of(model), "0" * 64)
    generator = TextGenerator(saved, lambda: model, device="cpu")
    engine, texts = generator.generate([[1, 2]], SamplingParams(max_new_tokens=3))
    assert engine == "torch"
    assert [len(text.tokens) for batch in texts for text in batch if text.text() is not None] == [3]
    for choice in ({"engine": "native"}, {"weights": "int8"}):
        with pytest.raises(RequestError, match=r"not go with model\.value_residual: true"):
            TextGenerator(saved, lambda: model, **choice)


@pytest.mark.parametrize("prompts", [[[1, 2, 3], [4, 5, 6]], [[1], [2, 3, 4, 5], [6] * 11]], ids=["equal", "unequal"])
def test_a_model_with_a_new_option_is_sampled_without_a_cache(
    prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Past the context too, and with rows that die and divide, as beams do."""
    model = extended_model()
    plain = GPT(ModelConfig(**TINY), BYTES.vocab_size).eval()
    plain.load_state_dict(model.state_dict())
    sampling = SamplingParams(max_new_tokens=12, temperature=1.0, seed=5)
    expected = list(generate(plain, prompts, sampling))

    def forbidden(*_: Any, **__: Any) -> Any:
        raise AssertionError("a cache was used that does not know the model")

    monkeypatch.setattr(KVCache, "attend", forbidden)
    assert list(generate(model, prompts, sampling)) == expected
    with pytest.raises(ValueError, match=r"model\.value_residual: true"):
        KVCache(EXTENDED, 1)
    assert not GraphedDecoder(print).supports(model, SamplingParams(max_new_tokens=100), ())
    rows = SequenceBatch(model, prompts)
    with torch.inference_mode():
        rows.next_logits()
        rows.reorder([1, 0, 1])
        rows.append(torch.tensor([7, 8, 9]))
        for row, (prompt, token) in zip(rows.next_logits(), ((1, 7), (0, 8), (1, 9)), strict=True):
            window = [*prompts[prompt][-8:], token]
            torch.testing.assert_close(row, model(torch.tensor([window[4 if len(window) > 8 else 0 :]]))[0, -1])


def loaded_run() -> LoadedRun:
    model = extended_model()
    config = Config().model_copy(update={"model": EXTENDED})
    return LoadedRun(model, BYTES, config, step=1, path=Path("run"), weights_sha256="0" * 64, state={})


def test_no_export_writes_a_model_with_a_new_option(tmp_path: Path) -> None:
    for layout in (*architectures.LAYOUTS, *gguf.LAYOUTS):
        with pytest.raises(RequestError, match=r"model\.value_residual is true"):
            choose_layout(EXTENDED, (layout,))
    with pytest.raises(RequestError, match=r"model\.value_residual is true") as refused:
        huggingface.export_huggingface(loaded_run(), tmp_path / "out")
    assert "model.value_residual=false" in str(refused.value.hint)
    with pytest.raises(RequestError, match=r"model\.value_residual is true|needs the package gguf"):
        gguf.export_gguf(loaded_run(), tmp_path / "out.gguf")
    assert list(tmp_path.iterdir()) == []


def test_neither_lora_nor_attention_maps_take_a_model_with_a_new_option() -> None:
    with pytest.raises(RequestError, match=r"model\.value_residual: true"):
        LoRA(extended_model(), LoraConfig(rank=2), OptimConfig(), 0)
    with pytest.raises(RequestError, match=r"model\.value_residual: true"):
        capture_attention(extended_model(), [1, 2])


NUMBERS: dict[str, st.SearchStrategy[Any]] = {
    "n_kv_head": st.sampled_from([None, 1, 2]),
    "mlp_ratio": st.sampled_from([None, 1.3]),
    "rope_scaling": st.sampled_from([None, (8.0, 1.0, 4.0, 8)]),
    "rope_theta": st.sampled_from([1e4, 50.0]),
    "norm_eps": st.sampled_from([1e-5, 1e-2]),
    "logit_softcap": st.sampled_from([None, 2.0]),
    "window": st.sampled_from([None, 1, 3, 100]),
}


@st.composite
def models_of(draw: st.DrawFn, row: Capabilities) -> GPT:
    """A model among those that a row claims, every part of which matters."""
    options = {
        name: draw(NUMBERS[name] if name in NUMBERS else st.sampled_from(values))
        for name, values in row.options.items()
        if name in NUMBERS or (values is not ANY and name != "attention_dropout")
    }
    try:
        config = ModelConfig(**{**options, "n_layer": 2, "n_head": 4, "n_embd": 32, "context_length": 12})
    except ValidationError:
        reject()  # options that exclude each other
    torch.manual_seed(draw(st.integers(0, 99)))
    model = GPT(config, 11).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model


@settings(max_examples=30)
@given(models_of(NATIVE_DECODER))
def test_the_decoders_reference_computes_every_model_that_its_row_claims(model: GPT) -> None:
    tokens = [(7 * i + 3) % 11 for i in range(12)]
    computed = numpy_gpt.forward(read_weights(model.config, 11, arrays_of(model)), tokens)
    with torch.inference_mode():
        torch.testing.assert_close(torch.from_numpy(computed), model(torch.tensor([tokens]))[0], rtol=1e-3, atol=1e-3)


@settings(max_examples=30)
@given(models_of(NATIVE_TRAINER))
def test_the_trainer_in_c_computes_every_model_that_its_row_claims(model: GPT) -> None:
    try:
        native = NativeEngine(model, NativeLibrary.load(torch.float32), 1)
    except KernelUnavailable as error:
        pytest.skip(f"there is no compiled code here: {error}")
    tokens = torch.randint(0, 11, (3, 13))
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    loss = cross_entropy(model(inputs), targets)
    loss.backward()
    expected = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    assert native.loss_and_gradients(inputs, targets, 1 / inputs.numel()) / inputs.numel() == pytest.approx(
        loss.item(), abs=1e-5
    )
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name], rtol=1e-3, atol=1e-5, msg=name)
