"""Chat templates of imported models: rendered in a sandbox, a few times only, with one error where they fail."""

import math
from typing import Any

import pytest

from gpt_cli.errors import RequestError
from gpt_cli.sampling import chat_template
from gpt_cli.sampling.chat_template import TemplateConversation, TemplateMessage, encode_messages
from gpt_cli.sampling.conversation import Conversation
from gpt_cli.tokenizer import ForeignTokenizer
from tests.support.foreign_gguf import foreign_tokenizer

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{{ m.role + ': ' + m.content + eos_token }}{% endfor %}{{ 'assistant: ' }}"
)


def tokenizer_with(template: str) -> ForeignTokenizer:
    return foreign_tokenizer("bpe", chat_template=template)


def shown(tokens: list[int]) -> str:
    return tokenizer_with(TEMPLATE).decode(tokens)


def test_a_conversation_is_the_template_of_all_its_messages():
    conversation = TemplateConversation(tokenizer_with(TEMPLATE), 200, "be brief")
    conversation.say("hi")
    conversation.answer("hello", 1)
    window = conversation.say("bye")
    messages = [("system", "be brief"), ("user", "hi"), ("assistant", "hello"), ("user", "bye")]
    assert window.tokens == encode_messages(tokenizer_with(TEMPLATE), messages)
    assert shown(window.tokens).startswith("<s>system: be brief</s>user: hi</s>")


def test_the_oldest_turns_are_dropped_and_the_system_message_and_the_begin_token_stay():
    conversation = TemplateConversation(tokenizer_with(TEMPLATE), 90, "S")
    dropped = 0
    for number in range(6):
        window = conversation.say(f"question {number}")
        conversation.answer("fine", number)
        dropped += window.dropped_turns
        text = shown(window.tokens)
        assert len(window.tokens) <= 90
        assert text.startswith("<s>system: S</s>user: question")
        assert text.endswith(f"user: question {number}</s>assistant: ")
    assert 0 < dropped < 6


def test_a_long_conversation_is_rendered_a_few_times_only(monkeypatch: pytest.MonkeyPatch):
    rendered = []

    def counting(tokenizer: Any, messages: Any, tools: Any = None) -> list[int]:
        rendered.append(len(messages))
        return encode_messages(tokenizer, messages, tools)

    monkeypatch.setattr(chat_template, "encode_messages", counting)
    messages = [("user" if i % 2 == 0 else "assistant", f"message {i}") for i in range(401)]
    window = TemplateConversation(tokenizer_with(TEMPLATE), 100).say_messages(messages)
    assert shown(window.tokens).endswith("message 400</s>assistant: ")
    assert len(rendered) <= 10


LONG = [("user", "x" * 500)] + [("assistant" if i % 2 else "system", f"{i:03} " * 125) for i in range(249)]
FEW = 2 * math.log2(len(LONG) * 500) + 32  # a bisection of messages, of characters, and those nearby


def counted(monkeypatch: pytest.MonkeyPatch, template: str) -> tuple[ForeignTokenizer, list[int]]:
    """A tokenizer, and the lengths of the texts that it encodes, as they come."""
    tokenizer, lengths = tokenizer_with(template), []
    encode = ForeignTokenizer.encode_chat

    def counting(self: ForeignTokenizer, rendered: str) -> Any:
        lengths.append(len(rendered))
        return encode(self, rendered)

    monkeypatch.setattr(ForeignTokenizer, "encode_chat", counting)
    return tokenizer, lengths


def test_the_oldest_messages_of_a_long_turn_are_emptied_after_a_few_tries(monkeypatch: pytest.MonkeyPatch):
    tokenizer, lengths = counted(monkeypatch, "{% for m in messages %}{{ m.role[0] + m.content + '|' }}{% endfor %}")
    with pytest.raises(RequestError, match="even without its text"):
        TemplateConversation(tokenizer, 64).say_messages(LONG)
    assert len(lengths) <= 4
    lengths.clear()
    window = TemplateConversation(tokenizer, 1200).say_messages(LONG)
    assert len(lengths) <= FEW
    assert sum(lengths) <= 4 * len(LONG) * 500
    text = tokenizer.decode(window.tokens)
    assert len(window.tokens) <= 1200
    assert [piece[0] for piece in text.split("|")[:-1]] == [role[0] for role, _ in LONG]
    assert text.endswith("s" + LONG[-1][1] + "|")


