"""What the model writes while it trains."""

from collections.abc import Sequence

from gpt_cli.config import Config
from gpt_cli.model.gpt import GPT
from gpt_cli.sampling import Sampling, stream_texts
from gpt_cli.tokenizer import Tokenizer


def sample_text(model: GPT, tokenizer: Tokenizer, prompt: Sequence[int], config: Config) -> str:
    """A continuation of `prompt` (ids) as `config.sample` wants it; the same for the same weights and seed."""
    model.eval()
    sampling = Sampling.from_config(config.sample, config.seed)
    (text,) = stream_texts(model, tokenizer, prompt, sampling)
    written = text.text()
    model.train()
    return written
