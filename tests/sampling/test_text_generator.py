"""A saved model that writes: the engine that `gpt sample` would choose, from Python, for one prompt and for many."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import gpt_cli
from gpt_cli.cli.main import main
from gpt_cli.config import Config, ModelConfig, SampleConfig, TokenizerConfig
from gpt_cli.cpu.common.kernel import KernelUnavailable, load_kernel
from gpt_cli.cpu.decode.numpy_decoder import NumpyDecoder
from gpt_cli.errors import RequestError, UserError
from gpt_cli.model.gpt import GPT
from gpt_cli.run.checkpoint import save
from gpt_cli.run.load_model import build_model
from gpt_cli.run.open_checkpoint import open_checkpoint
from gpt_cli.sampling import SamplingParams, native_decoder, stream_batches
from gpt_cli.sampling.native_decoder import max_batch
from gpt_cli.sampling.text_generator import TextGenerator
from gpt_cli.tokenizer import ByteTokenizer, train_tokenizer
from tests.support.tensors import relative_error

SHAPE = ModelConfig(n_layer=2, n_embd=32, n_head=2, context_length=20, zero_init=False, init_std=0.2)
PROMPTS = ["a", "the one", "x" * 50, "", "a", "ROMEO:\n" * 2, "ä"]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = Config(model=SHAPE, sample=SampleConfig(max_new_tokens=60, temperature=1.0))
    torch.manual_seed(0)
    return save(tmp_path_factory.mktemp("run"), 1, GPT(SHAPE, 256).state_dict(), {}, {}, config, ByteTokenizer())


@pytest.fixture
def kernel() -> None:
    try:
        load_kernel()
    except KernelUnavailable as error:
        pytest.skip(f"no kernel here: {error}")


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("engine", ["auto", "native", "torch"])
@pytest.mark.parametrize("options", [{}, {"temperature": 0.0}, {"top_k": 5, "stop": "e"}], ids=str)
def test_python_writes_what_the_command_writes_with_the_same_engine(
    checkpoint: Path, capsys: pytest.CaptureFixture[str], engine: Any, options: dict[str, Any]
) -> None:
    flags = [argument for name, value in options.items() for argument in (f"--{name.replace('_', '-')}", str(value))]
    command = ["sample", "--run", str(checkpoint), "--prompt", "ab", "--seed", "3", "--json", "--engine", engine]
    assert main([*command, *flags]) == 0
    output = json.loads(capsys.readouterr().out)
    text = gpt_cli.load(checkpoint, engine=engine).generate("ab", seed=3, **options)
    assert text.text() == output["samples"][0]["text"]
    assert text.tokens == output["samples"][0]["tokens"]
    assert output["engine"] == ("torch" if engine == "torch" else "native")


def test_a_prompt_names_special_tokens_only_if_it_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tokenizer = train_tokenizer(["a b"], TokenizerConfig(kind="bpe", vocab_size=257))
    config = Config(model=SHAPE, sample=SampleConfig(max_new_tokens=12, temperature=1.0))
    torch.manual_seed(0)
    run = save(tmp_path, 1, GPT(SHAPE, tokenizer.vocab_size).state_dict(), {}, {}, config, tokenizer)
    loaded, prompt, texts = gpt_cli.load(run), "a<|endoftext|>", set()
    for flags, options in (["--parse-special"], {"parse_special": True}), ([], {"parse_special": False}), ([], {}):
        capsys.readouterr()
        assert main(["sample", "--run", str(run), "--prompt", prompt, "--seed", "5", "--json", *flags]) == 0
        (text,) = (one["text"] for one in json.loads(capsys.readouterr().out)["samples"])
        tokens = tokenizer.encode(prompt, allow_special=bool(flags)).tolist()
        assert text == str(loaded.generate(prompt, seed=5, **options))
        assert text == str(next(stream_batches(loaded.model, tokenizer, [tokens], replace(loaded.defaults, seed=5)))[0])
        texts.add(text)
    assert len(texts) == 2


@pytest.mark.system
def test_python_writes_without_torch_where_it_is_not_needed(checkpoint: Path) -> None:
    source = (
        "import sys, gpt_cli; run = gpt_cli.load(sys.argv[1]); run.generate('ab', seed=1, regex='a+').text();"
        "print('torch' in sys.modules); run.generate('ab', seed=1, beams=2).text(); print('torch' in sys.modules)"
    )
    completed = subprocess.run([sys.executable, "-c", source, checkpoint], capture_output=True, text=True, check=True)
    assert completed.stdout == "False\nTrue\n"


@pytest.mark.parametrize("engine", ["auto", "torch"])
def test_weights_in_bf16_go_to_a_gpu_with_torch(checkpoint: Path, engine: Any) -> None:
    saved = open_checkpoint(checkpoint, print)

    def build() -> GPT:  # here the GPU is a CPU
        return build_model(saved, torch.device("cpu")).model

    generator = TextGenerator(saved, build, device="cuda", engine=engine, weights="bf16")
    with torch.inference_mode():
        tokens = torch.arange(20)[None]
        assert relative_error([generator.model(tokens)], [build()(tokens)]) < 0.05
    assert {p.dtype for p in generator.model.parameters()} == {torch.bfloat16}
    name, texts = generator.generate([[1], [2, 3]], SamplingParams(max_new_tokens=30))
    assert name == "torch"
    assert [len(text.text().encode()) > 0 and len(text.tokens) for (text,) in texts] == [30, 30]


@pytest.mark.usefixtures("kernel")
def test_what_only_torch_can_write_goes_to_torch_unless_native_is_insisted_on(checkpoint: Path) -> None:
    assert gpt_cli.load(checkpoint).generate("a", choices=["b", "cc"]).text() in ("b", "cc")
    with pytest.raises(RequestError, match="the native engine does not go with repetition_penalty"):
        gpt_cli.load(checkpoint, engine="native").generate("a", choices=["b"], repetition_penalty=2.0)
    with pytest.raises(RequestError, match="weights in int8 do not go with beams"):
        gpt_cli.load(checkpoint, weights="int8").generate("a", beams=2)
    with pytest.raises(RequestError, match="weights in bf16 are for the native engine"):
        gpt_cli.load(checkpoint, engine="torch", weights="bf16")
    with pytest.raises(RequestError, match="the native engine does not go with the device mps"):
        gpt_cli.load(checkpoint, engine="native", device="mps")
    with pytest.raises(RequestError, match="weights in int8 do not go with the device cuda"):
        gpt_cli.load(checkpoint, device="cuda", weights="int8")
    for invalid in ({"engine": "fast"}, {"weights": "int3"}):
        with pytest.raises(RequestError, match="must be one of"):
            gpt_cli.load(checkpoint, **invalid)  # type: ignore[arg-type]


def test_weights_that_do_not_fit_their_config_are_told_when_the_run_is_loaded(tmp_path: Path) -> None:
    config = Config(model=SHAPE.model_copy(update={"n_layer": 3}))
    path = save(tmp_path, 1, GPT(SHAPE, 256).state_dict(), {}, {}, config, ByteTokenizer())
    with pytest.raises(UserError, match="does not fit its config"):
        gpt_cli.load(path)


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("decoder", ["kernel", "numpy"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    "constraint",
    [
        {"choices": ["a", "ab", "the other"]},
        {"regex": r"[a-z]{2,9}(, [a-zé]+)*\."},
        {"json_schema": {"type": "object", "properties": {"a": {"enum": [1, "x", None]}, "b": {"type": "integer"}}}},
        {"grammar": 'start: "(" start ")" | /[a-f]+/'},
    ],
    ids=lambda options: next(iter(options)),
)
def test_a_constrained_text_is_the_same_by_every_engine(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, decoder: str, temperature: float, constraint: dict[str, Any]
) -> None:
    if decoder == "numpy":
        monkeypatch.setattr(native_decoder, "NativeDecoder", lambda weights, **_: NumpyDecoder(weights))
    texts: dict[str, list[Any]] = {}
    for engine in "native", "torch":
        run = gpt_cli.load(checkpoint, engine=engine)  # type: ignore[arg-type]
        batch = [run.generate_batch(prompt, 3, seed=4, temperature=temperature, **constraint) for prompt in ("ab", "x")]
        texts[engine] = [(text.text(), text.tokens, text.finish_reason) for one in batch for text in one]
    assert texts["native"] == texts["torch"]


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("weights", ["fp32", "bf16", "int8"])
def test_each_of_many_prompts_gets_the_text_it_gets_alone_whatever_the_batch(checkpoint: Path, weights: Any) -> None:
    """Equal prompts get what one of them alone gets for so many samples."""
    run = gpt_cli.load(checkpoint, weights=weights)
    alone = [[text.tokens for text in _read(run.generate_batch(prompt, 2, seed=5))] for prompt in PROMPTS]
    again = PROMPTS.index("a", 1)
    alone[again] = [text.tokens for text in _read(run.generate_batch("a", 4, seed=5))][2:]
    for size in (1, 3, 64):
        together = run.generate_many(PROMPTS, 2, batch_size=size, seed=5)
        assert [[text.tokens for text in _read(texts)] for texts in together] == alone


@pytest.mark.parametrize("engine", ["auto", "torch"])
def test_equal_prompts_are_drawn_independently_but_for_a_search(checkpoint: Path, engine: Any) -> None:
    run = gpt_cli.load(checkpoint, engine=engine)
    texts = [str(text) for (text,) in run.generate_many(["a"] * 6, seed=5, batch_size=4)]
    assert len(set(texts)) == 6
    assert texts == [str(text) for text in run.generate_batch("a", 6, seed=5)]
    if engine == "torch":
        (first,), (second,) = run.generate_many(["a"] * 2, seed=5, beams=2)
        assert str(first) == str(second)


def _read(texts: list[Any]) -> list[Any]:
    for text in texts:
        text.text()
    return texts


@pytest.mark.usefixtures("kernel")
def test_a_batch_is_no_larger_than_its_keys_and_values_may_be(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert max_batch(ModelConfig()) >= 64
    assert max_batch(ModelConfig(n_layer=48, n_embd=4096, n_head=32, context_length=32_768)) == 1
    expected = [texts[0].text() for texts in gpt_cli.load(checkpoint).generate_many(PROMPTS, seed=1)]
    monkeypatch.setattr("gpt_cli.sampling.text_generator.max_batch", lambda config: 2)
    assert [texts[0].text() for texts in gpt_cli.load(checkpoint).generate_many(PROMPTS, seed=1)] == expected


@pytest.mark.parametrize("prompts", ["one text", [b"bytes"], [None], [5]])
def test_prompts_that_are_no_texts_are_refused_before_anything_is_written(checkpoint, prompts):
    with pytest.raises(TypeError, match="prompt"):
        gpt_cli.load(checkpoint).generate_many(prompts)
