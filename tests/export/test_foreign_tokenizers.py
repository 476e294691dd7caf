"""Models of Transformers with tokenizers of every kind are to `gpt` what they are to Transformers, and go back so."""

import json
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

import gpt_cli
from gpt_cli.errors import UserError
from gpt_cli.export.import_hf import import_huggingface
from gpt_cli.sampling.prompt import encode_prompt
from tests.support.command import Run, in_process, run_python

pytestmark = pytest.mark.system

pytest.importorskip("transformers", reason="the extra [hf] is not installed")

from tests.support.foreign_models import (  # noqa: E402
    NEW_TOKENS,
    SEEDS,
    ForeignModel,
    Reference,
    make_foreign_model,
    reference,
)
from tests.support.foreign_templates import CHATS, TEMPLATES, Messages  # noqa: E402
from tests.support.foreign_tokenizers import CLASSES, NAMES, NORMALIZERS, ORDINARY, PATTERNS, POST_PROCESSORS  # noqa: E402

FEATURES = {
    "add_bos_token against the post-processor",
    "add_eos_token against the post-processor",
    "added_tokens_decoder",
    "added_tokens_decoder against tokenizer.json",
    "extra_special_tokens",
    "ignore_merges",
    "no generation_config.json",
    "ordinary tokens in the template",
    "padding token",
    "prefix space",
    "rows beyond the ids",
    "special tokens named in tokenizer_config.json alone",
    "split: GPT-2",
    "split_special_tokens",
    *NORMALIZERS,
    *ORDINARY,
    *(f"begin: {name}" for name in NAMES),
    *(f"class: {name}" for name in CLASSES),
    *(f"model: {name}" for name in ("Llama", "GPT-2", "Qwen3")),
    *(f"post-processor: {name}" for name in POST_PROCESSORS),
    *(f"spaces: {name}" for name in ("Prepend and Replace", "Metaspace first", "Metaspace always")),
    *(f"split: {name}" for name in PATTERNS),
    *(f"template in: {name}" for name in ("chat_template.jinja", "tokenizer_config.json")),
    *(f"template: {name}" for name in ("none", *TEMPLATES)),
    *(f"two end tokens in: {name}" for name in ("both configs", "generation_config.json", "config.json")),
    *(f"vocabulary: {name}" for name in ("byte level", "byte fallback")),
}


