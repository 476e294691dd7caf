"""Measure a source in the format that is asked for, or, where none is, in the one that its records have."""

from collections.abc import Sequence
from shlex import quote

from gpt_cli.config import parse_config, to_yaml_scalar
from gpt_cli.config.dump import join_overrides
from gpt_cli.config.section import ConfigValues
from gpt_cli.corpus.examples.read_examples import NoExamplesError
from gpt_cli.corpus.record_errors import MissingKeyError, OtherFormatError
from gpt_cli.corpus.scan import StageProgress
from gpt_cli.search.example_statistics import measure_examples
from gpt_cli.search.text_statistics import TextStatistics, measure_source

_KEYS_OF_FORMAT = {"pairs": {"data.prompt_key", "data.completion_key"}, "chat": {"data.messages_key"}}
_CLASSES = {"task.kind": "classes", "data.format": "labelled"}


def measure_in_its_format(
    sources: Sequence[str],
    requested: ConfigValues,
    fixed: ConfigValues,
    *,
    has_gpu: bool,
    progress: StageProgress | None,
) -> tuple[TextStatistics, ConfigValues]:
    """(the statistics of `sources`, the keys of their format and their values).

    `requested` and `fixed` as for `measure_source`. Chats are known by their records, pairs whose keys have their usual
    names, and both where their keys are named. Raises what reading, dividing and `TokenStore.open` raise, and UserError
    for keys that contradict each other.
    """

    def measure(keys: ConfigValues) -> tuple[TextStatistics, ConfigValues]:
        of_data = {**{key: value for key, value in fixed.items() if key.startswith("data.")}, **keys}
        config = parse_config("{}", "the fitted config", [f"{key}={to_yaml_scalar(of_data[key])}" for key in of_data])
        return measure_examples(config.data, fixed, has_gpu=has_gpu), keys

    if fixed.get("task.kind") == "classes" or fixed.get("data.format") == "labelled":
        return measure(_CLASSES)
    by_key = next((form for form, keys in _KEYS_OF_FORMAT.items() if keys & requested.keys()), "text")
    if (asked := fixed.get("data.format", by_key)) != "text":
        return measure({"data.format": asked})
    try:
        return measure_source(sources, requested, fixed, has_gpu=has_gpu, progress=progress), {}
    except (OtherFormatError, MissingKeyError) as error:
        keys = error.examples
        if isinstance(error, MissingKeyError) and error.pairs:
            one = f"data.text_key={quote(error.candidate)}"
            pairs = error.how_to_join_prompts() or f"for both: {join_overrides(error.as_pairs())}"
            error.advise(f"{one} reads one of them; {pairs}")
        elif isinstance(error, MissingKeyError) and error.kind == "columns" and "messages" in error.available:
            error.advise(f"data.text_key={quote(error.candidate)} reads texts, data.format=chat reads chats in JSON")
        elif keys and "data.text_key" in requested:
            error.hint = f"leave data.text_key out: {error.hint}"
        if not keys or {"data.format", "data.text_key"} & requested.keys():
            raise
        try:
            return measure(keys)
        except NoExamplesError:  # beside plain texts
            if isinstance(error, OtherFormatError):
                error.hint = f"to train on it beside texts, {error.as_text}"
            raise error from None
