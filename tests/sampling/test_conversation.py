"""A message that is too long for the context loses the beginning of its text, and keeps its role."""

import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpt_cli.config.derived import turn
from gpt_cli.corpus.turn_template import TurnTemplate
from gpt_cli.errors import RequestError
from gpt_cli.sampling.chat_template import TemplateConversation, encode_messages
from gpt_cli.sampling.conversation import Conversation
from gpt_cli.tokenizer import Tokenizer
from tests.support.export_models import TOKENIZERS
from tests.support.foreign_gguf import foreign_tokenizer
from tests.support.foreign_templates import TEMPLATES

ENDLESS = 10_000
KINDS = [*TOKENIZERS, "foreign bpe", "foreign bpe as gpt4"]
WORDS = st.lists(st.sampled_from([*"aéz 12'.\n", "quick", " brown", "The ", "12 ", "naïve", "  "]), max_size=25)
TEXTS = WORDS.map("".join)


def tokenizer_of(kind: str) -> Tokenizer:
    return foreign_tokenizer(kind.removeprefix("foreign ")) if kind.startswith("foreign ") else TOKENIZERS[kind]


def writable(tokenizer: Tokenizer, text: str) -> str:
    return "".join(character for character in text if not tokenizer.unknown_characters(character))


def fewest_dropped(text: str, encode: Callable[[str], list[int]], context: int) -> list[int] | None:
    """Of all ends of the text the longest one that fits, tried one by one."""
    ends = (encode(text[first:]) for first in range(len(text) + 1))
    return next((tokens for tokens in ends if len(tokens) <= context), None)


@pytest.mark.parametrize("kind", KINDS)
@given(
    text=TEXTS,
    context=st.integers(8, 40),
    marks=st.sampled_from([("Q: ", " A:"), ("", "|"), ("q", ""), ("user|", ".assistant|"), ("\u2014 ", "\n")]),
    earlier=st.lists(TEXTS.filter(bool), max_size=2),
)
def test_of_a_message_that_is_too_long_the_role_and_the_longest_end_that_fits_are_seen(
    kind: str, text: str, context: int, marks: tuple[str, str], earlier: list[str]
) -> None:
    tokenizer = tokenizer_of(kind)
    text, (prefix, suffix) = writable(tokenizer, text), (writable(tokenizer, mark) for mark in marks)

    def alone(text: str) -> list[int]:
        return Conversation(tokenizer, ENDLESS, prefix, suffix).say(text).tokens

    if not prefix + suffix:
        return
    expected = fewest_dropped(text, alone, context)
    conversation = Conversation(tokenizer, context, prefix, suffix)
    if expected is None:
        with pytest.raises(RequestError, match="even without its text"):
            conversation.say(text)
        assert (conversation.text, conversation.continue_().dropped_tokens) == ("", 0)
        return
    for one in earlier:
        conversation.say(writable(tokenizer, one))
        conversation.answer(writable(tokenizer, "naïve"), 0)
    window = conversation.say(text)
    assert len(window.tokens) <= context
    begin = len(tokenizer.begin_ids)
    shown = tokenizer.decode(window.tokens[begin:])
    assert shown.lstrip("\n").startswith(prefix.lstrip("\n"))
    assert shown.endswith(suffix)
    if len(alone(text)) > context:
        assert window.tokens == expected
        assert conversation.truncated
        assert window.dropped_tokens > 0
    elif not earlier:
        assert (window.tokens, conversation.truncated) == (alone(text), False)


@pytest.mark.parametrize("kind", KINDS)
@given(system=TEXTS, text=TEXTS, others=st.lists(TEXTS, max_size=2), context=st.integers(60, 90))
def test_a_learned_chat_is_encoded_as_in_training_as_long_as_nothing_is_dropped(
    kind: str, system: str, text: str, others: list[str], context: int
) -> None:
    """The system's message and the first turn are one piece; what is too long keeps its role, and the system's."""
    tokenizer = tokenizer_of(kind)
    prompt_end, completion_end = ("\x02", "\x03") if not tokenizer.unknown_characters("\x02") else ("\n", ".")
    system, text = writable(tokenizer, system)[:15], writable(tokenizer, text)
    template, values = TurnTemplate("chat", prompt_end, completion_end), turn("chat", prompt_end, completion_end)
    if tokenizer.unknown_characters(values["prefix"] + values["suffix"] + "system"):
        return
    head = template.message("system", system)

    def trained(messages: list[tuple[str, str]]) -> list[int]:
        spelled = head + "".join(template.message(*message) for message in messages) + template.answer_start
        return [*tokenizer.begin_ids, *tokenizer.encode(spelled).tolist()]

    conversation = Conversation(tokenizer, context, values["prefix"], values["suffix"], template, head)
    messages = [("user", writable(tokenizer, other)) for other in others] + [("user", text)]
    if len(trained([("user", "")])) > context:
        with pytest.raises(RequestError, match="even without its text"):
            conversation.say_messages(messages)
        assert conversation.text == ""
        return
    tokens = conversation.say_messages(messages).tokens
    kept = next((kept for i in range(len(messages)) if len(kept := trained(messages[i:])) <= context), None)
    expected = kept or fewest_dropped(text, lambda rest: trained([("user", rest)]), context)
    assert tokens == expected
    assert conversation.truncated == (tokens != trained(messages))
    answer = tokenizer.encode_part("12 " if not tokenizer.unknown_characters("12 ") else "a").tolist()
    conversation.answer(tokenizer.decode(answer), 0)
    answer += tokenizer.encode_part(tokenizer.decode(answer) + completion_end).tolist()[len(answer) :]
    if len(trained([("user", "")])) + len(answer) <= context:
        whole = conversation.continue_().tokens
        assert len(whole) <= context
        assert tokenizer.decode(whole[len(tokenizer.begin_ids) :]).startswith(head + values["prefix"])


