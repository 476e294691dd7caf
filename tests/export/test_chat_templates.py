"""A rendered chat template gives others, who encode it as a whole, the ids that a run was trained on, or it refuses."""

import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import chain
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st
from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from gpt_cli.config import DataConfig, TokenizerConfig
from gpt_cli.corpus.examples import CompletionEndError, encode_examples, make_chat, make_pair
from gpt_cli.corpus.turn_template import ROLES, TurnTemplate
from gpt_cli.errors import RequestError
from gpt_cli.export.answer_borders import guarded_jinja, inexact_answers
from gpt_cli.export.gguf import export_gguf
from gpt_cli.export.huggingface import export_huggingface
from gpt_cli.export.import_hf import import_huggingface
from gpt_cli.run.load_model import load_model
from gpt_cli.sampling.conversation import Conversation
from gpt_cli.tokenizer import Tokenizer, train_tokenizer
from tests.support.export_models import TEXT, TOKENIZERS, make_run

pytestmark = pytest.mark.system

DEFAULT = ("\x02", "\x03")
MARKS = [
    DEFAULT,
    ("<\x02>", "</\x03>\n"),
    ("\x02a", "\x03 "),
    ("\x02\x02", "\x02\x03"),  # the first is not told apart from the second in a chat
    (": ", "\n"),
    ("\n", "\n"),
    ("\n", "\n\n"),
    ("=>", "\n"),
    ("|", "|"),
    ("?'", "'"),
    ("A", "1"),
]
SAYINGS = [
    "'tis so, isn't it?",
    '"Hello," she said. "Ünder the bridge."',
    "**Bold** (and so on): 1234 + 5 = 1239!\n\n  x = [1, 2]\n\t \n",
    "/usr/bin and ISBNs\r\n \r\nthe THE",
    "The end  ",
]
LONG = {"context_length": 999}
PATTERNS = ["gpt2", "gpt4", "o200k"]
FRAGMENTS = [
    *("'", "'tis", "'S", "s", "t", "the", "The", "B", '"', '"He', "!", "?!", "/", "**", "1", "1234", " ", "  ", "\t"),
    *("\n", "\r", "\n \n", "\r \n", " \n", "é", "e\u0301", "中", "—", "\xa0", "\u2028", "user", "assistant", "system"),
    *(": ", "=>", "|", "<", ">", "a", "A", "?'", "<|endoftext|>", "ÿ"),
]
texts = st.lists(st.sampled_from(FRAGMENTS), min_size=1, max_size=5).map("".join) | st.text(min_size=1, max_size=8)


@cache
def tokenizer_of(pattern: Any, size: int, marks: tuple[str, str] | None) -> Tokenizer:
    """Trained on chats with `marks`, whose texts begin and end with all kinds of characters, or on lines of text."""
    if marks is None:
        text = "\n".join(" ".join(saying.split()) for saying in [*SAYINGS, TEXT] * 3)
    else:
        template = TurnTemplate("chat", *marks)
        text = "".join(template.message(role, saying) for role in ROLES for saying in SAYINGS) * 3 + TEXT
    return train_tokenizer([text], TokenizerConfig(kind="bpe", vocab_size=size, pattern=pattern))


def conversations(data: DataConfig) -> Iterator[Any]:
    """Messages that end with an answer; of pairs two."""
    answer = texts.map(lambda text: {"role": "assistant", "content": text})
    question = texts.map(lambda text: {"role": "user", "content": text})
    if data.format == "pairs":
        return st.tuples(question, answer).map(list)
    start = texts.map(lambda text: {"role": "system", "content": text}) | question
    turns = st.lists(st.tuples(question, answer) | st.tuples(answer), min_size=1, max_size=3)
    return st.builds(lambda first, rest: [first, *chain.from_iterable(rest)], start, turns)


def learned(tokenizer: Tokenizer, messages: list[dict[str, str]], data: DataConfig) -> tuple[list[int], list[int]]:
    """The ids before the last answer and those of all, as a run is trained on them."""
    try:
        if data.format == "pairs":
            one = make_pair("x", messages[0]["content"], messages[1]["content"], data)
        else:
            one = make_chat("x", messages, data)
    except CompletionEndError:  # a text that no run is trained on
        assume(False)
    before, last = encode_examples(tokenizer, [one], data.completion_end).last_turn(0)
    return before, before + last


