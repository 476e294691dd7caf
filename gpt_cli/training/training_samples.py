"""Samples during training."""

from collections.abc import Sequence
from contextlib import suppress

from gpt_cli.config import Config
from gpt_cli.corpus.prepare import Corpus
from gpt_cli.cpu.common.kernel import KernelUnavailable, load_kernel
from gpt_cli.errors import Notify, RequestError
from gpt_cli.model.gpt import GPT
from gpt_cli.runtime.oom import oom_as_user_error
from gpt_cli.sampling import SamplingParams, encode_prompt, stream_batches
from gpt_cli.sampling.logits_processors import ProcessorFactory
from gpt_cli.sampling.native_decoder import open_decoder, unsupported_settings
from gpt_cli.sampling.text_generator import stream_native
from gpt_cli.tokenizer import Tokenizer, UnknownCharacters


def sample_prompt(corpus: Corpus, config: Config) -> tuple[list[int], str]:
    """`sample.prompt`, or if it is empty and the data are examples, the prompt of the first validation example: as ids,
    and as displayed text.

    Raises RequestError for characters that the vocabulary lacks, and for settings of `config.sample` that need others.
    """
    tokenizer, sample = corpus.tokenizer, config.sample
    ProcessorFactory(tokenizer, SamplingParams.from_config(sample, config.seed))
    if corpus.labelled:
        return [], ""  # a classifier writes nothing
    if corpus.examples and not sample.prompt:
        tokens, _ = corpus.examples["val"].last_turn(0)
        text = tokenizer.decode(tokens).replace(config.data.completion_end, "\n")
        return tokens, text.replace(config.data.prompt_end, "\n")
    for key, text in (("prefix", sample.prefix), ("prompt", sample.prompt), ("suffix", sample.suffix)):
        try:
            tokenizer.encode(text)
        except UnknownCharacters as error:
            message = error.message.replace("the text", f"sample.{key}", 1)
            raise RequestError(message, hint=f"choose another, or none: sample.{key}=''") from error
    return encode_prompt(tokenizer, sample.prefix + sample.prompt + sample.suffix), sample.prompt


def load_decoder(config: Config, note: Notify) -> None:
    """Load the C decoder that is to write samples; compiling it, once on a machine, is no time of the training."""
    if config.sample.every is not None and not unsupported_settings(SamplingParams.from_config(config.sample, 0)):
        with suppress(KernelUnavailable):  # NumPy's writes them
            load_kernel(note=note)


def sample_text(
    model: GPT, tokenizer: Tokenizer, prompt: Sequence[int], config: Config, *, native: bool = False
) -> str:
    """A continuation of `prompt` (ids) by the settings of `config.sample`; a function of weights and seed.

    `native`: use the C decoder where it supports the settings; it is many times faster on a CPU.
    """
    sampling, plain_text = SamplingParams.from_config(config.sample, config.seed), config.data.format == "text"
    with oom_as_user_error("writing a sample", "set sample.every=null: what was saved is good, and goes on"):
        if native and prompt and not unsupported_settings(sampling):
            arrays = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
            decoder = open_decoder(config.model, tokenizer.vocab_size, arrays)
            if decoder is not None:
                (text,) = next(stream_native(decoder, tokenizer, [prompt], sampling, plain_text=plain_text))
                return text.text()
        model.eval()
        (text,) = next(stream_batches(model, tokenizer, [prompt], sampling, plain_text=plain_text))
        continuation = text.text()
    model.train()
    return continuation
