"""The text engine on torch, for every model and device: one forward pass decodes many sequences.

Every pass has the same number of rows, and keys for a full context: how torch's kernels round depends on the shapes,
but not on the content of other rows. So a sequence is the same alone and in a full batch, and an unused row costs as
much as a used one. Each prompt is prefilled in a pass of its own.

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
from gpt_cli.sampling.generate import SequenceBatch, context_start, next_logits
from gpt_cli.sampling.sampling_params import SamplingParams
from gpt_cli.serve.text_engine import Logits, NewTokens
from gpt_cli.serve.text_sequence import TextSequence
from gpt_cli.serve.token_sampling import TokenSampler

_MULTITHREADED_PARAMETERS = 2**28  # a model with fewer decodes faster on one of torch's threads
_MIN_ROWS, _MAX_ROWS_CPU, _MAX_ROWS_GPU = 2, 8, 32


class _KVTable:
    """Keys and values of R sequences: (R, Hkv, context, D) of each layer."""

    def __init__(self, model: GPT, rows: int) -> None:
        weight = model.head.weight
        cache = KVCache(model.config, rows, device=weight.device, dtype=weight.dtype)
        self.layers = list(zip(cache.keys, cache.values, strict=True))
        self.free_rows = list(range(rows))
        self.slots: weakref.WeakValueDictionary[int, _TableSlot] = weakref.WeakValueDictionary()

    def assign_row(self, slot: "_TableSlot") -> int:
        """A free row for the slot. The row is free again when the slot is garbage-collected."""
        row = self.free_rows.pop()
        self.slots[row] = slot
        weakref.finalize(slot, self.free_rows.append, row).atexit = False
        return row


class _TableSlot(TokenSampler):
    """A row of a table: `tokens` of the sequence's window, of which `cached` have keys and values there."""

    def __init__(self, model: GPT, sequence: TextSequence, table: _KVTable) -> None:
        super().__init__(sequence, model.head.out_features, model.head.weight.device)
        self.tokens = list(sequence.opening.tokens[-model.config.context_length :])
        self.position, self.start, self.cached = len(self.tokens), 0, 0
        self.table = table
        self.row = table.assign_row(self)

    def accept(self, token: int) -> None:
        super().accept(token)
        self.tokens.append(token)
        self.position += 1

    def needs_prefill(self, context_length: int) -> bool:
        """True at the beginning, and where the window was full and moves on: all its keys are computed again then."""
        start = context_start(self.position, context_length)
        if start > self.start:
            del self.tokens[: start - self.start]
            self.start, self.cached = start, 0
        return self.cached == 0


class _UnbatchedSlot(TokenSampler):
    """A sequence of a model that has no static cache: a forward pass of its own for each token."""

    def __init__(self, model: GPT, sequence: TextSequence) -> None:
        super().__init__(sequence, model.head.out_features, model.head.weight.device)
        self._batch = SequenceBatch(model, [sequence.opening.tokens], sequence.request.sampling.max_new_tokens)
        self.next_logits = self._batch.next_logits

    def accept(self, token: int) -> None:
        super().accept(token)
        self._batch.append(torch.tensor([token], device=self._batch.device))


