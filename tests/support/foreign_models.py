"""Tiny random models of Transformers with random tokenizers, and Transformers' own account of them.

What `reference` returns is computed by AutoTokenizer and AutoModelForCausalLM alone.
"""

import json
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import torch
import transformers
from torch import Tensor

from tests.support.foreign_templates import CHATS, Messages
from tests.support.foreign_tokenizers import Draws, ForeignTokenizer, random_tokenizer

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

SEEDS = range(20)
CONTEXT_LENGTH = 256  # of which the longest chat needs 170
NEW_TOKENS = 16
TEXTS = (
    "",
    "a",
    "The list of values is returned by the function",
    "  two spaces, one after \n\n\tand a tab ",
    "\n",
    "é e\u0301 E\u0301tude Étude A\u030a \u1e9b\u0323 ﬁ",
    "<bot>:hello <bot>: two words  two words. two  words",
    "x <left> y <right>  z<left><right>q data database _data data\n",
    "<s>The end</s> of<|endoftext|>it <|im_end|> <|eot_id|>x<pad><unk>",
    "[INST] Why? [/INST]Because.<|im_start|>user\n<|bos|>x<|eos|>",
    "unit\x1fseparator, \x01 and \x7f",
    "CAPITALS IN 12345 Digits isn't It'S",
    "naïve — “quoted” 你好，世界 emoji 🙂👩‍👩‍👧 now",
    "ends in a sign that is rare: 龍",
)


@dataclass(frozen=True)
class ForeignModel:
    """A directory that Transformers loads, and the names of what is particular to it."""

    seed: int
    directory: Path
    features: frozenset[str]

    def __str__(self) -> str:
        return f"seed {self.seed}: {', '.join(sorted(self.features))}"


@dataclass(frozen=True)
class Reference:
    """What Transformers makes of TEXTS and CHATS with a model; a text without ids is left out.

    `chats` has None for a conversation that the template refuses, and is empty without a template.
    `continuations` are the greedy new tokens, with an end token if there was one. `continued` is the text of all ids
    after the text of the prompt's; left out where that does not begin it (a byte that is not UTF-8 makes U+FFFD of
    those before it, too). `special_ids` are the begin, end and padding tokens by file.
    """

    ids: dict[str, list[int]]
    continuations: dict[str, list[int]]
    continued: dict[str, str]
    log_probs: dict[str, list[float]]
    chats: list[list[int] | None]
    special_ids: dict[str, tuple[int, ...]]