@pytest.mark.parametrize("name", TEMPLATES)
@given(text=TEXTS, context=st.integers(60, 120), earlier=st.integers(0, 2))
def test_of_an_imported_chat_the_last_message_keeps_its_role_too(
    name: str, text: str, context: int, earlier: int
) -> None:
    tokenizer = foreign_tokenizer("bpe", chat_template=TEMPLATES[name].source)
    if len(encode_messages(tokenizer, [("user", "")])) > context:
        with pytest.raises(RequestError, match="even without its text"):
            TemplateConversation(tokenizer, context).say(text)
        return
    conversation = TemplateConversation(tokenizer, context)
    for number in range(earlier):
        conversation.say(f"{number}")
        conversation.answer("fine", 0)
    window = conversation.say(text)
    expected = fewest_dropped(text, lambda rest: encode_messages(tokenizer, [("user", rest)]), context)
    if len(encode_messages(tokenizer, [("user", text)])) > context or not earlier:
        assert window.tokens == expected
        assert conversation.truncated == (window.tokens != encode_messages(tokenizer, [("user", text)]) or earlier > 0)
    conversation.answer("It goes", 0)
    assert len(conversation.continue_().tokens) <= context


def test_the_oldest_of_many_messages_of_a_learned_chat_are_dropped_after_a_few_encodes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tokenizer, lengths = TOKENIZERS["byte"], []
    encode = type(tokenizer).encode

    def counting(self: Tokenizer, text: str, **options: Any) -> Any:
        lengths.append(len(text))
        return encode(self, text, **options)

    monkeypatch.setattr(type(tokenizer), "encode", counting)
    template, values = TurnTemplate("chat", "|", "."), turn("chat", "|", ".")
    messages = [("user", f"{i:03}" * 500) for i in range(500)]
    for context, expected in ((3100, messages[-2:]), (90, [("user", messages[-1][1][-74:])])):
        lengths.clear()
        conversation = Conversation(tokenizer, context, values["prefix"], values["suffix"], template)
        tokens = conversation.say_messages(messages).tokens
        assert bytes(tokens).decode() == "".join(template.message(*one) for one in expected) + template.answer_start
        assert len(lengths) <= 2 * math.log2(500 * 1500) + 32
        assert sum(lengths) <= 4 * 500 * 1500


@pytest.mark.parametrize(("form", "prefix"), [("pairs", ""), ("chat", "user|"), (None, "Q"), (None, "")])
def test_the_start_of_a_text_that_is_dropped_was_not_said(form: str | None, prefix: str) -> None:
    template = None if form is None else TurnTemplate(form, "|", ".")
    suffix = "A" if prefix else "|" if form else ""
    text = "x" * (12 - len(prefix + suffix))
    for answer, is_truncated in (None, False), ("0", True):
        conversation = Conversation(TOKENIZERS["byte"], 12, prefix, suffix, template)
        conversation.continue_()
        if answer is not None:
            conversation.answer(answer, 0)
        tokens = conversation.say(text if prefix or suffix or answer is None else text[1:]).tokens
        assert bytes(tokens).decode().endswith(text[1:] + suffix)
        assert (len(tokens), conversation.truncated) == (12, is_truncated)
        conversation.answer("0", 0)
        conversation.continue_()
        assert conversation.truncated


def test_an_answer_that_leaves_no_room_for_a_message_goes_on_by_its_end() -> None:
    conversation = Conversation(TOKENIZERS["byte"], 16, "Q", "A")
    conversation.say("x" * 30)
    conversation.answer("y" * 10, 0)
    assert bytes(conversation.continue_().tokens) == b"QxxxxA" + b"y" * 10
    conversation.answer("z" * 10, 0)
    assert bytes(conversation.continue_().tokens) == b"y" * 6 + b"z" * 10
    tokenizer = foreign_tokenizer("bpe", chat_template=TEMPLATES["Mistral"].source)
    imported = TemplateConversation(tokenizer, 60)
    imported.say("x" * 90)
    imported.answer("0" * 90, 0)
    assert imported.continue_().tokens == tokenizer.encode_part("0" * 90).tolist()[-60:]


def test_of_a_long_answer_after_which_an_imported_model_answers_again_the_end_is_seen_with_all_roles() -> None:
    tokenizer = foreign_tokenizer("bpe", chat_template=TEMPLATES["ChatML"].source)
    messages = [("user", "x" * 9), ("assistant", "0123456789" * 20)]
    shown = tokenizer.decode(TemplateConversation(tokenizer, 150).say_messages(messages).tokens)
    ends = [messages[1][1][first:] for first in range(201)]
    expected = (encode_messages(tokenizer, [("user", ""), ("assistant", end)]) for end in ends)
    assert shown == tokenizer.decode(next(tokens for tokens in expected if len(tokens) <= 150))
