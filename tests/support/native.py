"""Numbers of the compiled code that only tests ask for.

Shapes: B texts or sequences, T tokens, C n_embd, H heads, V vocabulary.
"""

import ctypes

import numpy as np
import torch
from torch import Tensor

from gpt_cli.cpu.decode.bindings import address
from gpt_cli.cpu.decode.decoder import NativeSession
from gpt_cli.cpu.decode.weights import Array
from gpt_cli.cpu.train.native_engine import NativeEngine


def decode_with_logits(session: NativeSession, steps: int) -> tuple[list[list[int]], Array]:
    """The tokens that `session.decode` returns, and the (steps, B, V) logits that they were chosen from."""
    tokens = np.empty((steps, session._batch), np.int32)
    logits = np.empty((steps, session._batch, session._decoder.weights.vocab_size), np.float32)
    n_steps = session._library.gpt_write(session.handle.pointer, steps, address(tokens), address(logits))
    return tokens[:n_steps].tolist(), logits


def dropout_masks(native: NativeEngine, rows: int, seed: int) -> Tensor:
    """(1 + 2 n_layer, rows, C) factors that `seed` draws: of the embedding, then of each block's two parts."""
    net = native._net
    factors = torch.empty(1 + 2 * net.n_layer, rows, net.n_embd)
    native.library.calls.draw_dropout(ctypes.byref(net), seed, rows, factors.data_ptr())
    return factors


def attention_dropout_masks(native: NativeEngine, sequences: int, length: int, seed: int) -> Tensor:
    """(n_layer, B, H, T, T) factors that `seed` draws, a row for each query."""
    net = native._net
    factors = torch.empty(net.n_layer, sequences, net.n_head, length, length)
    native.library.calls.draw_attention_dropout(ctypes.byref(net), seed, sequences, length, factors.data_ptr())
    return factors.transpose(-2, -1)
