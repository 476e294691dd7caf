"""What a trained model writes: logits to tokens to text.

settings     Sampling: temperature, filters, length, seed, stop strings
filters      logits to the next token
noise        the randomness of each sample
rules        what changes logits by what has been written: `bias`, `repetition`, `constraint`, and the `recorder`
generate     prompts to tokens: prefill, decode, and what happens past the context
graphed_decode  a decode step as one CUDA graph, for generate on a GPU
beam         the likeliest texts instead of random ones
stream       tokens to text: whole characters, stop strings
text         both: text from a model, streamed
engine       the same without torch, where gpt_cli/native can write it
writer       a saved model that writes by whichever of the two can do what is asked
conversation a text that a user and a model write in turns
prompt       text to the tokens that are continued
sampler      all of it as one object, for Python

Importing this imports no torch: it comes with the first name that needs it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from gpt_cli.sampling.prompt import drop_unknown as drop_unknown
from gpt_cli.sampling.prompt import encode_prompt as encode_prompt
from gpt_cli.sampling.settings import Sampling as Sampling
from gpt_cli.sampling.settings import SamplingOptions as SamplingOptions
from gpt_cli.sampling.settings import fresh_seed as fresh_seed
from gpt_cli.sampling.stream import TextStream as TextStream

if TYPE_CHECKING:
    from gpt_cli.sampling.sampler import Sampler as Sampler
    from gpt_cli.sampling.text import stream_batches as stream_batches
    from gpt_cli.sampling.text import stream_texts as stream_texts

_HOMES = {"Sampler": "sampler", "stream_batches": "text", "stream_texts": "text"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"gpt_cli.sampling.{_HOMES[name]}"), name)
