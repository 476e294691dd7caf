"""From logits to text: filters, logits processors, decoding, constraints, streams, conversations.

Read first: `generate.py`, `filters.py`, `text_stream.py`; `text_generator.py` chooses between C, NumPy and torch.
Never: draws from a global generator, or imports torch with the package itself.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from gpt_cli.sampling.prompt import encode_prompt as encode_prompt
from gpt_cli.sampling.sampling_params import SamplingOptions as SamplingOptions
from gpt_cli.sampling.sampling_params import SamplingParams as SamplingParams
from gpt_cli.sampling.sampling_params import random_seed as random_seed
from gpt_cli.sampling.text_stream import TextStream as TextStream

if TYPE_CHECKING:
    from gpt_cli.sampling.sampler import Sampler as Sampler
    from gpt_cli.sampling.stream_torch import stream_batches as stream_batches

_LAZY_IMPORTS = {"Sampler": "sampler", "stream_batches": "stream_torch"}


def __getattr__(name: str) -> Any:
    if name not in _LAZY_IMPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"gpt_cli.sampling.{_LAZY_IMPORTS[name]}"), name)
