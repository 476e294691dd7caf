"""What a run is told: the schema of a config, and the way from a file and overrides to a checked, frozen Config.

    schema       the sections, their keys, defaults, meanings and limits
    yaml_subset  the part of YAML a config is written in, read with the place of every key and value
    overrides    `section.key=value`, laid over the file
    load         file + overrides -> Config, or one error that names all that is wrong
    keys         the dotted keys: what each accepts, and which one was probably meant
    wording      what the schema's checks found, in the words of the config
    problems     problems with their places, and the error they become
    dump         Config -> YAML
    explain      where each value comes from, and how two configs differ

No torch and no numpy: a config is refused before either is imported.
"""

from gpt_cli.config.dump import annotate_config, comment, dump_config, to_yaml_scalar
from gpt_cli.config.explain import RESUMABLE_CHANGES, KeyOrigin, changed_keys, explain
from gpt_cli.config.keys import json_schema
from gpt_cli.config.load import load_config, parse_config
from gpt_cli.config.schema import (
    CheckpointConfig,
    Config,
    ConfigSection,
    DataConfig,
    EvalConfig,
    LogConfig,
    LoraConfig,
    ModelConfig,
    OptimConfig,
    RuntimeConfig,
    SampleConfig,
    ScheduleConfig,
    TokenizerConfig,
    TrainConfig,
)

__all__ = [
    "RESUMABLE_CHANGES",
    "CheckpointConfig",
    "Config",
    "ConfigSection",
    "DataConfig",
    "EvalConfig",
    "KeyOrigin",
    "LogConfig",
    "LoraConfig",
    "ModelConfig",
    "OptimConfig",
    "RuntimeConfig",
    "SampleConfig",
    "ScheduleConfig",
    "TokenizerConfig",
    "TrainConfig",
    "annotate_config",
    "changed_keys",
    "comment",
    "dump_config",
    "explain",
    "json_schema",
    "load_config",
    "parse_config",
    "to_yaml_scalar",
]