@contextmanager
def one_thread() -> Iterator[None]:
    """For tensors that are this small; two that wait for each other on busy cores take twenty times as long."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@one_thread()
def make_foreign_model(seed: int, directory: Path) -> ForeignModel:
    """Write the model of `seed` to `directory`, which is new."""
    draws = Draws(random.Random(seed))
    torch.manual_seed(seed)
    foreign = random_tokenizer(draws)
    kind = draws.choose("model", ["Llama", "GPT-2", "Qwen3"])
    _save_tokenizer(foreign, directory, draws)
    # AutoTokenizer looks at the model's type, too, but not at its size.
    (directory / "config.json").write_text(json.dumps({"model_type": kind.lower().replace("-", "")}))
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    size = len(tokenizer)
    if draws.maybe("rows beyond the ids", 0.3):
        size = -(-size // 64) * 64
    model = transformers.AutoModelForCausalLM.from_config(_config(kind, size, draws)).eval()
    _make_broken_characters_unlikely(model, tokenizer)
    _set_ends(model, tokenizer, foreign, draws)
    model.save_pretrained(directory)
    if draws.maybe("no generation_config.json", 0.15):
        (directory / "generation_config.json").unlink()
    return ForeignModel(seed, directory, frozenset(draws.features))


def _save_tokenizer(foreign: ForeignTokenizer, directory: Path, draws: Draws) -> None:
    saved = transformers.PreTrainedTokenizerFast(tokenizer_object=foreign.backend, **foreign.names)
    saved.save_pretrained(directory)
    foreign.backend.save(str(directory / "tokenizer.json"))  # Transformers has added what is in the config alone
    path = directory / "tokenizer_config.json"
    config = json.loads(path.read_text()) | foreign.config
    if foreign.template is not None:
        place = draws.choose("template in", ["chat_template.jinja", "tokenizer_config.json"])
        if place == "chat_template.jinja":
            (directory / place).write_text(foreign.template.source)
        else:
            config["chat_template"] = foreign.template.source
    path.write_text(json.dumps(config, indent=2, ensure_ascii=False))


def _config(kind: str, vocab_size: int, draws: Draws) -> Any:
    hidden, tied = draws.rng.choice([32, 48, 64]), draws.rng.random() < 0.5
    shared = {"vocab_size": vocab_size, "initializer_range": 0.2, "tie_word_embeddings": tied, "dtype": "float32"}
    if kind == "GPT-2":
        return transformers.GPT2Config(n_embd=hidden, n_layer=2, n_head=4, n_positions=CONTEXT_LENGTH, **shared)
    make = transformers.LlamaConfig if kind == "Llama" else transformers.Qwen3Config
    return make(
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=draws.rng.choice([2, 4]),
        head_dim=hidden // 4,
        max_position_embeddings=CONTEXT_LENGTH,
        **shared,
    )


def _set_ends(model: Any, tokenizer: Any, foreign: ForeignTokenizer, draws: Draws) -> None:
    """Name the begin, end and padding tokens in both configs, and have greedy texts contain end tokens."""
    ends = [tokenizer.convert_tokens_to_ids(name) for name in foreign.ends]
    _make_likely(model, tokenizer, ends)
    both: Any = ends if len(ends) > 1 else ends[0]
    place = "one end token"
    if len(ends) > 1:
        place = draws.choose("two end tokens in", ["both configs", "generation_config.json", "config.json"], [3, 2, 1])
    for config, name in ((model.config, "config.json"), (model.generation_config, "generation_config.json")):
        config.bos_token_id = tokenizer.bos_token_id
        config.pad_token_id = tokenizer.pad_token_id
        config.eos_token_id = both if place in (name, "both configs") else ends[0]


@torch.no_grad()
def _make_broken_characters_unlikely(model: Any, tokenizer: Any) -> None:
    """Have greedy texts contain no bytes beyond ASCII: the library makes U+FFFD of all bytes around an invalid one."""
    vocabulary = tokenizer.get_vocab()
    names = [f"<0x{byte:02X}>" for byte in range(0x80, 0x100)]
    model.get_output_embeddings().weight[[vocabulary[name] for name in names if name in vocabulary]] = 0


@torch.no_grad()
def _make_likely(model: Any, tokenizer: Any, ends: list[int]) -> None:
    """Exchange the rows of `ends` with those of tokens that greedy texts have after some others."""
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        setattr(model.generation_config, name, None)
    counts: Counter[int] = Counter()
    for text in TEXTS[2:6]:
        counts.update(set(_greedy(model, tokenizer(text).input_ids)[3:12]))
    likely = [token for token, _ in counts.most_common() if token not in tokenizer.all_special_ids]
    weights = {id(w): w for w in (model.get_input_embeddings().weight, model.get_output_embeddings().weight)}
    for end, token in zip(ends, likely, strict=False):
        for weight in weights.values():
            weight[[end, token]] = weight[[token, end]]


def _greedy(model: Any, ids: list[int]) -> list[int]:
    """The new tokens after `ids`."""
    prompt = torch.tensor([ids])
    written: Tensor = model.generate(
        prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=NEW_TOKENS
    )
    return written[0, len(ids) :].tolist()


@one_thread()
@torch.no_grad()
def reference(directory: Path) -> Reference:
    """Load `directory` with Transformers, and return what it computes."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    model, report = transformers.AutoModelForCausalLM.from_pretrained(directory, output_loading_info=True)
    assert not any(report.values()), report
    model.eval()
    every = {text: tokenizer(text).input_ids for text in TEXTS}
    ids = {text: tokens for text, tokens in every.items() if tokens}
    continuations = {text: _greedy(model, tokens) for text, tokens in ids.items()}
    continued = {}
    special = _special_ids(model, tokenizer)
    ends = special["eos_token_id of generation_config.json"]
    for text, tokens in ids.items():
        # An end token that is not special would be shown, too.
        new = continuations[text][: -1 if continuations[text][-1] in ends else None]
        before = tokenizer.decode(tokens, skip_special_tokens=True)
        whole = tokenizer.decode(tokens + new, skip_special_tokens=True)
        is_broken = "\ufffd" in whole and "<0xFF>" in tokenizer.get_vocab()
        if whole.startswith(before) and not is_broken:
            continued[text] = whole.removeprefix(before)
    log_probs = {text: _log_probs(model, tokens) for text, tokens in ids.items() if len(tokens) > 1}
    chats = [_chat_ids(tokenizer, chat) for chat in CHATS] if tokenizer.chat_template else []
    return Reference(ids, continuations, continued, log_probs, chats, special)


def _log_probs(model: Any, ids: list[int]) -> list[float]:
    """Of each of `ids` but the first."""
    logits = model(torch.tensor([ids])).logits[0, :-1].double()
    return logits.log_softmax(-1).gather(1, torch.tensor(ids[1:])[:, None])[:, 0].tolist()


def _chat_ids(tokenizer: Any, chat: Messages) -> list[int] | None:
    try:
        encoded = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=True, return_dict=False)
    except jinja2.TemplateError:
        return None
    return list(encoded)


def _special_ids(model: Any, tokenizer: Any) -> dict[str, tuple[int, ...]]:
    files = {"config.json": model.config, "generation_config.json": model.generation_config, "tokenizer": tokenizer}
    found = {}
    for file, holder in files.items():
        for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
            value = getattr(holder, name)
            found[f"{name} of {file}"] = () if value is None else tuple(value if isinstance(value, list) else [value])
    return found