class TorchTextEngine:
    """Generates with a model in eval mode."""

    name = "torch"

    def __init__(self, model: GPT) -> None:
        self._model = model
        parameters = sum(weight.numel() for weight in model.parameters())
        self._single_threaded = parameters < _MULTITHREADED_PARAMETERS
        self._device = model.head.weight.device
        self._tables: list[_KVTable] | None = None
        if all(cache.refusal(model.config) is None for cache in (KV_CACHE, STATIC_CACHE)):
            self._tables = []
        config = model.config
        row_size = 2 * config.n_layer * config.context_length * config.kv_heads * config.head_dim
        max_rows = _MAX_ROWS_CPU if self._device.type == "cpu" else _MAX_ROWS_GPU
        self._n_row = max(_MIN_ROWS, min(parameters // row_size, max_rows))  # reads no more of keys than of weights

    def needs_processors(self, sampling: SamplingParams) -> bool:
        return True

    def join(self, sequence: TextSequence) -> _TableSlot | _UnbatchedSlot:
        if self._single_threaded and self._device.type == "cpu":
            torch.set_num_threads(1)  # applies to this thread, the scheduler's
        with torch.inference_mode():
            if self._tables is None:
                return _UnbatchedSlot(self._model, sequence)
            table = next((table for table in self._tables if table.free_rows), None)
            if table is None:
                table = _KVTable(self._model, self._n_row)
                self._tables.append(table)
            return _TableSlot(self._model, sequence, table)

    @torch.inference_mode()
    def step(self, slots: Sequence[_TableSlot | _UnbatchedSlot], steps: int, prompt_tokens: int) -> list[NewTokens]:
        logits = self._next_logits(slots, prompt_tokens)
        drawn = [slots[i].draw(slot_logits) for i, slot_logits in logits.items()]
        tokens = torch.cat(drawn).tolist() if drawn else []  # the only synchronization with the device
        new_tokens: list[NewTokens] = [[] for _ in slots]
        for (i, slot_logits), token in zip(logits.items(), tokens, strict=True):
            slots[i].accept(token)
            new_tokens[i] = [(token, slot_logits[0].float().cpu().numpy() if slots[i].return_logits else None)]
        return new_tokens

    def next_logits(self, prompts: Sequence[Sequence[int]]) -> Logits:
        return next_logits(self._model, prompts)

    @torch.inference_mode()
    def prompt_logits(self, tokens: Sequence[int]) -> Logits:
        ids = torch.tensor([list(tokens)], device=self._device)
        logits: Logits = self._model(ids)[0].float().cpu().numpy()
        return logits

    def _next_logits(self, slots: Sequence[_TableSlot | _UnbatchedSlot], prompt_tokens: int) -> dict[int, Tensor]:
        """The (1, V) logits of each slot by its index; a slot that `prompt_tokens` leaves for a later step has none."""
        logits: dict[int, Tensor] = {}
        decoded: dict[_KVTable, Tensor] = {}
        prompt_tokens = max(1, prompt_tokens)
        for i, slot in enumerate(slots):
            if isinstance(slot, _UnbatchedSlot):
                logits[i] = slot.next_logits()
            elif not slot.needs_prefill(self._model.config.context_length):
                if slot.table not in decoded:
                    decoded[slot.table] = self._decode(slot.table)
                logits[i] = decoded[slot.table][slot.row, None]
                slot.cached += 1
            elif prompt_tokens > 0:
                logits[i] = self._prefill(slot)
                prompt_tokens -= slot.cached
        return logits

    def _decode(self, table: _KVTable) -> Tensor:
        """(R, V): the logits after the last token of each row. A row that does not decode now writes a key that its
        next pass overwrites."""
        tokens, starts = [0] * self._n_row, [0] * self._n_row
        for row, slot in table.slots.items():
            tokens[row] = slot.tokens[-1]
            starts[row] = min(slot.cached, self._model.config.context_length - 1)
        ids, start = (torch.tensor(values, device=self._device) for values in (tokens, starts))
        cache = StaticCache(table.layers, start, self._model.config.context_length)
        logits: Tensor = self._model(ids[:, None], cache)[:, -1]
        return logits

    def _prefill(self, slot: _TableSlot) -> Tensor:
        """(1, V): the logits after the slot's window, whose keys and values are copied to its row of the table."""
        n_token = len(slot.tokens)
        weight = self._model.head.weight
        cache = KVCache(self._model.config, 1, max_length=n_token, device=self._device, dtype=weight.dtype)
        logits: Tensor = self._model(torch.tensor([slot.tokens], device=self._device), cache)[:, -1]
        for (keys, values), new_keys, new_values in zip(slot.table.layers, cache.keys, cache.values, strict=True):
            keys[slot.row, :, :n_token], values[slot.row, :, :n_token] = new_keys[0], new_values[0]
        slot.cached = n_token
        return logits
