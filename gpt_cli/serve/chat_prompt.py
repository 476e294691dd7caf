"""Encode the messages of a chat in the chat template of the model."""

from collections.abc import Sequence
from itertools import takewhile

from gpt_cli.corpus.turn_template import TurnTemplate, refuse_marks
from gpt_cli.errors import UserError
from gpt_cli.sampling.chat_template import TemplateConversation, TemplateMessage, imported_template
from gpt_cli.sampling.conversation import Conversation
from gpt_cli.serve.api_errors import ApiError
from gpt_cli.serve.chat_schemas import Message
from gpt_cli.serve.encoding import encode
from gpt_cli.serve.model_registry import ServedModel
from gpt_cli.serve.tools import CallFormat, ToolChoice
from gpt_cli.tokenizer import ForeignTokenizer, UnknownCharacters


def encode_chat(
    model: ServedModel, messages: Sequence[Message], tools: ToolChoice | None = None
) -> tuple[list[int], bool]:
    """(the messages in the chat template of `gpt chat`, as tokens; whether any of them was dropped or shortened to fit
    into the context): see docs/howto/serve.md.

    An imported model has its own, which may describe `tools`. Of a run that learned chats each message has its role, in
    their order. Else a turn is `sample.prefix` of the run's config, the user's message, `sample.suffix`, and the
    assistant's message, on a line of its own, and system messages are lines before the turns. What a tool returned is a
    user's message for models that were not imported. Raises ApiError.
    """
    template = TurnTemplate.of(model.config.data)
    form, imported = CallFormat.of(model.tokenizer), imported_template(model.config, model.tokenizer)
    roles = {"developer": "system"} | ({} if imported else {"tool": "user"})
    try:
        if imported is not None:
            turns = [TemplateMessage(roles.get(one.role, one.role), one.text, one.fields) for one in messages]
            return _encode_imported_chat(imported, model.context_length, turns, tools)
        spelled = [(roles.get(one.role, one.role), one.spell(form)) for one in messages]
        if template is not None and template.is_chat:
            return _encode_learned_chat(model, spelled, template)
        return _encode_turns(model, spelled, template)
    except UserError as error:
        code = "unknown_characters" if isinstance(error, UnknownCharacters) else "invalid_parameter"
        raise ApiError(400, error.message, param="messages", code=code) from None


def _encode_learned_chat(
    model: ServedModel, messages: Sequence[tuple[str, str]], template: TurnTemplate
) -> tuple[list[int], bool]:
    prefix, suffix = model.defaults.prefix, model.defaults.suffix
    system = list(takewhile(lambda message: message[0] == "system", messages))
    for _, text in system:
        refuse_marks(text, prefix, suffix)
    head = _checked_head(model, "".join(template.message(*message) for message in system))
    conversation = Conversation(model.tokenizer, model.context_length, prefix, suffix, template, head)
    unanswered: list[tuple[str, str]] = []
    for role, text in messages[len(system) :]:
        if role == "assistant":
            conversation.say_messages(unanswered)
            conversation.answer(text, 0)
            unanswered = []
        else:
            unanswered.append((role, text))
    return conversation.say_messages(unanswered).tokens, conversation.truncated


def _encode_imported_chat(
    tokenizer: ForeignTokenizer,
    context_length: int,
    messages: Sequence[TemplateMessage],
    tools: ToolChoice | None,
) -> tuple[list[int], bool]:
    system = messages[0].text if messages[0].role == "system" else None
    described = None if tools is None else tools.described
    conversation = TemplateConversation(tokenizer, context_length, system, described)
    return conversation.say_messages(messages[system is not None :]).tokens, conversation.truncated


def _encode_turns(
    model: ServedModel, messages: Sequence[tuple[str, str]], template: TurnTemplate | None
) -> tuple[list[int], bool]:
    newline = "" if model.tokenizer.unknown_characters("\n") else "\n"
    system = [text for role, text in messages if role == "system"]
    head = _checked_head(model, "".join(text + newline for text in system))
    prefix, suffix = model.defaults.prefix, model.defaults.suffix
    conversation = Conversation(model.tokenizer, model.context_length, prefix, suffix, template, head)
    tokens: list[int] = []
    for role, text in messages:
        if role == "user":
            tokens = conversation.say(text).tokens
        elif role == "assistant":
            if not conversation.text:
                conversation.continue_()
            conversation.answer(text, 0)
    if messages[-1][0] != "user":
        tokens = conversation.continue_().tokens
    return tokens, conversation.truncated


def _checked_head(model: ServedModel, head: str) -> str:
    """`head`, the text of what the system says. Raises ApiError if it leaves the turns too little room."""
    n_token = len(encode(model, head, "messages")) if head else 0
    if n_token > max(1, model.context_length // 2):
        message = (
            f"messages: what the system says has {n_token:,} tokens,"
            f" more than half of the context of {model.context_length:,}"
        )
        raise ApiError(400, message, param="messages", code="context_length_exceeded")
    return head
