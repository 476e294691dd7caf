"""Generate tokens: prompts are prefilled once, then each step decodes one token for every sample.

Shapes: B samples, T tokens, V vocabulary.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from gpt_cli.model.gpt import GPT
from gpt_cli.model.kv_cache import KVCache, RaggedCache
from gpt_cli.sampling.filters import GumbelNoise
from gpt_cli.sampling.graphed_decode import GraphedDecoder, read_late
from gpt_cli.sampling.logits_processors import LogitsProcessor, choose_tokens
from gpt_cli.sampling.sampling_params import SamplingParams

PREFILL_NUMBERS = 2**26  # logits that a prefill computes at once, which bounds its memory
_KERNELS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


def attention_kernels(device: torch.device) -> AbstractContextManager[object]:
    """Attention kernels for decoding: without cuDNN's, which builds a plan for each number of keys."""
    return sdpa_kernel(_KERNELS) if device.type == "cuda" else nullcontext()


@torch.inference_mode()
def generate(
    model: GPT,
    prompts: Sequence[Sequence[int]],
    sampling: SamplingParams,
    processors: Sequence[LogitsProcessor] = (),
    samples: Sequence[int] | None = None,
    decoder: GraphedDecoder | None = None,
    log_probs: Sequence[list[float]] = (),
) -> Iterator[list[int]]:
    """Yield `max_new_tokens` times the next token of each of the B prompts.

    Prompts are not empty; of longer ones the last `context_length` tokens are seen. The model is in eval mode.
    `processors` are for these prompts, in this order. Row i is a function of its prompt, the settings and samples[i]
    (by default i), up to rounding: kernels may vary with the batch. `decoder`, where it supports the request, computes
    the same faster. With `sampling.log_probs` that of each token, under the model itself, is appended to the row's list
    of `log_probs`.
    """
    assert not model.training
    device = model.head.weight.device
    rows = SequenceBatch(model, prompts, sampling.max_new_tokens)
    noise = None
    if not sampling.greedy:
        numbers = range(len(prompts)) if samples is None else samples
        noise = GumbelNoise(sampling.seed, numbers, model.head.out_features, device)
    graphed = None
    if decoder is not None and decoder.supports(model, sampling, processors):
        graphed = decoder.begin(model, rows, sampling, processors)

    def steps() -> Iterator[Sequence[Tensor]]:
        for _ in range(sampling.max_new_tokens):
            gumbel = None if noise is None else noise.draw()
            logits = rows.prefill_due()
            chosen = None if graphed is None or logits is not None else graphed(gumbel)
            if chosen is None:
                chosen = choose_tokens(rows.decode() if logits is None else logits, gumbel, sampling, processors)
            rows.append(chosen[0])
            yield chosen

    results = read_late(steps()) if graphed is not None else ([x.tolist() for x in chosen] for chosen in steps())
    for tokens, *latest in results:
        for processor in processors:
            processor.accept(tokens)
        for recorded, log_prob in zip(log_probs, *latest, strict=False):  # there may be no lists
            recorded.append(log_prob)
        yield tokens


@torch.inference_mode()
def next_logits(model: GPT, prompts: Sequence[Sequence[int]]) -> npt.NDArray[np.float32]:
    """B prompts, as `generate` takes them -> (B, V): the logits of the token after each, on the host."""
    logits: npt.NDArray[np.float32] = SequenceBatch(model, prompts, 0).next_logits().float().cpu().numpy()
    return logits


