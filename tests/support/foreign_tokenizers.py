"""Random tokenizers of the kinds that published models have, each with the names of its features."""

import functools
import json
import pydoc_data.topics
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from tests.support.foreign_templates import TEMPLATES, ChatTemplate

NORMALIZERS = {
    "NFC": normalizers.NFC,
    "lowercase": normalizers.Lowercase,
    "replaced spaces": lambda: normalizers.Replace(Regex(" {2,}"), " "),
}
PATTERNS = {
    "pattern of Llama 3": (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
        r"|\s+(?!\S)|\s+"
    ),
    "pattern of Qwen": (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
        r"|\s+(?!\S)|\s+"
    ),
    "pattern of its own": r"\p{Lu}?\p{Ll}+|\p{N}{1,2}|[^\s\p{L}]+",
}
# The class in whose name a tokenizer was saved: its weight, and those of its kinds of vocabulary.
CLASSES: dict[str, tuple[int, dict[str, int]]] = {
    "TokenizersBackend": (3, {"byte level": 3, "byte fallback": 2}),
    "PreTrainedTokenizerFast": (3, {"byte level": 3, "byte fallback": 2}),
    "LlamaTokenizerFast": (2, {"byte level": 1}),
    "GPT2Tokenizer": (2, {"byte level": 1}),
    "Qwen2Tokenizer": (2, {"byte level": 1}),
    "LlamaTokenizer": (2, {"byte fallback": 1}),
}
# Transformers' classes that build the normalizer and the pre-tokenizer themselves, whatever is in tokenizer.json. Here
# the file has the same, but for LlamaTokenizer: it has a Metaspace also where the file, as published ones, has Prepend,
# so that neither a text that begins with a space nor what follows an added token gets another one.
BUILT = {"GPT2Tokenizer": "GPT-2", "Qwen2Tokenizer": "pattern of Qwen", "LlamaTokenizer": ""}
POST_PROCESSORS = ("none", "byte level", "begin", "begin and end", "byte level and begin")
END_OF_TEXT = "<|endoftext|>"  # in some models an ordinary token
ORDINARY = {
    "ordinary token": AddedToken("<bot>:", normalized=False),
    "ordinary é": AddedToken("é", normalized=False),
    "ordinary token with a space": AddedToken("two words", normalized=False),
    "ordinary <|endoftext|>": AddedToken(END_OF_TEXT, normalized=False),
    "lstrip": AddedToken("<left>", lstrip=True, normalized=False),
    "rstrip": AddedToken("<right>", rstrip=True, normalized=False, special=True),
    "single word": AddedToken("data", single_word=True, normalized=False),
    "normalized": AddedToken("Étude", normalized=True),
}
NAMES = {name: (name, end) for name, end in (("<s>", "</s>"), ("<|bos|>", "<|eos|>"), (END_OF_TEXT, END_OF_TEXT))}
EXTRA = "<|tool|>"  # in extra_special_tokens, and in no other file


@dataclass
class Draws:
    """Random choices, and the names of the features that came of them."""

    rng: random.Random
    features: set[str] = field(default_factory=set)

    def maybe(self, feature: str, probability: float) -> bool:
        drawn = self.rng.random() < probability
        if drawn:
            self.features.add(feature)
        return drawn

    def choose(self, group: str, names: Sequence[str], weights: Sequence[float] | None = None) -> str:
        """One of `names`; the feature is called `group: name`."""
        name = self.rng.choices(names, weights)[0]
        self.features.add(f"{group}: {name}")
        return name


@dataclass(frozen=True)
class ForeignTokenizer:
    """A tokenizer, and what tokenizer_config.json says of it.

    `ends` are the tokens that end a text, those of the tokenizer and of a turn.
    """

    backend: Tokenizer
    names: dict[str, str]
    config: dict[str, Any]
    template: ChatTemplate | None
    ends: tuple[str, ...]


def random_tokenizer(draws: Draws) -> ForeignTokenizer:
    name = draws.choose("class", list(CLASSES), [weight for weight, _ in CLASSES.values()])
    kinds = CLASSES[name][1]
    is_bytes = draws.choose("vocabulary", list(kinds), list(kinds.values())) == "byte level"
    style = draws.choose("template", ["none", *TEMPLATES], [1, 3, 2, 2, 2])
    template = TEMPLATES.get(style)
    begin, end = NAMES[draws.choose("begin", list(NAMES))]
    names = {"bos_token": begin, "eos_token": end} | ({} if is_bytes else {"unk_token": "<unk>"})
    if draws.maybe("padding token", 0.4):
        names["pad_token"] = "<pad>"
    special = sorted(dict.fromkeys(names.values()), key=lambda name: name != "<unk>")
    config: dict[str, Any] = {"tokenizer_class": name, "clean_up_tokenization_spaces": draws.rng.random() < 0.3}
    backend = (_byte_level if is_bytes else _byte_fallback)(draws, name, special)
    if not draws.maybe("special tokens named in tokenizer_config.json alone", 0.2):
        backend.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in special])
    if draws.maybe("extra_special_tokens", 0.2):
        config["extra_special_tokens"] = [EXTRA]
    _add_tokens(backend, template, draws)
    _set_post_processor(backend, is_bytes, names, config, draws)
    if draws.maybe("split_special_tokens", 0.1):
        config["split_special_tokens"] = True
    _repeat_added_tokens(backend, config, draws)
    turn = template.tokens[:1] if template is not None else ()
    return ForeignTokenizer(backend, names, config, template, (end, *turn))


@functools.cache
def _topics() -> list[str]:
    return "".join(text for _, text in sorted(pydoc_data.topics.topics.items()))[:60_000].splitlines(keepends=True)


