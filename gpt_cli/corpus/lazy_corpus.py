"""A tokenized corpus whose text is read only where ids of it are asked for."""

from collections.abc import Callable
from dataclasses import dataclass, field

from gpt_cli.config.schema import DataConfig, TokenizerConfig
from gpt_cli.corpus.examples.prepare_examples import prepare_examples
from gpt_cli.corpus.examples.tokens import Examples
from gpt_cli.corpus.labelled.prepare_labelled import LabelledTexts, prepare_labelled
from gpt_cli.corpus.matching_store import find_store, open_cached, open_matching_store, refuse_store_of_examples
from gpt_cli.corpus.scan import StageProgress
from gpt_cli.corpus.split import Split
from gpt_cli.corpus.store import SplitStats, Tokens
from gpt_cli.corpus.tokenize_pipeline import TokenizePipeline
from gpt_cli.errors import Notify
from gpt_cli.files import cache_dir
from gpt_cli.tokenizer import Tokenizer

HEAD = 1 << 22  # ids of each split that `open_lazy` holds, so that a short text is encoded once


@dataclass(frozen=True, eq=False)
class LazyCorpus:
    """A tokenized corpus: its statistics, and access to any range of ids. A text is read when ids of it are asked for;
    examples and labelled texts are held in memory."""

    tokenizer: Tokenizer
    stats: dict[Split, SplitStats]
    """Statistics of each split there is."""
    read: Callable[[Split, int, int], Tokens]
    """(split, start, stop) -> (stop - start,) ids of the split, fewer at its end."""
    examples: dict[Split, Examples] = field(default_factory=dict)
    """As in `Corpus`."""
    labelled: dict[Split, LabelledTexts] = field(default_factory=dict)
    """As in `Corpus`."""


def open_lazy(
    data: DataConfig, tokenizer: TokenizerConfig, *, note: Notify, progress: StageProgress | None = None
) -> LazyCorpus:
    """The corpus of `prepare_corpus`, of which a text is not held in memory; nothing is cached. Raises as it does."""
    refuse_store_of_examples(data)
    if data.format == "labelled":
        labelled = prepare_labelled(data, tokenizer, note)
        read_tokens = lambda split, i, j: labelled.splits[split].tokens[i:j]  # noqa: E731
        return LazyCorpus(labelled.tokenizer, labelled.stats, read_tokens, labelled=labelled.splits)
    if data.format != "text":
        examples = prepare_examples(data, tokenizer, note)
        return LazyCorpus(
            examples.tokenizer, examples.stats, lambda split, i, j: examples.splits[split].tokens[i:j], examples.splits
        )
    if (path := find_store(data.source)) is not None:
        store = open_matching_store(path, data, tokenizer)
        return LazyCorpus(store.tokenizer, store.stats, store.read)
    pipeline = TokenizePipeline.scan(data, tokenizer, note, progress)
    if (cached := open_cached(cache_dir() / "stores" / pipeline.cache_key, note)) is not None:
        return LazyCorpus(cached.tokenizer, cached.stats, cached.read)
    trained = pipeline.train_tokenizer()
    head, tokenized = pipeline.encode_to_memory(trained, stop=HEAD)

    def read(split: Split, start: int, stop: int) -> Tokens:
        in_memory = min(stop, tokenized.stats[split].tokens) <= len(head[split])
        return head[split][start:stop] if in_memory else pipeline.encode_to_memory(trained, start, stop)[0][split]

    return LazyCorpus(tokenized.tokenizer, tokenized.stats, read)
