"""Resolves a request's body to prompts in tokens and `SamplingParams`, with the run's defaults."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from gpt_cli.config.template import TurnTemplate, refuse_marks
from gpt_cli.errors import UserError
from gpt_cli.sampling.chat_template import TemplateConversation, imported_template
from gpt_cli.sampling.constraint import compile_constraint
from gpt_cli.sampling.conversation import Conversation
from gpt_cli.sampling.prompt import encode_prompt
from gpt_cli.sampling.sampling_params import CONSTRAINTS, SamplingOptions, SamplingParams, random_seed
from gpt_cli.sampling.text_stream import first_samples
from gpt_cli.serve.api_errors import ApiError, to_api_error
from gpt_cli.serve.chat_schemas import Message
from gpt_cli.serve.limits import Limits
from gpt_cli.serve.model_registry import ServedModel
from gpt_cli.serve.request_schemas import SamplingFields
from gpt_cli.serve.tools import CallFormat, ToolChoice, check_tools
from gpt_cli.tokenizer import ForeignTokenizer, UnknownCharacters

if TYPE_CHECKING:
    from gpt_cli.sampling.constraint import Constraint
    from gpt_cli.sampling.logits_processors import ProcessorFactory
    from gpt_cli.sampling.repetition import Penalties


_COMPILER = ThreadPoolExecutor(1, "gpt-serve-compiler")
"""Of constraints, which may take a second each: those of one client hold up no request without."""


@dataclass(frozen=True)
class GenerationRequest:
    """A resolved request: `n` sequences for each prompt."""

    model: ServedModel
    prompts: list[list[int]]
    sampling: SamplingParams
    n: int
    truncated: bool = False
    """True if the model does not see all of a prompt."""
    penalties: "Penalties | None" = None
    processor_factory: "ProcessorFactory | None" = None
    constraint: "Constraint | None" = None
    """Of a request without processors."""
    plain_text: bool = False
    """The prompts are texts that may end anywhere: `sampling.heal` counts."""
    tools: ToolChoice | None = None
    """The tools that the answer may call."""

    @property
    def sequences(self) -> list[tuple[list[int], int]]:
        """The prompt of each sequence, and the number of the sample that continues it."""
        firsts = first_samples(self.prompts, self.n)
        return [(prompt, first + i) for prompt, first in zip(self.prompts, firsts, strict=True) for i in range(self.n)]


async def make_generation_request(
    model: ServedModel,
    prompts: list[list[int]],
    body: SamplingFields,
    limits: Limits,
    *,
    n: int = 1,
    plain_text: bool = False,
    truncated: bool = False,
    tools: ToolChoice | None = None,
) -> GenerationRequest:
    """Resolve a request's body, of which `prompts` are `truncated` or longer than the context.

    Raises ApiError for values beyond the limits, or that exclude each other.
    """
    _check_limit("n", n, limits.n)
    _check_limit("the texts of a request, prompts times n,", n * len(prompts), limits.texts, param="n")
    sampling = _sampling(model, body, tools)
    if sampling.max_new_tokens > limits.max_tokens and "max_new_tokens" not in body.sampling_options():
        sampling = replace(sampling, max_new_tokens=limits.max_tokens)  # the run's default
    _check_limit(body.length_field, sampling.max_new_tokens, limits.max_tokens)
    if body.min_new_tokens is not None and body.min_new_tokens > sampling.max_new_tokens:
        message = f"min_new_tokens is {body.min_new_tokens:,}, and {body.length_field} {sampling.max_new_tokens:,}"
        raise ApiError(400, message, param="min_new_tokens")
    for tokens in prompts:
        _check_limit("the tokens of prompt", len(tokens), limits.prompt_tokens, param="prompt")
    truncated = truncated or any(len(tokens) > model.context_length for tokens in prompts)
    request = GenerationRequest(model, prompts, sampling, n, truncated, plain_text=plain_text, tools=tools)
    presence, frequency = body.presence_penalty or 0.0, body.frequency_penalty or 0.0
    processed = presence or frequency or model.engine.needs_processors(sampling)
    if not (processed or sampling.constraint) or sampling.max_new_tokens == 0:
        return request
    penalties = (presence, frequency) if processed else None
    compiling = asyncio.get_running_loop().run_in_executor(_COMPILER, _compiled, request, penalties)
    try:
        return await asyncio.wait_for(compiling, limits.seconds)
    except UserError as error:
        refusal = to_api_error(error)
        if (constraint := body.constraint()) is not None:
            refusal.param = constraint[0]
        raise refusal from None
    except TimeoutError:
        raise ApiError(504, f"the text was not begun after {limits.seconds:g} s", code="timeout") from None


def _compiled(request: GenerationRequest, penalties: tuple[float, float] | None) -> GenerationRequest:
    """`request` with its constraint: among logits processors, with these presence and frequency penalties, if given."""
    tokenizer = request.model.tokenizer
    if request.tools is not None:
        check_tools(request.tools.tools, tokenizer)
    if penalties is None:
        return replace(request, constraint=compile_constraint(tokenizer, request.sampling))

    from gpt_cli.sampling.logits_processors import ProcessorFactory  # noqa: PLC0415 - they import torch
    from gpt_cli.sampling.repetition import Penalties  # noqa: PLC0415

    given = Penalties(*penalties)
    factory = ProcessorFactory(tokenizer, request.sampling, given)
    return replace(request, penalties=given, processor_factory=factory)


def _sampling(model: ServedModel, body: SamplingFields, tools: ToolChoice | None) -> SamplingParams:
    values = body.sampling_options()
    if tools is not None and any(name in values for name in CONSTRAINTS):
        raise ApiError(
            400, "a format of the text does not go with tools; tool_choice none leaves them out", param="tools"
        )
    if tools is not None:
        values["grammar"] = CallFormat.of(model.tokenizer).grammar(tools)
    if "choices" in values:
        values["choices"] = _known_choices(model, values["choices"])
    if body.logit_bias is not None:
        values["logit_bias"] = [(_parse_token_id(model, name), value) for name, value in body.logit_bias.items()]
    options: SamplingOptions = values  # type: ignore[assignment]
    try:
        drawn = model.defaults.model_copy(update={"beams": None})  # the server has no search
        return SamplingParams.from_config(drawn, random_seed()).replace(options)
    except UserError as error:
        raise to_api_error(error) from None


def _known_choices(model: ServedModel, choices: list[str]) -> list[str]:
    for choice in choices:
        if missing := model.tokenizer.unknown_characters(choice):
            message = f"choices: {choice[:50]!r} has characters that the vocabulary lacks: {''.join(missing)[:50]}"
            raise ApiError(400, message, param="choices", code="unknown_characters")
    return choices


def _parse_token_id(model: ServedModel, name: str) -> int:
    size = model.tokenizer.vocab_size
    if not (name.isascii() and name.isdigit()):
        raise ApiError(400, f"logit_bias: there is no token {name[:20]!r}; a token is its id", param="logit_bias")
    if len(name) > 9 or int(name) >= size:
        message = f"logit_bias: there is no id {name[:20]} in a vocabulary of {size:,}"
        raise ApiError(400, message, param="logit_bias")
    return int(name)


async def encode_prompts(model: ServedModel, prompt: Any, *, parse_special: bool = False) -> list[list[int]]:
    """The tokens of each prompt. `prompt` is a text, a list of texts, a list of tokens, or a list of those; None is "".

    With `parse_special` a text may name special tokens. Raises ApiError for anything else.
    """
    return await asyncio.to_thread(_encode_prompts, model, prompt, parse_special)


def _encode_prompts(model: ServedModel, prompt: Any, parse_special: bool) -> list[list[int]]:
    if prompt is None or isinstance(prompt, str):
        return [encode(model, prompt or "", parse_special=parse_special)]
    if isinstance(prompt, list) and prompt:
        if all(isinstance(item, str) for item in prompt):
            texts = ((f"prompt {number}: ", item) for number, item in enumerate(prompt, 1))
            return [encode(model, item, place=place, parse_special=parse_special) for place, item in texts]
        if all(type(item) is int for item in prompt):
            return [check_tokens(model, prompt)]
        if all(isinstance(item, list) and item and all(type(token) is int for token in item) for item in prompt):
            return [check_tokens(model, item) for item in prompt]
    raise ApiError(
        400,
        "prompt must be a text, a list of texts, a list of tokens, or a list of those, none of them empty",
        param="prompt",
        code="invalid_parameter",
    )


def is_plain_text(model: ServedModel, prompt: Any) -> bool:
    """True if `prompt`, as `encode_prompts` takes it, is text, and the model was trained on plain text."""
    first = prompt[0] if isinstance(prompt, list) else prompt
    return model.config.data.format == "text" and (first is None or isinstance(first, str))


def encode(
    model: ServedModel, text: str, param: str = "prompt", place: str = "", *, parse_special: bool = False
) -> list[int]:
    """The tokens of a prompt, or of another `param`. Raises ApiError for characters that the vocabulary lacks.

    Its message begins with the `place`, where there is one.
    """
    try:
        return encode_prompt(model.tokenizer, text, parse_special=parse_special)
    except UserError as error:
        raise ApiError(400, place + error.message, param=param, code="unknown_characters") from None


def check_tokens(model: ServedModel, tokens: Sequence[int], param: str = "prompt") -> list[int]:
    """`tokens`, of `param`, as a list. Raises ApiError for one that is not in the vocabulary."""
    size = model.tokenizer.vocab_size
    for token in tokens:
        if not 0 <= token < size:
            displayed = str(token)[:20] if abs(token) < 10**18 else "so large"
            raise ApiError(400, f"{param}: there is no token {displayed} in a vocabulary of {size:,}", param=param)
    return list(tokens)


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
    spelled = [(roles.get(one.role, one.role), one.spell(form)) for one in messages]
    try:
        if imported is not None:
            return _encode_imported_chat(imported, model.context_length, spelled, tools)
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
    messages: Sequence[tuple[str, str]],
    tools: ToolChoice | None,
) -> tuple[list[int], bool]:
    system = messages[0][1] if messages[0][0] == "system" else None
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


def _check_limit(name: str, value: int, limit: int, param: str | None = None) -> None:
    if value > limit:
        raise ApiError(
            400, f"{name} must be at most {limit:,} here, not {value}", param=param or name, code="limit_exceeded"
        )
