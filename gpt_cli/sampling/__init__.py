"""What a trained model writes: logits to tokens to text.

settings     Sampling: temperature, filters, length, seed, stop strings
filters      logits to the next token
noise        the randomness of each sample
generate     prompts to tokens: prefill, decode, and what happens past the context
text         tokens to text, streamed: whole characters, stop strings
prompt       text to the tokens that are continued
sampler      all of it as one object, for Python
"""

from gpt_cli.sampling.generate import generate as generate
from gpt_cli.sampling.generate import window_start as window_start
from gpt_cli.sampling.prompt import drop_unknown as drop_unknown
from gpt_cli.sampling.prompt import encode_prompt as encode_prompt
from gpt_cli.sampling.sampler import Sampler as Sampler
from gpt_cli.sampling.settings import Sampling as Sampling
from gpt_cli.sampling.settings import SamplingOptions as SamplingOptions
from gpt_cli.sampling.settings import fresh_seed as fresh_seed
from gpt_cli.sampling.text import TextStream as TextStream
from gpt_cli.sampling.text import stream_texts as stream_texts
