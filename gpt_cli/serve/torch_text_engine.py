"""The texts of one model by torch, for every model and device: many of them in a pass.

A pass has always as many rows, and all keys that a context has room for: what torch's kernels round depends on the
shapes, and not on what stands in the other rows. So a text is the same alone and among others, and a row that nobody
has costs no less. A prompt is read by itself.

Shapes: R rows of a table, T tokens, V vocabulary.
"""

import weakref
from collections.abc import Sequence

import torch
from torch import Tensor

from gpt_cli.capabilities import KV_CACHE, STATIC_CACHE
from gpt_cli.model.gpt import GPT
from gpt_cli.model.kv_cache import KVCache
from gpt_cli.model.static_cache import StaticCache
from gpt_cli.sampling.context_window import context_start
from gpt_cli.sampling.generate import SequenceBatch
from gpt_cli.sampling.sampling_params import SamplingParams
from gpt_cli.serve.text_engine import Logits, NewTokens, SequenceRequest
from gpt_cli.serve.token_sampling import Penalties, TokenSampler

_WORTH_THREADS = 2**28  # parameters from which a token is worth more than one of torch's threads
_FEWEST_ROWS, _MOST_ROWS_CPU, _MOST_ROWS_GPU = 2, 8, 32


class _Table:
    """Keys and values of R texts: (R, Hkv, context, D) of each layer."""

    def __init__(self, model: GPT, rows: int) -> None:
        weight = model.head.weight
        cache = KVCache(model.config, rows, device=weight.device, dtype=weight.dtype)
        self.layers = list(zip(cache.keys, cache.values, strict=True))
        self.free = list(range(rows))
        self.places: weakref.WeakValueDictionary[int, _Row] = weakref.WeakValueDictionary()

    def seat(self, place: "_Row") -> int:
        """The row of a text, which is free again when the place is forgotten."""
        row = self.free.pop()
        self.places[row] = place
        weakref.finalize(place, self.free.append, row).atexit = False
        return row


class _Place:
    single = True

    def __init__(self, model: GPT, request: SequenceRequest) -> None:
        weight = model.head.weight
        assert request.book is not None
        penalties = request.penalties or Penalties()
        self.chooser = TokenSampler(
            request.book,
            request.sampling,
            penalties,
            request.prompt,
            request.sample,
            model.head.out_features,
            weight.device,
        )
        self.matcher, self.shown = self.chooser.matcher, request.shown


class _Row(_Place):
    """A text in a table: `tokens` of its window, of which `cached` have keys and values there."""

    def __init__(self, model: GPT, request: SequenceRequest, table: _Table) -> None:
        super().__init__(model, request)
        self.tokens = list(request.prompt[-model.config.context_length :])
        self.position, self.start, self.cached = len(self.tokens), 0, 0
        self.table = table
        self.row = table.seat(self)

    def accept(self, token: int) -> None:
        self.tokens.append(token)
        self.position += 1

    def needs_prefill(self, context_length: int) -> bool:
        """True if its window is to be read anew: at the beginning, and where it has been full."""
        start = context_start(self.position, context_length)
        if start > self.start:
            del self.tokens[: start - self.start]
            self.start, self.cached = start, 0
        return self.cached == 0


class _Alone(_Place):
    """A text of a model that the tables do not know: a pass of its own for each token."""

    def __init__(self, model: GPT, request: SequenceRequest) -> None:
        super().__init__(model, request)
        self._rows = SequenceBatch(model, [request.prompt], request.sampling.max_new_tokens)
        self.next_logits = self._rows.next_logits

    def accept(self, token: int) -> None:
        self._rows.append(torch.tensor([token], device=self._rows.device))


