"""Each option of `SamplingParams` is known to the config, the command line, chats and the server, or listed here.

Its range, its default and its off value are those of `SamplingParams` everywhere.
"""

import inspect
import math
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from gpt_cli.cli import repl
from gpt_cli.cli.options.sampling_options import DRAWS
from gpt_cli.cli.verbs.chat import chat
from gpt_cli.cli.verbs.sample import sample
from gpt_cli.config import SampleConfig
from gpt_cli.errors import RequestError
from gpt_cli.literals import INT32_MAX
from gpt_cli.sampling import SamplingOptions, SamplingParams, filters
from gpt_cli.sampling.sampling_params import CONSTRAINTS

OPTIONS = {option.name: option for option in fields(SamplingParams)}
OFF = {name: option.metadata["off"] for name, option in OPTIONS.items() if option.metadata.get("off") is not None}
WHOLE = (-1, 0, 1, 2, 7, 2**40, 2**63)
NUMBERS = (-math.inf, -1.0, -0.5, 0.0, 1e-9, 0.5, 1.0, 1.5, 7.0, math.inf, math.nan)
PROBES: dict[object, tuple[object, ...]] = {
    **{int: WHOLE, int | None: WHOLE, float: NUMBERS, float | None: NUMBERS},
    **{bool: (True, False, 2, "yes"), str | None: ("", "a"), tuple[str, ...]: ((), ("a",), ("a", ""))},
}

OF_A_PROMPT = "given with a prompt, not for a whole run or chat"
NOT_IN_THE_CONFIG = {
    "seed": "the seed of the run, or a random one",
    "logit_bias": OF_A_PROMPT,
    **dict.fromkeys(CONSTRAINTS, OF_A_PROMPT),
    "log_probs": "what is printed, not what is written",
}
NOT_OF_SAMPLE = {"log_probs": "--jsonl prints them"}
NO_CHAT_OPTION = {
    "heal": "a chat is encoded turn by turn, in training too",
    "min_new_tokens": "an answer may be short",
    "length_penalty": "a search takes that of the run",
    "logit_bias": OF_A_PROMPT,
    "log_probs": "nothing prints them",
}
NO_CHAT_COMMAND = NO_CHAT_OPTION | dict.fromkeys(
    ("max_new_tokens", "top_p", "min_p", "repetition_penalty", "no_repeat_ngram", "beams", *CONSTRAINTS),
    "an option of the chat",
)
NOT_OF_THE_SERVER = {
    "beams": "the server has no search",
    "length_penalty": "the server has no search",
    "log_probs": "logprobs, which counts alternatives",
    "json_schema": "response_format",
    "grammar": "guided_grammar",
}
STRICTER_IN_THE_CONFIG = {("max_new_tokens", 0): "a sample of a run writes something"}


def assert_known(surface: set[str], left_out: dict[str, str]) -> None:
    """Each option is in the surface or left out with a reason, not both, and no other is left out."""
    assert (surface & set(OPTIONS)) ^ set(left_out) == set(OPTIONS)
    assert not surface & set(left_out)


def test_the_typed_dictionary_has_exactly_the_options() -> None:
    assert set(SamplingOptions.__annotations__) == set(OPTIONS)


def test_a_run_stores_every_option_or_it_is_listed() -> None:
    assert_known(set(SampleConfig.model_fields), NOT_IN_THE_CONFIG)


def test_the_command_line_has_every_option_or_it_is_listed() -> None:
    assert_known(set(inspect.signature(sample).parameters), NOT_OF_SAMPLE)
    assert_known(set(inspect.signature(chat).parameters), NO_CHAT_OPTION)


def test_a_chat_sets_every_option_or_it_is_listed_and_its_help_names_the_commands() -> None:
    assert_known({option for option, _ in repl.SETTINGS.values()} | {"stop"}, NO_CHAT_COMMAND)
    for name in (*repl.SETTINGS, "stop"):
        assert re.search(rf"/{name}\b", repl.HELP), name


