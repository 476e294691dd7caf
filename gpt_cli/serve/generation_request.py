"""Resolve a request's body to `SamplingParams`, with the run's defaults, and to the rules that its tokens follow."""

import asyncio
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from gpt_cli.errors import UserError
from gpt_cli.sampling.constraint import Constraint, compile_constraint
from gpt_cli.sampling.heal import PromptHealer, make_healer
from gpt_cli.sampling.sampling_params import CONSTRAINTS, SamplingOptions, SamplingParams, random_seed
from gpt_cli.serve.api_errors import ApiError, to_api_error
from gpt_cli.serve.limits import Limits, check_limit
from gpt_cli.serve.model_registry import ServedModel
from gpt_cli.serve.request_schemas import SamplingFields
from gpt_cli.serve.tools import CallFormat, ToolChoice, check_tools
from gpt_cli.tokenizer import Tokenizer

if TYPE_CHECKING:
    from gpt_cli.sampling.logits_processors import ProcessorFactory


_COMPILER = ThreadPoolExecutor(1, "gpt-serve-compiler")
"""Of constraints, which may take a second each: those of one client hold up no request without."""


@dataclass(frozen=True)
class GenerationRequest:
    """A resolved request: `n` sequences for each prompt."""

    model: ServedModel
    prompts: Sequence[list[int]]
    sampling: SamplingParams
    n: int = 1
    n_top: int | None = None
    """The number of alternatives to report for each token. None: no log-probabilities at all."""
    echo: bool = False
    """True if each text follows its prompt."""
    streamed: bool = True
    """False: a whole text is one delta at the end."""
    plain_text: bool = False
    """True if the prompts are texts that may end anywhere: `sampling.heal` counts."""
    truncated: bool = False
    """True if the model does not see all of a prompt."""
    tools: ToolChoice | None = None
    """The tools that the answer may call."""
    rules: "ProcessorFactory | Constraint | None" = field(default=None, repr=False)
    """The logits processors, with the constraint among them, or a constraint alone, which every engine has."""
    penalized: bool = False
    """True if there are presence or frequency penalties among the processors."""
    deadline: float = float("inf")
    """A time of `time.monotonic`."""

    @cached_property
    def healer(self) -> PromptHealer | None:
        """Draws the ends of prompts anew. None: they stay as they are."""
        model = self.model
        if not self.plain_text:
            return None
        return make_healer(model.tokenizer, self.sampling, model.engine.next_logits, self.rules)


async def make_generation_request(
    model: ServedModel,
    prompts: Sequence[list[int]],
    body: SamplingFields,
    limits: Limits,
    *,
    n: int = 1,
    n_top: int | None = None,
    echo: bool = False,
    plain_text: bool = False,
    truncated: bool = False,
    tools: ToolChoice | None = None,
) -> GenerationRequest:
    """Resolve a request's body, of which `prompts` are `truncated` or longer than the context.

    Raises ApiError for values beyond the limits, or that exclude each other.
    """
    check_limit("n", n, limits.n)
    check_limit("the texts of a request, prompts times n,", n * len(prompts), limits.texts, param="n")
    sampling = _sampling(model, body, limits, tools)
    for tokens in prompts:
        check_limit("the tokens of prompt", len(tokens), limits.prompt_tokens, param="prompt")
    penalties = body.presence_penalty or 0.0, body.frequency_penalty or 0.0
    processed = any(penalties) or model.engine.needs_processors(sampling)
    rules: ProcessorFactory | Constraint | None = None
    if (processed or sampling.constraint) and sampling.max_new_tokens > 0:
        executor = None if sampling.constraint is None else _COMPILER
        compiling = asyncio.get_running_loop().run_in_executor(
            executor, _compile_rules, model.tokenizer, sampling, penalties if processed else None, tools
        )
        try:
            rules = await asyncio.wait_for(compiling, limits.seconds)
        except UserError as error:
            constraint = body.constraint()
            raise to_api_error(error, None if constraint is None else constraint[0]) from None
        except TimeoutError:
            raise ApiError(504, f"the text was not begun after {limits.seconds:g} s", code="timeout") from None
    return GenerationRequest(
        model,
        prompts,
        sampling,
        n,
        n_top=n_top,
        echo=echo,
        streamed=bool(body.stream),
        plain_text=plain_text,
        truncated=truncated or any(len(tokens) > model.context_length for tokens in prompts),
        tools=tools,
        rules=rules,
        penalized=any(penalties),
        deadline=time.monotonic() + limits.seconds,
    )


def _compile_rules(
    tokenizer: Tokenizer, sampling: SamplingParams, penalties: tuple[float, float] | None, tools: ToolChoice | None
) -> "ProcessorFactory | Constraint | None":
    """The logits processors with these presence and frequency penalties; without penalties the constraint alone."""
    if tools is not None:
        check_tools(tools, tokenizer)
    if penalties is None:
        return compile_constraint(tokenizer, sampling)

    from gpt_cli.sampling.logits_processors import Penalties, ProcessorFactory  # noqa: PLC0415 - it imports torch

    return ProcessorFactory(tokenizer, sampling, Penalties(*penalties))


def _sampling(model: ServedModel, body: SamplingFields, limits: Limits, tools: ToolChoice | None) -> SamplingParams:
    values = body.sampling_options()
    if tools is not None and any(name in values for name in CONSTRAINTS):
        raise ApiError(
            400, "a format of the text does not go with tools; tool_choice none leaves them out", param="tools"
        )
    if tools is not None:
        values["grammar"] = CallFormat.of(model.tokenizer).grammar(tools)
    for choice in values.get("choices", ()):
        if missing := model.tokenizer.unknown_characters(choice):
            field, *_ = body.constraint() or ("choices",)
            message = f"{field}: {choice[:50]!r} has characters that the vocabulary lacks: {''.join(missing)[:50]}"
            raise ApiError(400, message, param=field, code="unknown_characters")
    if body.logit_bias is not None:
        values["logit_bias"] = [(_parse_token_id(model, name), value) for name, value in body.logit_bias.items()]
    options: SamplingOptions = values  # type: ignore[assignment]
    try:
        drawn = model.defaults.model_copy(update={"beams": None})  # the server has no search
        sampling = SamplingParams.from_config(drawn, random_seed()).replace(options)
    except UserError as error:
        raise to_api_error(error) from None
    if "max_new_tokens" not in values:
        sampling = replace(sampling, max_new_tokens=min(sampling.max_new_tokens, limits.max_tokens))
    check_limit(body.length_field, sampling.max_new_tokens, limits.max_tokens)
    if body.min_new_tokens is not None and body.min_new_tokens > sampling.max_new_tokens:
        message = f"min_new_tokens is {body.min_new_tokens:,}, and {body.length_field} {sampling.max_new_tokens:,}"
        raise ApiError(400, message, param="min_new_tokens")
    return sampling


def _parse_token_id(model: ServedModel, name: str) -> int:
    size = model.tokenizer.vocab_size
    if not (name.isascii() and name.isdigit()):
        raise ApiError(400, f"logit_bias: there is no token {name[:20]!r}; a token is its id", param="logit_bias")
    if len(name) > 9 or int(name) >= size:
        message = f"logit_bias: there is no id {name[:20]} in a vocabulary of {size:,}"
        raise ApiError(400, message, param="logit_bias")
    return int(name)
