"""placeholder until the loader is in place"""
from gpt_cli.config.schema import *
from gpt_cli.config.schema import CheckpointConfig, Config, DataConfig, EvalConfig, LogConfig, ModelConfig, OptimConfig, RuntimeConfig, SampleConfig, ScheduleConfig, TokenizerConfig, TrainConfig