class Imported:
    """A foreign model, Transformers' account of it, and the run that it becomes: each is made when first needed."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.model: ForeignModel = make_foreign_model(seed, folder / "theirs")
        self.folder = folder

    @cached_property
    def reference(self) -> Reference:
        return reference(self.model.directory)

    @cached_property
    def run_dir(self) -> Path:
        import_huggingface(str(self.model.directory), self.folder / "run")
        return self.folder / "run"

    @cached_property
    def run(self) -> gpt_cli.Sampler:
        return gpt_cli.load(self.run_dir)

    def check(self, ours: Mapping[Any, Any], theirs: Mapping[Any, Any]) -> None:
        """Fail with the seed, its features and each text (or other key) of which the values differ."""
        different = [
            f"{key!r}\n     ours {ours.get(key)!r}\n   theirs {theirs.get(key)!r}"
            for key in {**theirs, **ours}
            if ours.get(key) != theirs.get(key)
        ]
        if different:
            pytest.fail("\n".join([f"{len(different)} of {len(theirs)}, {self.model}", *different]), pytrace=False)


@pytest.fixture(scope="module", params=SEEDS, ids=lambda seed: f"seed{seed}")
def imported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Imported:
    return Imported(request.param, tmp_path_factory.mktemp(f"foreign{request.param}"))


@pytest.fixture
def gpt(capfd: pytest.CaptureFixture[str]) -> Run:
    return in_process(capfd)


def chat_ids(run_dir: Path, messages: Messages) -> list[int] | None:
    """The tokens that the run continues for `messages`, None if they are refused."""
    from gpt_cli.serve.api_errors import ApiError
    from gpt_cli.serve.chat_prompt import encode_chat
    from gpt_cli.serve.chat_schemas import Message
    from gpt_cli.serve.model_registry import EngineOptions, open_model

    model = open_model("run", run_dir, EngineOptions(), lambda _: None, None)
    try:
        return encode_chat(model, [Message.model_validate(message) for message in messages])[0]
    except (ApiError, UserError):
        return None


def near(log_probs: list[float]) -> Any:
    return pytest.approx(log_probs, rel=0, abs=1e-4)


def scores(gpt: Run, run_dir: Path, file: Path) -> tuple[list[int], list[float]] | str:
    """The tokens of the text in `file` and the log-probability of each but the first, or the error of `gpt score`."""
    answer = gpt("score", file, run_dir, "--jsonl")
    if answer.rc:
        return answer.stderr
    lines = [json.loads(line) for line in answer.stdout.splitlines()]
    first, *log_probs = (value for line in lines for value in line["log_probs"])
    assert first is None
    return [token for line in lines for token in line["tokens"]], log_probs


def test_every_feature_is_one_of_a_model_and_texts_end_by_the_first_and_by_the_second_end_token(tmp_path):
    features: set[str] = set()
    last: set[int] = set()
    for seed in SEEDS:
        model = make_foreign_model(seed, tmp_path / str(seed))
        features |= model.features
        theirs = reference(model.directory)
        ends = theirs.special_ids["eos_token_id of generation_config.json"]
        last |= {ends.index(tokens[-1]) for tokens in theirs.continuations.values() if tokens[-1] in ends}
    assert features == FEATURES
    assert last == {0, 1}


@pytest.mark.parametrize("seed", SEEDS[:3])
def test_a_seed_makes_the_same_files_in_every_process(seed, tmp_path):
    make_foreign_model(seed, tmp_path / "here")
    source = (
        "from pathlib import Path; from tests.support.foreign_models import make_foreign_model;"
        f"make_foreign_model({seed}, Path('there'))"
    )
    run_python(source, tmp_path, PYTHONHASHSEED="7", RAYON_NUM_THREADS="1")
    here, there = ({path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in ("here", "there"))
    assert here == there


def test_an_import_encodes_each_text_as_transformers_does(imported):
    theirs = imported.reference.ids
    imported.check({text: encode_prompt(imported.run.tokenizer, text) for text in theirs}, theirs)


def test_an_import_continues_each_text_with_the_tokens_and_the_text_of_transformers(imported):
    theirs, run = imported.reference, imported.run
    streams = {text: run.generate(text, temperature=0, max_new_tokens=NEW_TOKENS, heal=False) for text in theirs.ids}
    written = {text: str(stream) for text, stream in streams.items()}
    imported.check({text: stream.tokens for text, stream in streams.items()}, theirs.continuations)
    imported.check({text: written[text] for text in theirs.continued}, theirs.continued)


def test_an_import_continues_texts_in_a_batch_as_transformers_does_alone(imported):
    theirs = imported.reference.continued
    batch = imported.run.generate_many(list(theirs), temperature=0, max_new_tokens=NEW_TOKENS, heal=False)
    imported.check({text: str(stream) for text, (stream,) in zip(theirs, batch, strict=True)}, theirs)


def test_an_import_scores_each_text_as_transformers_does(imported, gpt, tmp_path):
    theirs = {
        text: (imported.reference.ids[text], near(values)) for text, values in imported.reference.log_probs.items()
    }
    theirs.pop("", None)  # an empty file is no text
    ours = {}
    for text in theirs:
        (tmp_path / "text.txt").write_bytes(text.encode())
        ours[text] = scores(gpt, imported.run_dir, tmp_path / "text.txt")
    imported.check(ours, theirs)


def test_an_import_writes_chats_as_transformers_does(imported):
    theirs = {json.dumps(chat): ids for chat, ids in zip(CHATS, imported.reference.chats, strict=False)}
    imported.check({chat: chat_ids(imported.run_dir, json.loads(chat)) for chat in theirs}, theirs)


def test_an_import_that_is_exported_again_is_the_same_model_to_transformers(imported, gpt, tmp_path):
    assert gpt("export", imported.run_dir, tmp_path / "back", "--to", "hf").rc == 0
    theirs, back = imported.reference, reference(tmp_path / "back")
    imported.check(back.ids, theirs.ids)
    imported.check(back.continuations, theirs.continuations)
    imported.check(back.continued, theirs.continued)
    imported.check(back.log_probs, {text: near(values) for text, values in theirs.log_probs.items()})
    imported.check(dict(enumerate(back.chats)), dict(enumerate(theirs.chats)))
    config, generation = "eos_token_id of config.json", "eos_token_id of generation_config.json"
    imported.check(back.special_ids, {**theirs.special_ids, config: theirs.special_ids[generation]})
