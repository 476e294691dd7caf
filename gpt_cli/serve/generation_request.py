"""A request as prompts in tokens and `SamplingParams`, with the defaults of the run."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from gpt_cli.config.template import TurnTemplate
from gpt_cli.errors import UserError
from gpt_cli.sampling.conversation import Conversation
from gpt_cli.sampling.prompt import encode_prompt
from gpt_cli.sampling.sampling_params import SamplingOptions, SamplingParams, random_seed
from gpt_cli.serve.api_errors import ApiError, to_api_error
from gpt_cli.serve.limits import Limits
from gpt_cli.serve.model_registry import ServedModel
from gpt_cli.serve.request_schemas import GenerationFields, Message

if TYPE_CHECKING:
    from gpt_cli.sampling.logits_processors import ProcessorFactory
    from gpt_cli.serve.token_sampling import Penalties

_SAME = ("max_tokens", "temperature", "top_p", "seed", "typical_p", "repetition_penalty", "min_new_tokens", "regex")
_OR_OFF = ("top_k", "min_p", "no_repeat_ngram", "forbid", "allow")  # 0, or no characters, switch it off
_RENAMED = {"max_tokens": "max_new_tokens"}


@dataclass(frozen=True)
class GenerationRequest:
    """A request, resolved: `n` texts of each prompt."""

    model: ServedModel
    prompts: list[list[int]]
    sampling: SamplingParams
    n: int
    penalties: "Penalties | None" = None
    book: "ProcessorFactory | None" = None


async def make_generation_request(
    model: ServedModel, prompts: list[list[int]], asked: GenerationFields, limits: Limits, max_tokens: int | None = None
) -> GenerationRequest:
    """The order that a request is. Raises ApiError for what is beyond the limits, or contradicts itself."""
    n = asked.n or 1
    _within("n", n, limits.n)
    _within("the texts of a request, prompts times n,", n * len(prompts), limits.texts, param="n")
    sampling = _sampling(model, asked, max_tokens)
    given = asked.max_tokens is not None or max_tokens is not None
    if sampling.max_new_tokens > limits.max_tokens and not given:  # the run's own default
        sampling = replace(sampling, max_new_tokens=limits.max_tokens)
    _within("max_tokens", sampling.max_new_tokens, limits.max_tokens)
    for tokens in prompts:
        _within("the tokens of prompt", len(tokens), limits.prompt_tokens, param="prompt")
    order = GenerationRequest(model, prompts, sampling, n)
    presence, frequency = asked.presence_penalty or 0.0, asked.frequency_penalty or 0.0
    if not (presence or frequency or model.engine.needs_processors(sampling)) or sampling.max_new_tokens == 0:
        return order
    return await asyncio.to_thread(_with_rules, order, presence, frequency)


def _with_rules(order: GenerationRequest, presence: float, frequency: float) -> GenerationRequest:
    from gpt_cli.sampling.logits_processors import ProcessorFactory  # noqa: PLC0415 - they import torch
    from gpt_cli.serve.token_sampling import Penalties  # noqa: PLC0415

    try:
        book = ProcessorFactory(order.model.tokenizer, order.sampling)
    except UserError as error:
        raise to_api_error(error) from None
    except RecursionError:
        raise ApiError(400, "regex: it is nested too deeply", param="regex") from None
    return replace(order, penalties=Penalties(presence, frequency), book=book)


def _sampling(model: ServedModel, asked: GenerationFields, max_tokens: int | None) -> SamplingParams:
    values: dict[str, Any] = {}
    for name in (*_SAME, *_OR_OFF):
        value = getattr(asked, name)
        if value is not None:
            values[_RENAMED.get(name, name)] = value or None if name in _OR_OFF else value
    if max_tokens is not None:
        values["max_new_tokens"] = max_tokens
    if asked.stop is not None:
        values["stop"] = asked.stop
    if asked.choices is not None:
        values["choices"] = asked.choices
    if asked.logit_bias is not None:
        values["logit_bias"] = [(_token(model, name), value) for name, value in asked.logit_bias.items()]
    options: SamplingOptions = values  # type: ignore[assignment]
    try:
        defaults = SamplingParams.from_config(model.defaults, random_seed())
        defaults = replace(defaults, beams=None, penalty_alpha=None)  # tokens are drawn here
        return defaults.replace(options)
    except UserError as error:
        raise to_api_error(error) from None


def _token(model: ServedModel, name: str) -> int:
    if not (name.isascii() and name.isdigit() and len(name) < 10 and int(name) < model.tokenizer.vocab_size):
        raise ApiError(400, f"logit_bias: there is no token {name[:20]!r}; a token is its id", param="logit_bias")
    return int(name)


async def encode_prompts(model: ServedModel, prompt: Any) -> list[list[int]]:
    """A text, a list of texts, tokens, or a list of those: the tokens of each prompt. Raises ApiError."""
    return await asyncio.to_thread(_encode, model, prompt)


def _encode(model: ServedModel, prompt: Any) -> list[list[int]]:
    if isinstance(prompt, str):
        return [encode(model, prompt)]
    if isinstance(prompt, list) and prompt:
        if all(isinstance(one, str) for one in prompt):
            return [encode(model, one) for one in prompt]
        if all(type(one) is int for one in prompt):
            return [known_tokens(model, prompt)]
        if all(isinstance(one, list) and one and all(type(token) is int for token in one) for one in prompt):
            return [known_tokens(model, one) for one in prompt]
    raise ApiError(
        400,
        "prompt must be a text, a list of texts, a list of tokens, or a list of those, none of them empty",
        param="prompt",
        code="invalid_parameter",
    )


def encode(model: ServedModel, text: str) -> list[int]:
    """The tokens of a prompt. Raises ApiError for characters that the vocabulary lacks."""
    try:
        return encode_prompt(model.tokenizer, text)
    except UserError as error:
        raise ApiError(400, error.message, param="prompt", code="unknown_characters") from None


def known_tokens(model: ServedModel, tokens: Sequence[int]) -> list[int]:
    """`tokens`, if the vocabulary has them all. Raises ApiError."""
    size = model.tokenizer.vocab_size
    for token in tokens:
        if not 0 <= token < size:
            shown = str(token)[:20] if abs(token) < 10**18 else "so large"
            raise ApiError(400, f"prompt: there is no token {shown} in a vocabulary of {size:,}", param="prompt")
    return list(tokens)


def encode_chat(model: ServedModel, messages: Sequence[Message]) -> list[int]:
    """The messages as the tokens that `gpt chat` would have the model continue: see docs/howto/serve.md.

    A turn is `sample.prefix` of the run's config, what the user says, `sample.suffix`, and the answer; turns stand on
    lines of their own. What the system says is a line before them. Raises ApiError.
    """
    template = TurnTemplate.of(model.config.data)
    talk = Conversation(model.tokenizer, model.context_length, model.defaults.prefix, model.defaults.suffix, template)
    before: list[str] = []
    seen: list[int] = []
    try:
        for message in messages:
            if message.role in ("system", "developer"):
                before.append(message.text)
            elif message.role == "user":
                seen = talk.say(message.text).tokens
            else:
                if not talk.text:
                    talk.continue_()
                talk.answer(message.text, 0)
        if messages[-1].role != "user":
            seen = talk.continue_().tokens
        if template is not None and template.is_chat:
            head = [token for text in before for token in encode(model, template.system(text))]
        else:
            head = encode(model, "\n".join(before) + "\n") if before else []
    except UserError as error:
        raise ApiError(400, error.message, param="messages", code="unknown_characters") from None
    return (head + seen)[-model.context_length :]


def _within(what: str, value: int, limit: int, param: str | None = None) -> None:
    if value > limit:
        raise ApiError(
            400, f"{what} must be at most {limit:,} here, not {value}", param=param or what, code="limit_exceeded"
        )
