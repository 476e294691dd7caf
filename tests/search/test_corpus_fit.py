"""Whatever the text and the machine, the fitted config is one that trains."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gpt_cli.config import dump_config, load_config, parse_config, to_yaml_scalar
from gpt_cli.config.keys import get_key, replace_keys
from gpt_cli.config.schema import Config, DataConfig, TokenizerConfig
from gpt_cli.corpus.prepare import prepare_corpus, tokenize_corpus
from gpt_cli.errors import RequestError, UserError
from gpt_cli.search.auto_config import fit_config
from gpt_cli.search.text_statistics import measure_source
from gpt_cli.training.training_samples import sample_prompt
from tests.support.command import ROOT

ENGLISH = "".join(
    f"Once upon a time there were {n} mice, and the {n}th of them lived in a shoe.\n" for n in range(1000)
)
CHINESE = "".join(chr(0x4E00 + (n * n) % 1000) for n in range(2000)) + "。"


def text_of(characters: int, pattern: str = ENGLISH) -> str:
    return (pattern * (characters // len(pattern) + 1))[:characters]


def fit(path: Path, has_gpu: bool = False, cores: int = 2, **overrides: Any) -> tuple[Config, list[str]]:
    """`data__val_fraction=0.2` stands for that key of the config."""
    values = {key.replace("__", "."): value for key, value in overrides.items()}
    return fit_config({"data.source": str(path), **values}, run_dir="runs/x", has_gpu=has_gpu, cores=cores)


@pytest.mark.system
@pytest.mark.parametrize("has_gpu", [False, True])
@pytest.mark.parametrize("pattern", [ENGLISH, CHINESE, "a", "ab\n"], ids=["english", "chinese", "one letter", "lines"])
@pytest.mark.parametrize("characters", [200, 5_000, 100_000, 2_000_000])
def test_a_fitted_config_tokenizes_its_text_and_has_windows_to_train_and_to_validate(
    tmp_path: Path, characters: int, pattern: str, has_gpu: bool
) -> None:
    path = tmp_path / "x.txt"
    path.write_text(text_of(characters, pattern), encoding="utf-8")
    config, reasons = fit(path, has_gpu)
    corpus = prepare_corpus(config.data, config.tokenizer, cache=False, note=pytest.fail)
    assert len(corpus.train) > config.model.context_length
    assert len(corpus.val) > config.model.context_length
    assert not corpus.tokenizer.unknown_characters(config.sample.prompt)
    assert config.run_dir == "runs/x"
    assert all(reasons)


@pytest.mark.system
@settings(max_examples=40, deadline=None)
@given(
    texts=st.lists(
        st.text("ab\n", min_size=40, max_size=400) | st.text("日月", min_size=40, max_size=400), max_size=3
    ).filter(bool),
    weights=st.lists(st.integers(1, 4), min_size=3, max_size=3),
    test_fraction=st.sampled_from([0.0, 0.1, 0.3]),
    split=st.sampled_from(["characters", "documents", "files"]),
    kind=st.sampled_from(["char", "byte"]),
)
def test_the_tokens_that_a_config_is_fitted_to_are_those_that_are_trained_on(
    tmp_path_factory: pytest.TempPathFactory,
    texts: list[str],
    weights: list[int],
    test_fraction: float,
    split: str,
    kind: str,
) -> None:
    folder = tmp_path_factory.mktemp("texts")
    for number, text in enumerate(texts):
        (folder / f"{number}").write_text(f"{text}c\n", encoding="utf-8")  # which needs no separator
    sources = [str(folder / f"{number}") for number in range(len(texts))]
    values: dict[str, Any] = {"data.source": sources, "data.weights": weights[: len(texts)], "data.split": split}
    values |= {"data.test_fraction": test_fraction, "tokenizer.kind": kind}
    assume(split == "characters" or len(set(texts)) > 1 + (test_fraction > 0))
    fitted = measure_source(sources, values, values, has_gpu=False, progress=None)
    keys = {**values, "data.val_fraction": fitted.values["data.val_fraction"]}
    data = DataConfig(**{key.removeprefix("data."): value for key, value in keys.items() if key.startswith("data.")})
    corpus = prepare_corpus(data, TokenizerConfig(kind=kind), cache=False, note=lambda _: None)
    width = 8 if kind == "byte" else 1  # the characters at a cut need not be as wide as the file's mean
    assert fitted.training_tokens == pytest.approx(len(corpus.train), abs=width * sum(weights))
    assert fitted.validation_tokens == pytest.approx(len(corpus.val), abs=width)


@settings(max_examples=20, deadline=None)
@given(
    texts=st.lists(st.text("ab\n", min_size=1, max_size=20), min_size=2, max_size=5),
    n_training=st.integers(1, 4),
    kind=st.sampled_from(["char", "byte"]),
)
def test_tokens_are_counted_with_the_newlines_that_are_put_between_documents(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], n_training: int, kind: str
) -> None:
    folder = tmp_path_factory.mktemp("texts")
    for number, text in enumerate(texts):
        (folder / f"{number}").write_text(f"{text}ab", encoding="utf-8")
    paths = [str(folder / f"{number}") for number in range(len(texts))]
    sources, val_sources = paths[:n_training], paths[n_training:] or paths
    values = {"data.source": sources, "data.val_source": val_sources, "tokenizer.kind": kind}
    fitted = measure_source(sources, values, values, has_gpu=False, progress=None)
    data = DataConfig(source=sources, val_source=val_sources)
    corpus = prepare_corpus(data, TokenizerConfig(kind=kind), cache=False, note=lambda _: None)
    assert (fitted.training_tokens, fitted.validation_tokens) == (len(corpus.train), len(corpus.val))
    assert f"{corpus.stats['val'].characters:,} characters" in fitted.split_reason


@pytest.mark.parametrize(
    ("overrides", "begin_so"),
    [
        ({}, True),
        ({"model.n_head": 4, "model.n_embd": 32}, True),
        ({"model.n_head": 8, "model.n_embd": 32}, False),
        ({"model.position": "learned"}, False),
        ({"model.tie_embeddings": True}, False),
        ({"recipe": "classic"}, False),
        ({"recipe": "modern"}, False),
    ],
)
def test_a_fitted_model_begins_with_previous_token_heads_where_it_can_and_no_recipe_is_asked_for(
    tmp_path: Path, overrides: dict[str, Any], begin_so: bool
) -> None:
    (tmp_path / "x.txt").write_text(ENGLISH)
    fitted, _ = fit(tmp_path / "x.txt", **overrides)
    asked = [f"{key}={to_yaml_scalar(value)}" for key, value in overrides.items()]
    assert parse_config(dump_config(fitted), "x.yaml", asked).model.has_previous_token_init == begin_so


@pytest.fixture(scope="module")
def english(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("texts") / "x.txt"
    path.write_text(text_of(20_000))
    return path


@pytest.mark.system
@settings(max_examples=50, deadline=None)
@given(
    width=st.integers(1, 200),
    position=st.sampled_from(["rope", "learned", "sinusoidal", "alibi", "none"]),
    heads=st.none() | st.integers(1, 20),
)
def test_any_width_is_fitted_and_trains_unless_it_contradicts_the_positions_or_the_heads(
    english: Path, width: int, position: str, heads: int | None
) -> None:
    overrides = {"model.n_embd": width, "model.position": position}
    if heads is not None:
        overrides["model.n_head"] = heads
    fitted, _ = fit(english, **overrides)
    asked = [f"{key}={to_yaml_scalar(value)}" for key, value in overrides.items()]
    text = dump_config(fitted)
    if heads is None:
        contradicts = width % 2 == 1 and position in ("rope", "sinusoidal")
    elif position == "sinusoidal":
        contradicts = width % heads != 0 or width % 2 == 1
    else:
        contradicts = width % (2 * heads if position == "rope" else heads) != 0
    if contradicts:
        with pytest.raises(UserError) as error:
            parse_config(text, "x.yaml", asked)
        assert error.value.where is None  # the file is not to blame
        assert set(error.value.keys) & {one.partition("=")[0] for one in asked}
    else:
        model = parse_config(text, "x.yaml", asked).model
        assert (model.n_embd, model.position) == (width, position)


def test_a_width_of_a_recipe_without_rotary_positions_may_be_odd(english: Path) -> None:
    fitted, _ = fit(english, recipe="classic", model__n_embd=33)
    model = parse_config(dump_config(fitted, full=False), "x.yaml", ["recipe=classic", "model.n_embd=33"]).model
    assert (model.n_embd, model.position) == (33, "learned")


@pytest.mark.robust
@pytest.mark.parametrize("has_gpu", [False, True])
def test_a_hundred_megabytes_are_fitted_too(tmp_path: Path, has_gpu: bool) -> None:
    path = tmp_path / "x.txt"
    path.write_text(text_of(100_000_000))
    config, _ = fit(path, has_gpu, cores=64)
    assert config.data.val_fraction == pytest.approx(0.01)
    assert config.model.dropout == 0


def test_the_newlines_between_documents_are_counted_beside_a_tokenizer_of_characters_too(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    for number in range(9):
        (tmp_path / "docs" / f"{number}.txt").write_text("abc" * 30)
    data = DataConfig(source=str(tmp_path / "docs"))
    tokenizer = prepare_corpus(data, TokenizerConfig(kind="char"), cache=False, note=lambda _: None).tokenizer
    tokenizer.save(tmp_path / "tokenizer.json")
    values = {"data.source": data.source, "tokenizer.kind": "char"}
    beside = {**values, "tokenizer.file": str(tmp_path / "tokenizer.json")}
    counted = [measure_source([data.source], fixed, fixed, has_gpu=False, progress=None) for fixed in (values, beside)]
    assert [one.tokens for one in counted] == [9 * 90 + 8] * 2


def test_a_megabyte_on_a_gpu_is_trained_as_the_config_that_was_measured(tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    path.write_text(text_of(1_115_394))
    fitted, _ = fit(path, has_gpu=True)
    measured = load_config(ROOT / "configs" / "shakespeare_gpu.yaml")
    for key in ("model.n_layer", "model.n_embd", "model.context_length", "model.dropout", "train.batch_size"):
        assert get_key(fitted, key) == get_key(measured, key), key
    assert (fitted.optim.lr, fitted.optim.weight_decay) == (measured.optim.lr, measured.optim.weight_decay)
    assert fitted.train.steps == pytest.approx(measured.train.steps, rel=0.05)


def test_a_text_that_is_read_often_is_trained_at_the_higher_rate(tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_text(text_of(20_000))
    (tmp_path / "long.txt").write_text(text_of(2_000_000))
    assert fit(tmp_path / "short.txt")[0].optim.lr == Config().optim.lr
    assert fit(tmp_path / "long.txt")[0].optim.lr < Config().optim.lr
    assert fit(tmp_path / "long.txt", optim__name="adamw")[0].optim.lr == Config().optim.lr  # the default of the field


def test_a_longer_text_never_gets_a_smaller_model_or_context(tmp_path: Path) -> None:
    sizes = []
    for characters in (50, 200, 2_000, 20_000, 200_000, 2_000_000):
        path = tmp_path / f"{characters}.txt"
        path.write_text(text_of(characters))
        config, _ = fit(path)
        sizes.append((config.model.context_length, config.model.n_layer, config.model.n_embd))
    assert sizes == sorted(sizes)


@pytest.mark.system
def test_a_text_that_is_read_often_is_regularised(tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_text(text_of(2_000))
    (tmp_path / "long.txt").write_text(text_of(3_000_000))
    short, long = (fit(tmp_path / f"{name}.txt")[0] for name in ("short", "long"))
    assert short.model.dropout > long.model.dropout == 0
    assert short.optim.weight_decay > long.optim.weight_decay == Config().optim.weight_decay


@pytest.mark.parametrize("tokenizer", [TokenizerConfig(kind="char"), TokenizerConfig(kind="bpe", vocab_size=300)])
def test_a_token_store_is_fitted_as_it_is(tmp_path: Path, tokenizer: TokenizerConfig) -> None:
    (tmp_path / "x.txt").write_text(text_of(30_000))
    data = DataConfig(source=str(tmp_path / "x.txt"), val_fraction=0.2)
    tokenize_corpus(tmp_path / "store", data, tokenizer, note=pytest.fail)
    config, _ = fit(tmp_path / "store")
    corpus = prepare_corpus(config.data, config.tokenizer, note=pytest.fail)
    assert corpus.tokenizer.kind == tokenizer.kind
    assert config.data.val_fraction == 0.2


def _write_source(folder: Path, form: str, tokenizer: TokenizerConfig) -> Path:
    """A source whose documents, or else paragraphs, begin with a §, which nothing else in it has."""
    texts = [f"§ {n} of a story.\nThere were {n} mice\nand {n * n} shoes." for n in range(200)]
    path = folder / form
    if form == "folder":
        path.mkdir()
        for n, text in enumerate(texts):
            (path / f"{n}.txt").write_text(text, encoding="utf-8")
    elif form in ("text.txt", "marked.txt"):
        path.write_text(("\n" if form == "text.txt" else "<|endoftext|>").join(texts), encoding="utf-8")
    elif form == "x.parquet":
        pyarrow = pytest.importorskip("pyarrow")
        pytest.importorskip("pyarrow.parquet").write_table(pyarrow.table({"text": texts}), path)
    else:
        path = folder / "x.jsonl"
        path.write_text("\n".join(json.dumps({"text": text}) for text in texts))
    if form == "store":
        tokenize_corpus(folder / form, DataConfig(source=str(path)), tokenizer, note=pytest.fail)
        return folder / form
    return path


@pytest.mark.parametrize("kind", ["bpe", "char", "byte"])
@pytest.mark.parametrize("form", ["folder", "x.jsonl", "x.parquet", "store", "text.txt"])
def test_samples_begin_after_what_precedes_a_document_in_training_and_a_line_in_one_text(
    tmp_path: Path, form: str, kind: Any
) -> None:
    vocab_size: dict[str, Any] = {"vocab_size": 400} if kind == "bpe" else {}
    path = _write_source(tmp_path, form, TokenizerConfig(kind=kind, **vocab_size))
    keys = {f"tokenizer__{key}": value for key, value in {"kind": kind, **vocab_size}.items()}
    _follows_what_precedes_documents(fit(path, **keys)[0])


def test_samples_begin_after_an_end_of_text_that_the_text_contains(tmp_path: Path) -> None:
    keys: dict[str, Any] = {"kind": "bpe", "vocab_size": 400, "allow_special": True}
    path = _write_source(tmp_path, "marked.txt", TokenizerConfig(**keys))
    config, _ = fit(path, **{f"tokenizer__{key}": value for key, value in keys.items()})
    _follows_what_precedes_documents(replace_keys(config, {"tokenizer.allow_special": True}))
    tokenize_corpus(tmp_path / "store", DataConfig(source=str(path)), TokenizerConfig(**keys), note=pytest.fail)
    _follows_what_precedes_documents(fit(tmp_path / "store")[0])


def _follows_what_precedes_documents(config: Config) -> None:
    corpus = prepare_corpus(config.data, config.tokenizer, cache=False, note=lambda _: None)
    tokens, mark = corpus.train[:].tolist(), int(corpus.tokenizer.encode("§")[0])
    before = {tuple(tokens[i - 1 : i]) for i in range(1, len(tokens)) if tokens[i] == mark}
    assert before == {tuple(sample_prompt(corpus, config)[0])}


def test_samples_begin_with_a_line_where_a_single_document_is_left_to_train_on(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text(text_of(50_000))
    (tmp_path / "valid.txt").write_text(text_of(2_000))
    keys = {"tokenizer__kind": "bpe", "tokenizer__vocab_size": 300}
    for split in ("characters", "documents", "files"):
        config, _ = fit(tmp_path, data__split=split, **keys)
        corpus = prepare_corpus(config.data, config.tokenizer, cache=False, note=lambda _: None)
        assert sample_prompt(corpus, config)[0] == corpus.tokenizer.encode("\n").tolist()


def test_how_often_the_text_is_seen_counts_the_training_split_alone(tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    path.write_text(text_of(30_000))
    data = DataConfig(source=str(path), val_fraction=0.4, test_fraction=0.1)
    tokenize_corpus(tmp_path / "store", data, TokenizerConfig(kind="char"), note=pytest.fail)
    for source, training_tokens in ((path, 27_000), (tmp_path / "store", 15_000)):
        config, reasons = fit(source)
        tokens_seen = config.train.steps * config.train.batch_size * config.model.context_length
        assert any(f"its training text {tokens_seen / training_tokens:.1f} times" in reason for reason in reasons)


def test_standard_input_cannot_be_fitted() -> None:
    with pytest.raises(RequestError, match="standard input"):
        fit(Path("-"))