def context_start(position: int, context_length: int) -> int:
    """The first token that the prediction of token `position` sees; it sees all from there on.

    When a further token would not fit, the older half of the window is dropped, and the other moves to the front of the
    context (context shift in llama.cpp). So a token past the context sees between half a context and a whole one, at a
    cost that does not grow. C (`append_token` in `cpu/decode/session.h`) and NumPy implement the same.
    """
    half = context_length // 2
    n_dropped = -(-(position - context_length) // half)  # rounded up
    return max(0, n_dropped) * half


class SequenceBatch:
    """B token sequences that grow in step, with the context window and the keys and values of each.

    Equal, up to rounding, to running the model anew on `sequence[context_start(position, context_length):]` for each
    token of each sequence; prompts may differ in length.
    """

    def __init__(self, model: GPT, prompts: Sequence[Sequence[int]], max_new_tokens: int | None = None) -> None:
        """`max_new_tokens` bounds the cache; None: any number may follow each prompt."""
        self.device = model.head.weight.device
        self._model = model
        self._context = model.config.context_length
        windows = [tuple(prompt[-self._context :]) for prompt in prompts]
        longest = max(map(len, windows))
        self._tokens = torch.tensor([(0,) * (longest - len(w)) + w for w in windows], device=self.device)
        """(B, T), aligned on the right; the first columns may be unused."""
        self._appended: list[Tensor] = []  # (B, 1) columns that follow
        self.latest = self._tokens[:, -1:]
        """(B, 1): the last token of each."""
        self._positions = [len(window) for window in windows]
        self._starts = [0] * len(windows)
        first = {window: row for row, window in reversed(list(enumerate(windows)))}
        self._same_as = [first[window] for window in windows]  # prefilled once for all of them
        cache_type = KVCache if len(set(self._positions)) == 1 else RaggedCache
        max_length = self._context if max_new_tokens is None else min(self._context, longest + max_new_tokens)
        self.cache: KVCache | None = None
        """Keys and values. None: the cache does not support the model; each token takes a pass over its window."""
        if all(cache.capabilities.refusal(model.config) is None for cache in (KVCache, cache_type)):
            dtype = model.head.weight.dtype
            self.cache = cache_type(model.config, len(windows), max_length=max_length, device=self.device, dtype=dtype)

    def next_logits(self) -> Tensor:
        """(B, V): the logits of each sequence's next token. Call it once after each `append` or `reorder`."""
        logits = self.prefill_due()
        return self.decode() if logits is None else logits

    def prefill_due(self) -> Tensor | None:
        """Prefill the sequences whose window has moved.

        Returns (B, V) next logits if all have; None if `decode` is to be called next.
        """
        if self.cache is not None and self.cache.length == 0:
            return self._prefill_all(self.cache)
        due = [
            row
            for row, position in enumerate(self._positions)
            if self.cache is None or self._start(position) > self._starts[row]
        ]
        for row in due:
            self._starts[row] = self._start(self._positions[row])
        if len(due) == len(self._positions):
            return self._prefill(due)
        if due:
            self._prefill(due, without_last=True)
        return None

    def decode(self) -> Tensor:
        """(B, V): the next logits, after appending the keys and values of the `latest` tokens to the cache."""
        assert self.cache is not None, "every window is due where there is no cache"
        return self._forward(self.latest, self.cache)[:, -1]

    def append(self, tokens: Tensor) -> None:
        """Append the (B,) `tokens`, one to each sequence."""
        self.latest = tokens[:, None]
        self._appended.append(self.latest)
        self._positions = [position + 1 for position in self._positions]
        if len(self._appended) >= self._context:
            self._compact()

    def reorder(self, rows: Sequence[int]) -> None:
        """Sequence i becomes a copy of sequence `rows[i]`; call it before `append` and `next_logits`."""
        if list(rows) == list(range(len(self._positions))):
            return
        self._compact()
        self._tokens = self._tokens[torch.tensor(rows, device=self.device)]
        self._positions = [self._positions[row] for row in rows]
        self._starts = [self._starts[row] for row in rows]
        if self.cache is not None:
            self.cache.reorder(rows)

    def _forward(self, tokens: Tensor, cache: KVCache | None) -> Tensor:
        """(B, T) -> (B, T, V)."""
        with attention_kernels(self.device):
            logits: Tensor = self._model(tokens, cache)
        return logits

    def _start(self, position: int) -> int:
        return context_start(position, self._context)

    def _compact(self) -> None:
        """Concatenate all tokens to one matrix, no wider than the longest window."""
        longest = max(p - s for p, s in zip(self._positions, self._starts, strict=True))
        self._tokens = torch.cat([self._tokens, *self._appended], dim=1)[:, -longest:]
        self._appended = []

    def _prefill_all(self, cache: KVCache) -> Tensor:
        """(B, V): the first logits, computed once for each distinct prompt."""
        distinct = sorted(set(self._same_as))
        logits = self._prefill(distinct)
        if len(distinct) < len(self._same_as):
            cache.reorder(self._same_as)
            logits = logits[torch.tensor([distinct.index(row) for row in self._same_as], device=self.device)]
        return logits

    def _prefill(self, rows: Sequence[int], *, without_last: bool = False) -> Tensor:
        """Compute the windows of `rows` at their new positions; returns (rows, V), the next logits.

        `without_last` leaves out the last token of each, to be decoded with the other sequences. Windows of unequal
        length are padded on the right, where causal attention hides the padding.
        """
        self._compact()
        length = {row: self._positions[row] - self._starts[row] - without_last for row in rows}
        ordered = sorted(rows, key=length.__getitem__)
        logits: dict[int, Tensor] = {}
        chunk_size = max(1, PREFILL_NUMBERS // (self._model.head.out_features * max(length.values())))
        for first in range(0, len(ordered), chunk_size):
            chunk = ordered[first : first + chunk_size]
            lengths = torch.tensor([length[row] for row in chunk], device=self.device)
            n_token = length[chunk[-1]]
            begin = self._tokens.shape[1] - without_last - lengths  # (b,)
            columns = begin[:, None] + torch.arange(n_token, device=self.device)
            columns = columns.clamp_max(self._tokens.shape[1] - 1)  # (b, t)
            tokens = self._tokens[torch.tensor(chunk, device=self.device)].gather(1, columns)
            weight = self._model.head.weight
            cache = None
            if self.cache is not None:
                config = self._model.config
                cache = KVCache(config, len(chunk), max_length=n_token, device=self.device, dtype=weight.dtype)
            last = self._forward(tokens, cache)[torch.arange(len(chunk), device=self.device), lengths - 1]  # (b, V)
            logits |= dict(zip(chunk, last, strict=True))
            if cache is not None and self.cache is not None:
                self.cache.copy_from(chunk, cache, [length[row] for row in chunk])
        return torch.stack([logits[row] for row in rows])
