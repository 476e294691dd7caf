"""The schema of a config, and the way from a file and overrides to a checked, frozen `Config`.

Read first: `schema.py`, then `load.py`.
Never: imports torch or numpy, or changes a value after it was checked.
"""

from gpt_cli.config.dump import annotate_config, comment, dump_config, to_yaml_scalar
from gpt_cli.config.explain import RESUMABLE_CHANGES, KeyOrigin, changed_keys, explain, may_change
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
    ParallelConfig,
    RuntimeConfig,
    SampleConfig,
    ScheduleConfig,
    TaskConfig,
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
    "ParallelConfig",
    "RuntimeConfig",
    "SampleConfig",
    "ScheduleConfig",
    "TaskConfig",
    "TokenizerConfig",
    "TrainConfig",
    "annotate_config",
    "changed_keys",
    "comment",
    "dump_config",
    "explain",
    "json_schema",
    "load_config",
    "may_change",
    "parse_config",
    "to_yaml_scalar",
]
