"""From the texts and token lists of a request to the model's tokens, and from tokens to the texts of an answer."""

import asyncio
from collections.abc import Sequence
from typing import Any

from gpt_cli.errors import UserError
from gpt_cli.sampling.prompt import encode_prompt
from gpt_cli.serve.api_errors import ApiError
from gpt_cli.serve.model_registry import ServedModel


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
        lists = [prompt] if all(type(item) is int for item in prompt) else prompt
        if all(isinstance(item, list) and item and all(type(token) is int for token in item) for item in lists):
            return [check_tokens(model, item) for item in lists]
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


def token_text(model: ServedModel, token: int) -> str:
    """The display text of a token; `bytes:\\xe2` where it is a part of a character."""
    data = model.tokenizer.token_bytes(token)
    return bytes_text(data) if data else model.tokenizer.decode([token])


def bytes_text(data: bytes) -> str:
    """The display text of some bytes, as that of a token."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)
