"""Samples during training."""

from collections.abc import Sequence
from dataclasses import dataclass

from gpt_cli.config import Config
from gpt_cli.corpus.prepare import Corpus
from gpt_cli.model.gpt import GPT
from gpt_cli.runtime.oom import oom_as_user_error
from gpt_cli.sampling import SamplingParams, encode_prompt, stream_texts
from gpt_cli.sampling.logits_processors import ProcessorFactory
from gpt_cli.sampling.native_stream import open_decoder, stream_native, unsupported_settings
from gpt_cli.tokenizer import Tokenizer


@dataclass(frozen=True)
class SamplePrompt:
    """The tokens that samples continue, and the text that stands for them."""

    tokens: list[int]
    text: str


def sample_prompt(corpus: Corpus, config: Config) -> SamplePrompt:
    """`sample.prompt`, or where examples are learned and it is empty the prompt of the first that validates.

    Raises RequestError for what the vocabulary cannot spell, and for settings of `config.sample` that it cannot meet.
    """
    tokenizer, sample = corpus.tokenizer, config.sample
    ProcessorFactory(tokenizer, SamplingParams.from_config(sample, config.seed))
    if corpus.labelled:
        return SamplePrompt([], "")  # nothing is written
    if corpus.examples and not sample.prompt:
        tokens, _ = corpus.examples["val"].last_turn(0)
        said = tokenizer.decode(tokens).replace(config.data.completion_end, "\n")
        return SamplePrompt(tokens, said.replace(config.data.prompt_end, "\n"))
    return SamplePrompt(encode_prompt(tokenizer, sample.prefix + sample.prompt + sample.suffix), sample.prompt)


def sample_text(
    model: GPT, tokenizer: Tokenizer, prompt: Sequence[int], config: Config, *, native: bool = False
) -> str:
    """A continuation of `prompt` (ids) as `config.sample` wants it; the same for the same weights and seed.

    `native`: by compiled code where that can do what is asked; a CPU is many times faster with it.
    """
    sampling = SamplingParams.from_config(config.sample, config.seed)
    with oom_as_user_error("writing a sample", "set sample.every=null: what was saved is good, and goes on"):
        if native and prompt and not unsupported_settings(sampling):
            arrays = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
            decoder = open_decoder(config.model, tokenizer.vocab_size, arrays)
            if decoder is not None:
                (text,) = stream_native(decoder, tokenizer, [prompt], sampling)
                return text.text()
        model.eval()
        (text,) = stream_texts(model, tokenizer, prompt, sampling)
        written = text.text()
    model.train()
    return written