def refuse(message: str) -> None:
    raise TemplateError(message)


def render(source: str, messages: list[dict[str, str]], **options: bool) -> str:
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)  # as Transformers renders it
    environment.globals["raise_exception"] = refuse
    return environment.from_string(source).render(messages=messages, **options)


many = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.mark.parametrize("form", ["pairs", "chat"])
@pytest.mark.parametrize("marks", MARKS, ids=repr)
@pytest.mark.parametrize("source", ["chats", "chats, few merges", "lines"])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_the_whole_of_what_a_template_accepts_has_the_ids_of_its_pieces(pattern, source, marks, form):
    data = DataConfig(format=form, prompt_end=marks[0], completion_end=marks[1])
    size = 290 if "few" in source else 340
    tokenizer = tokenizer_of(pattern, size, None if source == "lines" else marks)
    template = TurnTemplate.of(data)
    assert template is not None
    if form == "chat" and inexact_answers(template, tokenizer) == "":
        with pytest.raises(RequestError, match=re.escape(f"data.prompt_end {marks[0]!r} and data.completion_end ")):
            guarded_jinja(template, tokenizer)
        return
    jinja = guarded_jinja(template, tokenizer)
    assert TurnTemplate.from_jinja(jinja) == template
    refused = []

    @many
    @given(conversations(data))
    def agree(messages: list[dict[str, str]]) -> None:
        before, whole = learned(tokenizer, messages, data)
        try:
            assert tokenizer.encode(render(jinja, messages[:-1], add_generation_prompt=True)).tolist() == before
            assert tokenizer.encode(render(jinja, messages)).tolist() == whole
        except TemplateError:
            refused.append(messages)

    agree()
    assert not refused or inexact_answers(template, tokenizer) is not None


@pytest.mark.parametrize("form", ["pairs", "chat"])
@pytest.mark.parametrize("marks", MARKS, ids=repr)
@pytest.mark.parametrize("kind", [*PATTERNS, "byte"])
def test_transformers_gives_a_chat_the_ids_that_were_learned(kind, marks, form, tmp_path):
    transformers = pytest.importorskip("transformers", reason="the extra [hf] is not installed")
    data = DataConfig(format=form, prompt_end=marks[0], completion_end=marks[1])
    tokenizer = TOKENIZERS["byte"] if kind == "byte" else tokenizer_of(kind, 370, marks)
    run, has_control_characters = make_run(LONG, tokenizer, data=data), marks in MARKS[:3]
    if form == "chat" and inexact_answers(TurnTemplate(form, *marks), tokenizer) == "" and not has_control_characters:
        with pytest.raises(RequestError, match=r"data\.prompt_end .* data\.completion_end"):
            export_huggingface(run, tmp_path / "out")
        return
    export_huggingface(run, tmp_path / "out")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    refused = []

    @many
    @given(conversations(data))
    @example([{"role": "user", "content": "Who?  "}, {"role": "assistant", "content": "'tis I"}])
    @example([{"role": "user", "content": " \n"}, {"role": "assistant", "content": "\n \nx"}])
    @example([{"role": "user", "content": "\n \nx"}, {"role": "assistant", "content": '"He'}])
    def agree(messages: list[dict[str, str]]) -> None:
        before, whole = learned(tokenizer, messages, data)
        try:
            prompt = theirs.apply_chat_template(messages[:-1], add_generation_prompt=True)
            assert prompt["input_ids"] == before
            assert theirs.apply_chat_template(messages)["input_ids"] == whole
        except TemplateError:
            refused.append(messages)

    agree()
    assert not refused or (kind != "byte" and not has_control_characters)
    for text in (*SAYINGS, TEXT[:100]):  # without marks they are texts like others
        assert theirs(text)["input_ids"] == tokenizer.encode(text).tolist()
    import_huggingface(str(tmp_path / "out"), tmp_path / "run")
    imported = load_model(tmp_path / "run", torch.device("cpu"), print)
    assert imported.tokenizer == tokenizer
    assert TurnTemplate.of(imported.config.data) == TurnTemplate.of(data)
    export_huggingface(imported, tmp_path / "again")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "again" / name).read_bytes(), name