def test_messages_before_an_answer_that_leaves_no_room_are_rendered_a_few_times_only(monkeypatch: pytest.MonkeyPatch):
    tokenizer, lengths = counted(monkeypatch, TEMPLATE)
    conversation = TemplateConversation(tokenizer, 64)
    conversation._messages = [TemplateMessage(*message) for message in (*LONG, ("assistant", "0" * 500))]
    assert conversation.continue_().tokens == tokenizer.encode_part("0" * 500).tolist()[-64:]
    assert len(lengths) <= 4


NOT_EMPTY = "{% for m in messages %}{% if not m.content|trim %}{{ raise_exception('empty content') }}{% endif %}"


@pytest.mark.parametrize("text", ["0123456789" * 20, "0123456789" * 20 + "\n"])
def test_where_a_template_refuses_empty_messages_a_character_of_each_stays(text: str):
    tokenizer = tokenizer_with(f"{NOT_EMPTY}{{{{ m.role[0] + m.content|trim + '|' }}}}{{% endfor %}}")
    messages = [("user", "abc"), ("assistant", text), ("system", "yz")]

    def seen(context: int) -> str:
        window = TemplateConversation(tokenizer, context).say_messages(messages)
        assert len(window.tokens) <= context
        return tokenizer.decode(window.tokens)

    least = encode_messages(tokenizer, [("user", "c"), ("assistant", "9"), ("system", "z")])
    assert seen(len(least)) == tokenizer.decode(least)
    more = encode_messages(tokenizer, [("user", "c"), ("assistant", "6789"), ("system", "yz")])
    assert seen(len(more)) == tokenizer.decode(more)
    with pytest.raises(RequestError, match="even without its text"):
        seen(len(least) - 1)


def test_a_message_of_which_the_template_takes_no_part_does_not_fit():
    template = "{% if messages[0].content != 'x' * 99 %}{{ raise_exception('other') }}{% endif %}{{ 'x' * 99 }}"
    with pytest.raises(RequestError, match=r"and the context 9$"):
        TemplateConversation(tokenizer_with(template), 9).say("x" * 99)


def test_an_answer_that_goes_on_is_one_message():
    conversation = TemplateConversation(tokenizer_with(TEMPLATE), 200)
    conversation.say("hi")
    conversation.answer("It tr", 1)
    assert shown(conversation.continue_().tokens).endswith("assistant: It tr")
    conversation.answer("ains", 2)
    assert shown(conversation.say("and?").tokens).count("It trains</s>") == 1


@pytest.mark.parametrize(
    "template",
    [
        "{% for",
        "{{ raise_exception('roles must alternate') }}",
        "{{ messages[9].content }}{{ 1 // 0 }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ 'a' * 10**11 }}",
        "{{ cycler() }}",
        "{{ ''.__class__.__mro__ }}{{ undefined.x }}",
        "".join("{% for a in messages %}" for _ in range(30)) + "{% endfor %}" * 30,
        "{{ '' }}",
    ],
)
def test_a_template_that_fails_or_writes_nothing_is_one_error(template):
    with pytest.raises(RequestError, match="chat template"):
        encode_messages(foreign_tokenizer("bpe", chat_template=template, named=()), [("user", "hi")])


def test_turns_that_a_run_learned_keep_the_begin_token_when_the_first_ones_are_dropped():
    tokenizer = foreign_tokenizer("bpe")
    conversation = Conversation(tokenizer, 40, "Q", "A")
    for number in range(5):
        window = conversation.say(f"question {number}")
        conversation.answer("fine", number)
        assert window.tokens[: len(tokenizer.begin_ids)] == list(tokenizer.begin_ids)
        assert window.tokens.count(tokenizer.begin_ids[0]) == 1
    assert window.dropped_turns
