"""The schema of a config, and the way from a file and overrides to a checked, frozen `Config`.

Read first: `schema.py`, then `load.py`; `yaml_reader.py` has lines and columns, `problems.py` the sentences.
Never: imports torch or numpy, or changes a value after it was checked.
"""

from gpt_cli.config.dump import annotate_config as annotate_config
from gpt_cli.config.dump import changed_keys as changed_keys
from gpt_cli.config.dump import comment as comment
from gpt_cli.config.dump import dump_config as dump_config
from gpt_cli.config.dump import explain as explain
from gpt_cli.config.dump import to_yaml_scalar as to_yaml_scalar
from gpt_cli.config.keys import json_schema as json_schema
from gpt_cli.config.load import load_config as load_config
from gpt_cli.config.load import parse_config as parse_config
from gpt_cli.config.schema import Config as Config
from gpt_cli.config.schema import DataConfig as DataConfig
from gpt_cli.config.schema import LoraConfig as LoraConfig
from gpt_cli.config.schema import ModelConfig as ModelConfig
from gpt_cli.config.schema import OptimConfig as OptimConfig
from gpt_cli.config.schema import RuntimeConfig as RuntimeConfig
from gpt_cli.config.schema import SampleConfig as SampleConfig
from gpt_cli.config.schema import ScheduleConfig as ScheduleConfig
from gpt_cli.config.schema import TaskConfig as TaskConfig
from gpt_cli.config.schema import TokenizerConfig as TokenizerConfig
from gpt_cli.config.schema import TrainConfig as TrainConfig