def test_the_server_takes_every_option_or_it_is_listed_and_its_page_sends_them() -> None:
    pytest.importorskip("fastapi")
    from gpt_cli.serve.request_schemas import CompletionRequest, GenerationFields

    names = {"max_new_tokens" if name == "max_tokens" else name for name in GenerationFields.model_fields}
    assert_known(names | set(CompletionRequest.model_fields), NOT_OF_THE_SERVER)
    templates = Path(repl.__file__).parents[1] / "serve" / "templates"
    form, script = ((templates / file).read_text(encoding="utf-8") for file in ("page.html", "write.js"))
    for name in names & set(OPTIONS):
        assert f'id="{"max_tokens" if name == "max_new_tokens" else name}"' in form, name
        assert re.search(rf"\b{name.replace('_', '[-_]')}\b", script), name


def test_the_default_of_a_run_is_that_of_a_call() -> None:
    assert SamplingParams.from_config(SampleConfig(), seed=0) == SamplingParams()


@pytest.mark.parametrize("name", sorted(set(SampleConfig.model_fields) & set(OPTIONS)))
def test_a_run_takes_the_values_that_a_call_takes(name: str) -> None:
    for value in PROBES[OPTIONS[name].type]:
        if isinstance(value, int) and value > INT32_MAX:  # of any whole number in a config
            continue
        in_a_run = accepts(SampleConfig, {name: list(value) if isinstance(value, tuple) else value})
        in_a_call = accepts(SamplingParams, {name: value})
        assert in_a_run == (in_a_call and (name, value) not in STRICTER_IN_THE_CONFIG), (name, value)


@pytest.mark.parametrize("name", [name for name in OPTIONS if OPTIONS[name].metadata and name not in NOT_OF_THE_SERVER])
def test_a_request_takes_the_values_that_a_call_takes_and_those_that_are_off(name: str) -> None:
    pytest.importorskip("fastapi")
    from gpt_cli.serve.api_errors import ApiError
    from gpt_cli.serve.request_schemas import CompletionRequest

    param = "max_tokens" if name == "max_new_tokens" else name
    for value in PROBES[OPTIONS[name].type]:
        if OFF.get(name) == value:
            options = CompletionRequest.read({param: value}).sampling_options()
            assert getattr(SamplingParams().replace(options), name) is None
        elif accepts(SamplingParams, {name: value}):
            assert CompletionRequest.read({param: value}).sampling_options() == {name: value}
        else:
            with pytest.raises(ApiError) as refused:
                CompletionRequest.read({param: value})
            assert (refused.value.status, refused.value.param, refused.value.code) == (400, param, "invalid_parameter")
            assert param in refused.value.message


def test_what_is_off_on_the_command_line_is_none_and_the_help_says_so() -> None:
    assert SamplingParams().replace(OFF) == SamplingParams()
    some = SamplingParams(temperature=0.0, top_p=1.0, regex="", seed=0)
    assert SamplingParams().replace({"temperature": 0.0, "top_p": 1.0, "regex": "", "seed": 0}) == some
    for name in (name for name, off in OFF.items() if off == 0):
        assert inspect.signature(sample).parameters[name].annotation.__metadata__[0].help.endswith(" 0: off.")


def test_none_switches_every_option_off_that_can_be_off() -> None:
    some = SamplingParams(stop=("a",), logit_bias=(("a", 1.0),), top_k=3)
    assert some.replace({"stop": None, "logit_bias": None, "top_k": 0}) == SamplingParams()
    assert SamplingParams(choices=("a", "b")).replace({"choices": None}) == SamplingParams()


def test_one_text_is_one_stop_string_or_one_choice() -> None:
    assert SamplingParams().replace({"stop": "abc"}).stop == ("abc",)
    assert SamplingParams().replace({"choices": "abc"}).choices == ("abc",)


def test_a_search_has_no_use_for_any_filter() -> None:
    read = set(re.findall(r"\bsampling\.(\w+)", inspect.getsource(filters))) & set(OPTIONS)
    assert read == set(DRAWS)


def accepts(kind: Any, values: dict[str, Any]) -> bool:
    try:
        kind(**values)
    except (RequestError, ValidationError):
        return False
    return True
