"""From a config whose `data.format` is pairs or chat to examples as tokens, all of them in memory."""

import hashlib
import re
from collections.abc import Iterator, Sequence

from gpt_cli.config.schema import DataConfig, TokenizerConfig
from gpt_cli.corpus.blocks import Split
from gpt_cli.corpus.divide import VOCABULARY_HINT, Prepared, divide, learn_from_divided, stats_of
from gpt_cli.corpus.examples.read_examples import read_examples
from gpt_cli.corpus.examples.tokens import Examples, encode_examples
from gpt_cli.corpus.examples.training_example import TrainingExample
from gpt_cli.corpus.split import assign_by_hash
from gpt_cli.errors import Notify, RequestError
from gpt_cli.tokenizer import Tokenizer, UnknownCharacters


def prepare_examples(data: DataConfig, config: TokenizerConfig, note: Notify) -> Prepared[Examples]:
    """Read, divide and encode the examples of a config.

    Raises as reading and `train_tokenizer` do, UserError for too few examples, and RequestError for characters that are
    not in the vocabulary.
    """
    splits, fingerprint = divide_examples(data, note)
    tokenizer = learn_from_examples(splits, data, config, note)
    try:
        encoded = {
            split: encode_examples(tokenizer, examples, data.completion_end) for split, examples in splits.items()
        }
    except UnknownCharacters as error:
        missing, template = set(error.characters), set(data.prompt_end + data.completion_end)
        hints = [] if missing <= template else [VOCABULARY_HINT]
        if missing & template:
            hints.append("data.prompt_end=TEXT data.completion_end=TEXT choose a template of characters that it has")
        where, hint = (error.where if missing - template else None), "; ".join(hints)
        raise RequestError(error.message, where=where, hint=hint) from error
    stats = {split: stats_of(examples, encoded[split]) for split, examples in splits.items()}
    return Prepared(tokenizer, encoded, stats, fingerprint)


def divide_examples(data: DataConfig, note: Notify) -> tuple[dict[Split, list[TrainingExample]], str]:
    """The examples of each split, and the fingerprint of all. Raises as `prepare_examples` does."""
    return divide(
        data,
        "examples",
        lambda source: read_examples(source, data, note),
        lambda example: example.turns,
        lambda examples, val, test: assign_by_hash(
            [_unit_hash(example, data) for example in examples], val, test, "prompts"
        ),
    )


def learn_from_examples(
    splits: dict[Split, list[TrainingExample]], data: DataConfig, config: TokenizerConfig, note: Notify
) -> Tokenizer:
    """The tokenizer of a config; BPE is trained on the training examples without the template."""
    return learn_from_divided(splits, lambda: _without_template(splits["train"], data), config, note)


def _without_template(examples: Sequence[TrainingExample], data: DataConfig) -> Iterator[str]:
    """The texts of the examples without the template's, for which BPE needs no merges."""
    template = re.compile(f"{re.escape(data.prompt_end)}|{re.escape(data.completion_end)}")
    for example in examples:
        yield from filter(None, template.split(example.text))


def _unit_hash(example: TrainingExample, data: DataConfig) -> int:
    """64 bits of the hash of what comes before the last completion; of all of it, where that is an empty prompt."""
    is_unprompted = data.rules > 1 and example.context == data.prompt_end
    text = example.text if is_unprompted else example.context
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