class TorchTextEngine:
    """The model is in eval mode."""

    name = "torch"

    def __init__(self, model: GPT) -> None:
        self._model = model
        parameters = sum(weight.numel() for weight in model.parameters())
        self._small = parameters < _WORTH_THREADS
        self._device = model.head.weight.device
        self._tables: list[_Table] | None = None
        if all(cache.refusal(model.config) is None for cache in (KV_CACHE, STATIC_CACHE)):
            self._tables = []
        config = model.config
        keys = 2 * config.n_layer * config.context_length * config.kv_heads * config.head_dim
        most = _MOST_ROWS_CPU if self._device.type == "cpu" else _MOST_ROWS_GPU
        self._n_row = max(_FEWEST_ROWS, min(parameters // keys, most))  # no more to read of keys than of weights

    def needs_processors(self, sampling: SamplingParams) -> bool:
        return True

    def join(self, request: SequenceRequest) -> _Row | _Alone:
        if self._small and self._device.type == "cpu":
            torch.set_num_threads(1)  # of this thread, which writes
        with torch.inference_mode():
            if self._tables is None:
                return _Alone(self._model, request)
            table = next((table for table in self._tables if table.free), None)
            if table is None:
                table = _Table(self._model, self._n_row)
                self._tables.append(table)
            return _Row(self._model, request, table)

    @torch.inference_mode()
    def step(self, places: Sequence[_Row | _Alone], steps: int, prompt_tokens: int) -> list[NewTokens]:
        logits = self._next_logits(places, prompt_tokens)
        chosen = [places[i].chooser.draw(row) for i, row in logits.items()]
        tokens = torch.cat(chosen).tolist() if chosen else []  # the device is waited for once
        written: list[NewTokens] = [[] for _ in places]
        for (i, row), token in zip(logits.items(), tokens, strict=True):
            places[i].chooser.accept(token)
            places[i].accept(token)
            written[i] = [(token, row[0].float().cpu().numpy() if places[i].shown else None)]
        return written

    @torch.inference_mode()
    def read(self, tokens: Sequence[int]) -> Logits:
        ids = torch.tensor([list(tokens)], device=self._device)
        found: Logits = self._model(ids)[0].float().cpu().numpy()
        return found

    def _next_logits(self, places: Sequence[_Row | _Alone], prompt_tokens: int) -> dict[int, Tensor]:
        """(1, V) of each text, but of those whose prompt waits for its turn."""
        found: dict[int, Tensor] = {}
        passes: dict[_Table, list[int]] = {}
        unread = []
        for i, place in enumerate(places):
            if isinstance(place, _Alone):
                found[i] = place.next_logits()
            elif place.needs_prefill(self._model.config.context_length):
                unread.append(i)
            else:
                passes.setdefault(place.table, []).append(i)
        for table, members in passes.items():
            rows = self._decode(table)
            for i in members:
                place = places[i]
                assert isinstance(place, _Row)
                found[i] = rows[place.row, None]
                place.cached += 1
        for i in unread:
            place = places[i]
            assert isinstance(place, _Row)
            found[i] = self._prefill(place)
            prompt_tokens -= place.cached
            if prompt_tokens <= 0:
                break
        return found

    def _decode(self, table: _Table) -> Tensor:
        """(R, V): what follows the last token of each row. Where a row is not meant, what it stores is overwritten."""
        tokens, starts = [0] * self._n_row, [0] * self._n_row
        for row, place in table.places.items():
            tokens[row] = place.tokens[-1]
            starts[row] = min(place.cached, self._model.config.context_length - 1)
        ids, start = (torch.tensor(values, device=self._device) for values in (tokens, starts))
        cache = StaticCache(table.layers, start, self._model.config.context_length)
        logits: Tensor = self._model(ids[:, None], cache)[:, -1]
        return logits

    def _prefill(self, place: _Row) -> Tensor:
        """(1, V): what follows the window, whose keys and values go to the table."""
        n_token = len(place.tokens)
        weight = self._model.head.weight
        cache = KVCache(self._model.config, 1, room=n_token, device=self._device, dtype=weight.dtype)
        logits: Tensor = self._model(torch.tensor([place.tokens], device=self._device), cache)[:, -1]
        for (keys, values), new_keys, new_values in zip(place.table.layers, cache.keys, cache.values, strict=True):
            keys[place.row, :, :n_token], values[place.row, :, :n_token] = new_keys[0], new_values[0]
        place.cached = n_token
        return logits