def _trained(
    pre_tokenizer: Any, alphabet: list[str], size: int, **options: Any
) -> tuple[list[str], list[tuple[str, str]]]:
    """The tokens and merges of a BPE of `size` tokens, in their order."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False, **options)
    tokenizer.train_from_iterator(_topics(), trainer)
    model = json.loads(tokenizer.to_str())["model"]
    return sorted(model["vocab"], key=model["vocab"].__getitem__), [tuple(merge) for merge in model["merges"]]


def _byte_level(draws: Draws, name: str, special: list[str]) -> Tokenizer:
    is_free = name not in BUILT
    space = is_free and draws.maybe("prefix space", 0.25)
    pattern = draws.choose("split", ["GPT-2", "pattern of Llama 3", "pattern of its own"] if is_free else [BUILT[name]])
    split: Any = pre_tokenizers.ByteLevel(add_prefix_space=space)
    if pattern in PATTERNS:
        regex = pre_tokenizers.Split(Regex(PATTERNS[pattern]), "isolated")
        split = pre_tokenizers.Sequence([regex, pre_tokenizers.ByteLevel(add_prefix_space=space, use_regex=False)])
    tokens, merges = _trained(split, sorted(pre_tokenizers.ByteLevel.alphabet()), draws.rng.randrange(300, 600))
    ignore_merges = is_free and draws.maybe("ignore_merges", 0.2)
    vocab = {token: i for i, token in enumerate([*special, *tokens])}
    tokenizer = Tokenizer(models.BPE(vocab, merges, ignore_merges=ignore_merges))
    chances = {"NFC": 0.4, "lowercase": 0.2, "replaced spaces": 0.2} if is_free else {"NFC": name == "Qwen2Tokenizer"}
    chosen = [NORMALIZERS[normalizer]() for normalizer, chance in chances.items() if draws.maybe(normalizer, chance)]
    if chosen:
        tokenizer.normalizer = chosen[0] if len(chosen) == 1 else normalizers.Sequence(chosen)
    tokenizer.pre_tokenizer = split
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _byte_fallback(draws: Draws, name: str, special: list[str]) -> Tokenizer:
    """As converted from SentencePiece; capitals, digits and signs that are rare in the topics have no token."""
    is_free = name not in BUILT
    size = draws.rng.randrange(120, 400)
    tokens, merges = _trained(pre_tokenizers.Metaspace(), [], size, limit_alphabet=60)
    octets = [f"<0x{octet:02X}>" for octet in range(256)]
    vocab = {token: i for i, token in enumerate([*special, *octets, *tokens])}
    tokenizer = Tokenizer(models.BPE(vocab, merges, byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    first: list[Any] = [normalizers.NFC()] if is_free and draws.maybe("NFC", 0.3) else []
    spaces = draws.choose("spaces", ["Prepend and Replace", "Metaspace first", "Metaspace always"][: 2 + is_free])
    if spaces == "Prepend and Replace":
        first += [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    else:
        split = draws.rng.random() < 0.5
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=spaces.split()[1], split=split)
    if first:
        tokenizer.normalizer = normalizers.Sequence(first)
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(steps)
    return tokenizer


def _add_tokens(backend: Tokenizer, template: ChatTemplate | None, draws: Draws) -> None:
    """Those of the template, and ordinary ones, in a random order."""
    free = {name: token for name, token in ORDINARY.items() if backend.token_to_id(token.content) is None}
    added = [token for name, token in free.items() if draws.maybe(name, 0.25)]
    if template is not None and template.tokens:
        is_ordinary = draws.maybe("ordinary tokens in the template", 0.2)
        added += [AddedToken(name, special=not is_ordinary, normalized=False) for name in template.tokens]
    draws.rng.shuffle(added)
    backend.add_tokens(added)


def _repeat_added_tokens(backend: Tokenizer, config: dict[str, Any], draws: Draws) -> None:
    """Write added_tokens_decoder as Transformers did until 5.0; it counts where tokenizer.json says otherwise."""
    tokens = {str(i): token.__getstate__() for i, token in sorted(backend.get_added_tokens_decoder().items())}
    if not tokens or not draws.maybe("added_tokens_decoder", 0.4):
        return
    config["added_tokens_decoder"] = tokens
    # With split_special_tokens, Transformers splits what the file alone calls special.
    if "split_special_tokens" not in config and draws.maybe("added_tokens_decoder against tokenizer.json", 0.25):
        changed = tokens[draws.rng.choice(list(tokens))]
        changed |= {name: not changed[name] for name in ("special", "rstrip")}


def _set_post_processor(
    backend: Tokenizer, is_bytes: bool, names: dict[str, str], config: dict[str, Any], draws: Draws
) -> None:
    choices = [name for name in POST_PROCESSORS if is_bytes or "byte level" not in name]
    chosen = draws.choose("post-processor", choices, [2 if "begin" in name else 1 for name in choices])
    begin, end = names["bos_token"], names["eos_token"]
    ids = [(name, backend.token_to_id(name)) for name in {begin: 0, end: 1}]
    after = f" {end}" if chosen == "begin and end" else ""
    pair = f"{begin} $A{after} $B:1" + (after and f"{after}:1")
    template = processors.TemplateProcessing(f"{begin} $A{after}", pair, ids)
    level = processors.ByteLevel(trim_offsets=False)
    if "begin" in chosen:
        backend.post_processor = processors.Sequence([level, template]) if "byte level" in chosen else template
    elif chosen == "byte level":
        backend.post_processor = level
    if draws.maybe("add_bos_token against the post-processor", 0.25):
        config["add_bos_token"] = "begin" not in chosen
    if draws.maybe("add_eos_token against the post-processor", 0.15):
        config["add_eos_token"] = not after