def test_transformers_reads_special_tokens_in_messages_as_text_as_gpt_does(tmp_path):
    transformers = pytest.importorskip("transformers", reason="the extra [hf] is not installed")
    run = make_run(LONG, TOKENIZERS["bpe"], data=DataConfig(format="chat"))
    allowing = run.config.tokenizer.model_copy(update={"allow_special": True})
    run = replace(run, config=run.config.model_copy(update={"tokenizer": allowing}))
    export_huggingface(run, tmp_path / "out")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    chat = Conversation(run.tokenizer, 999, "user\x02", "\x03assistant\x02", TurnTemplate.of(run.config.data))
    messages = [{"role": "user", "content": "a <|endoftext|>"}]
    ids = theirs.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]
    assert ids == chat.say("a <|endoftext|>").tokens


@pytest.mark.parametrize("kind", ["byte", "bpe", "bpe as gpt4"])
def test_transformers_continues_what_gpt_chat_continues(kind, tmp_path):
    transformers = pytest.importorskip("transformers", reason="the extra [hf] is not installed")
    run = make_run(LONG, TOKENIZERS[kind], data=DataConfig(format="chat"))
    export_huggingface(run, tmp_path / "out")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    chat = Conversation(
        run.tokenizer, 999, run.config.sample.prefix, run.config.sample.suffix, TurnTemplate.of(run.config.data)
    )
    messages = []
    for saying in SAYINGS:
        messages.append({"role": "user", "content": saying})
        ids = chat.say(saying).tokens
        assert theirs.apply_chat_template(messages, add_generation_prompt=True)["input_ids"] == ids
        messages.append({"role": "assistant", "content": saying})
        chat.answer(saying, 0)


def test_the_template_of_a_gguf_file_refuses_the_answers_that_llama_cpp_would_split_differently(tmp_path):
    gguf = pytest.importorskip("gguf", reason="the extra [gguf] is not installed")
    data = DataConfig(format="chat")
    export_gguf(make_run({}, TOKENIZERS["bpe"], data=data), tmp_path / "chat.gguf")
    source = gguf.GGUFReader(tmp_path / "chat.gguf").fields["tokenizer.chat_template"].contents()
    for answer in ("Yes", '"Yes"', "", "12"):
        chat = [{"role": "user", "content": "'"}, {"role": "assistant", "content": answer}]
        assert render(source, chat) == f"user\x02'\x03assistant\x02{answer}\x03"
    with pytest.raises(TemplateError, match="would not be encoded as the model learned it"):
        render(source, [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "'tis I"}])
    for kind, exact in (("byte", True), ("bpe as gpt4", False)):
        run = make_run({}, TOKENIZERS[kind], data=data)
        if exact:
            export_gguf(run, tmp_path / f"{kind}.gguf")
        else:
            with pytest.raises(RequestError, match=r"data\.prompt_end '\\x02' and data\.completion_end") as refused:
                export_gguf(run, tmp_path / f"{kind}.gguf")
            assert "--to hf" in str(refused.value.hint)
            assert not (tmp_path / f"{kind}.gguf").exists()
    pairs = make_run({}, TOKENIZERS["bpe as gpt4"], data=DataConfig(format="pairs"))
    export_gguf(pairs, tmp_path / "pairs.gguf")
    source = gguf.GGUFReader(tmp_path / "pairs.gguf").fields["tokenizer.chat_template"].contents()
    assert render(source, [{"role": "user", "content": "Who?"}]) == "Who?\x02"


@pytest.mark.parametrize(
    ("marks", "pattern", "inexact"),
    [(DEFAULT, "gpt2", "'"), (DEFAULT, "gpt4", ""), (("\n", "\n"), "gpt2", None), (("\n", "\n"), "gpt4", None)],
    ids=repr,
)
def test_marks_that_no_token_joins_with_text_are_exact_where_the_pattern_splits_beside_them(marks, pattern, inexact):
    assert inexact_answers(TurnTemplate("chat", *marks), tokenizer_of(pattern, 340, None)) == inexact
