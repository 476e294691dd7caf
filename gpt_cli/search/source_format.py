"""Measure a source in the format that is asked for, or, where none is, in the one that its records have."""

from collections.abc import Sequence
from dataclasses import replace

from gpt_cli.config import parse_config, to_yaml_scalar
from gpt_cli.config.schema import DataConfig
from gpt_cli.config.section import ConfigValues
from gpt_cli.corpus.detect import choose_keys, describe_keys, first_record
from gpt_cli.corpus.readers import ReaderOptions
from gpt_cli.corpus.scan import StageProgress
from gpt_cli.corpus.store import find_store
from gpt_cli.search.example_statistics import measure_examples
from gpt_cli.search.text_statistics import TextStatistics, measure_source


def measure_in_its_format(
    sources: Sequence[str],
    requested: ConfigValues,
    fixed: ConfigValues,
    *,
    has_gpu: bool,
    progress: StageProgress | None,
) -> tuple[TextStatistics, ConfigValues]:
    """(the statistics of `sources`, the keys of their format and their values).

    `requested` and `fixed` as for `measure_source`. The keys that are not asked for are chosen by the first record.
    Raises what reading, dividing and `TokenStore.open` raise, and UserError for keys that contradict each other.
    """
    keys: ConfigValues = {}
    if requested.get("data.documents") is None and not (len(sources) == 1 and find_store(sources[0]) is not None):
        options = ReaderOptions(requested.get("data.encoding", DataConfig().encoding))
        if (record := first_record(sources, options)) is not None:
            keys = choose_keys(record, fixed)
    said = f"{describe_keys({**fixed, **keys})} ".lstrip() if keys else ""
    if fixed.get("task.kind") == "classes" or fixed.get("data.format") == "labelled":
        keys = {**keys, "task.kind": "classes", "data.format": "labelled"}
    if {**fixed, **keys}.get("data.format", "text") == "text":
        text = measure_source(sources, {**requested, **keys}, fixed, has_gpu=has_gpu, progress=progress)
        return replace(text, tokenizer_reason=f"{said}{text.tokenizer_reason}"), keys
    of_data = {key: value for key, value in {**fixed, **keys}.items() if key.startswith(("data.", "task.kind"))}
    config = parse_config("{}", "the fitted config", [f"{key}={to_yaml_scalar(of_data[key])}" for key in of_data])
    return measure_examples(config.data, fixed, said, has_gpu=has_gpu), keys
