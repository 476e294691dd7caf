"""Texts from a model's weights, many tokens a call: by the compiled kernel, or by NumPy.

Shapes: T tokens, V vocabulary, B texts written together.
"""

import ctypes
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Literal, Protocol

import numpy as np

from gpt_cli.native import reference
from gpt_cli.native.choice import Choice, choose, draw
from gpt_cli.native.kernel import NoKernel, load_kernel
from gpt_cli.native.weights import Array, LayerWeights, Weights

WeightFormat = Literal["fp32", "bf16", "int8"]
FORMATS: tuple[WeightFormat, ...] = ("fp32", "bf16", "int8")
_MLPS = ("relu", "gelu", "swiglu", "relu2")
_CHUNK_SECONDS = 0.01
_ACTIVATION_STEPS = 127 * 256  # of int8, whose products are of integers: two bytes for what the weights meet
_PROBE = 7  # tokens that are compared when a model is opened
_TOLERANCE = 1e-3  # of the largest logit, between fp32 sums in two orders; a wrong network differs by far more


@dataclass(frozen=True)
class Draft:
    """Where guesses come from, by which one text is written faster: several tokens by one pass over the weights.

    They do not change the text: a guess stays only where it is the token that would have been chosen without.
    """

    model: "NativeDecoder | None" = None
    """A smaller model with the same vocabulary. None: n-grams, of the prompt, of what is written, and of `text`."""
    text: Sequence[int] = ()
    """Tokens of a text that is like what will be written, such as what the model learned from."""
    length: int | None = None
    """Guesses that a pass looks at, where there are so many. None: as many as pay, by how often they were right."""


class Decoder(Protocol):
    """A model that writes."""

    engine: str
    weights: Weights

    def begin(
        self, prompts: Sequence[Sequence[int]], seeds: Sequence[int], choice: Choice, draft: Draft | None = None
    ) -> "Writing":
        """Begin a text for each prompt (not empty; of a long one the last `context_length` tokens are seen).

        A `draft` makes a single text faster; the texts of a batch, which share the weights already, are not drafted.
        """

    def score(self, tokens: Sequence[int]) -> Array:
        """(T,) tokens, at most a context -> (T, V): the logits of what follows each."""


class Writing(Protocol):
    """Texts that are being written."""

    def write(self, steps: int) -> list[list[int]]:
        """Up to `steps` lists of the next token of each text; fewer once all texts have ended."""

    def stop(self, text: int) -> None:
        """Text number `text` has ended: what is written for it from now on means nothing."""


def tokens_of(writing: Writing, length: int) -> Iterator[list[list[int]]]:
    """`length` steps in chunks: of one token at first, so that it comes at once, then of what takes some 10 ms, so
    that text streams, Ctrl-C is heard, and what Python does between the chunks is lost in them.
    """
    done, size = 0, 1
    while done < length:
        size = min(size, length - done)
        started = time.perf_counter()
        written = writing.write(size)
        seconds = time.perf_counter() - started
        if written:
            yield written
        done += size
        if len(written) < size:
            return
        size = min(2 * size, 256) if seconds < _CHUNK_SECONDS else max(1, size // 2)


class NativeDecoder:
    """By the compiled kernel. `threads` share the work of each token; `format` is how it keeps the matrices.

    Raises NoKernel when there is no kernel, or its logits differ from those of the reference on a probe.
    """

    engine = "native"

    def __init__(self, weights: Weights, *, format: WeightFormat = "fp32", threads: int = 1) -> None:
        self.weights = weights
        self.format = format
        self._library = _library()
        net, layers = _describe(weights, format, threads)
        self._keep = (net, layers)  # what the kernel points into
        self._model = _Handle(self._library.gpt_open(ctypes.byref(net), layers), self._library.gpt_close)
        self._check()

    def begin(
        self, prompts: Sequence[Sequence[int]], seeds: Sequence[int], choice: Choice, draft: Draft | None = None
    ) -> "NativeWriting":
        writing = NativeWriting(self, prompts, seeds, choice)
        if draft is not None and len(prompts) == 1:
            writing.draft(draft, prompts[0])
        return writing

    def score(self, tokens: Sequence[int]) -> Array:
        logits = np.empty((len(tokens), self.weights.vocab_size), np.float32)
        session = self.begin([tokens[:1]], [0], Choice(temperature=0.0))
        ids = np.asarray(tokens, np.int32)
        self._library.gpt_score(session.handle.pointer, _address(ids), len(tokens), _address(logits))
        return logits

    def _check(self) -> None:
        """Compare the logits of a probe with the reference's, on these very weights."""
        vocab_size, length = self.weights.vocab_size, min(_PROBE, self.weights.config.context_length)
        probe = [(i * i * 31 + 7) % vocab_size for i in range(length)]
        expected, found = reference.forward(self._kept_weights(), probe), self.score(probe)
        allowed = _TOLERANCE * max(1.0, float(np.abs(expected).max()))
        if not np.abs(expected - found).max() <= allowed:  # also when something is not a number
            raise NoKernel("its logits differ from those of the reference")

    def _kept_weights(self) -> Weights:
        """The weights as the kernel keeps them: rounded to their format."""
        return self.weights if self.format == "fp32" else rounded(self.weights, self.format)


class NativeWriting:
    """Texts that the kernel writes."""

    def __init__(
        self, decoder: NativeDecoder, prompts: Sequence[Sequence[int]], seeds: Sequence[int], choice: Choice
    ) -> None:
        context = decoder.weights.config.context_length
        windows = [prompt[-context:] for prompt in prompts]
        ids = np.concatenate([np.asarray(window, np.int32) for window in windows])
        lengths = np.array([len(window) for window in windows], np.int32)
        self._decoder = decoder
        self._library = decoder._library
        self._batch = len(prompts)
        self._end_of_text = -1 if choice.end_of_text is None else choice.end_of_text
        never = np.array(choice.never, np.int32)
        settings = _Sampling(
            temperature=0.0 if choice.greedy else choice.temperature,
            top_k=choice.top_k or 0,
            top_p=choice.top_p or 0.0,
            log_min_p=0.0 if choice.min_p is None else float(np.log(choice.min_p)),
            use_min_p=choice.min_p is not None,
            n_never=len(never),
            never=_address(never),
        )
        low = np.array([seed & 0xFFFFFFFF for seed in seeds], np.uint32)
        pointer = self._library.gpt_begin(
            decoder._model.pointer, self._batch, _address(ids), _address(lengths), _address(low), ctypes.byref(settings)
        )
        self.handle = _Handle(pointer, self._library.gpt_end)
        self._drafts: NativeWriting | None = None  # of the smaller model

    def draft(self, draft: Draft, prompt: Sequence[int]) -> None:
        """Guess from now on; nothing has been written yet. Raises MemoryError."""
        known = np.zeros(0, np.int32)
        if draft.model is None:
            known = np.concatenate([np.asarray(draft.text, np.int32), np.asarray(prompt, np.int32)])
        elif draft.model.weights.vocab_size != self._decoder.weights.vocab_size:
            raise ValueError("the model that guesses has another vocabulary")
        else:
            self._drafts = draft.model.begin([prompt], [0], Choice(temperature=0.0))
        small = None if self._drafts is None else self._drafts.handle.pointer
        if not self._library.gpt_draft(self.handle.pointer, small, _address(known), len(known), draft.length or 0):
            raise MemoryError

    def drafted(self) -> tuple[int, int, int]:
        """With a draft: passes over the weights, tokens that were guessed, and those of them that were right."""
        numbers = np.zeros(3, np.int64)
        self._library.gpt_drafted(self.handle.pointer, _address(numbers))
        passes, guessed, right = numbers.tolist()
        return passes, guessed, right

    def write(self, steps: int) -> list[list[int]]:
        return self._write(steps, None)

    def stop(self, text: int) -> None:
        self._library.gpt_stop(self.handle.pointer, text)

    def write_with_logits(self, steps: int) -> tuple[list[list[int]], Array]:
        """Also the (steps, B, V) logits that the tokens were chosen from."""
        logits = np.empty((steps, self._batch, self._decoder.weights.vocab_size), np.float32)
        return self._write(steps, logits), logits

    def push(self, text: int, tokens: Sequence[int]) -> None:
        """Go on with these tokens, whatever would have been written."""
        ids = np.asarray(tokens, np.int32)
        self._library.gpt_push(self.handle.pointer, text, _address(ids), len(tokens))

    def _write(self, steps: int, logits: Array | None) -> list[list[int]]:
        tokens = np.empty((steps, self._batch), np.int32)
        made = self._library.gpt_write(
            self.handle.pointer,
            steps,
            self._end_of_text,
            _address(tokens),
            None if logits is None else _address(logits),
        )
        written: list[list[int]] = tokens[:made].tolist()
        return written


class NumpyDecoder:
    """By NumPy: slower than the kernel, and still without torch."""

    engine = "numpy"

    def __init__(self, weights: Weights) -> None:
        self.weights = weights

    def begin(
        self, prompts: Sequence[Sequence[int]], seeds: Sequence[int], choice: Choice, draft: Draft | None = None
    ) -> "NumpyWriting":
        return NumpyWriting(self.weights, prompts, seeds, choice)

    def score(self, tokens: Sequence[int]) -> Array:
        return reference.forward(self.weights, list(tokens))


class NumpyWriting:
    """Texts that NumPy writes, one after another."""

    def __init__(
        self, weights: Weights, prompts: Sequence[Sequence[int]], seeds: Sequence[int], choice: Choice
    ) -> None:
        context = weights.config.context_length
        self._weights, self._choice = weights, choice
        self._windows = [list(prompt[-context:]) for prompt in prompts]
        self._caches = [reference.NumpyCache(weights) for _ in prompts]
        self._twisters = [np.random.RandomState(seed & 0xFFFFFFFF) for seed in seeds]
        self._ended = [False] * len(prompts)

    def write(self, steps: int) -> list[list[int]]:
        written: list[list[int]] = []
        for _ in range(steps):
            if all(self._ended):
                break
            written.append([self._next(text) for text in range(len(self._windows))])
        return written

    def stop(self, text: int) -> None:
        self._ended[text] = True

    def _next(self, text: int) -> int:
        window, cache, context = self._windows[text], self._caches[text], self._weights.config.context_length
        noise = None if self._choice.greedy else draw(self._twisters[text], self._weights.vocab_size)
        if self._ended[text]:
            return window[-1]
        logits = reference.forward(self._weights, window[cache.length :], cache)[-1]
        token = choose(logits, self._choice, noise)
        if len(window) == context:  # the older half goes, the rest is read anew
            del window[: context // 2]
            cache.length = 0
        window.append(token)
        self._ended[text] = token == self._choice.end_of_text
        return token


def rounded(weights: Weights, format: WeightFormat) -> Weights:
    """The weights with their matrices as the kernel keeps them in `format`, in fp32 again."""
    matrices = ("qkv", "out", "up", "down")
    layers = tuple(
        LayerWeights(**{f.name: getattr(layer, f.name) for f in fields(layer)}
                     | {name: _round(getattr(layer, name), format) for name in matrices})
        for layer in weights.layers
    )  # fmt: skip
    kept = {f.name: getattr(weights, f.name) for f in fields(weights)}
    steps = _ACTIVATION_STEPS if format == "int8" else None
    return Weights(**kept | {"layers": layers, "head": _round(weights.head, format), "activation_steps": steps})


def _round(matrix: Array, format: WeightFormat) -> Array:
    if format == "bf16":
        words = matrix.view(np.uint32)
        return ((words + 0x7FFF + ((words >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)
    if format == "int8":
        most = np.abs(matrix).max(axis=1, keepdims=True)
        factor = np.divide(127, most, out=np.zeros_like(most), where=most > 0)
        kept: Array = np.rint(matrix * factor) * (most / 127)
        return kept
    return matrix


class _Handle:
    """Something that the kernel made, and unmakes when nobody needs it any more."""

    def __init__(self, pointer: int | None, close: "ctypes._NamedFuncPointer") -> None:
        if not pointer:
            raise MemoryError("no room for the model and its texts")
        self.pointer = ctypes.c_void_p(pointer)
        self._close = close

    def __del__(self) -> None:
        if (pointer := getattr(self, "pointer", None)) is not None:
            self._close(pointer)


_INTEGERS = (
    *("n_layer", "n_head", "n_kv_head", "head_dim", "n_embd", "mlp_hidden", "vocab_size", "context_length"),
    *("layernorm", "post_norm", "mlp", "window", "format", "threads"),
)
_FLOATS = ("norm_eps", "softcap", "embedding_scale")
_POINTERS = ("tokens", "positions", "cosines", "sines", "norm", "norm_bias", "head")


class _Network(ctypes.Structure):  # Network in decode.c
    _fields_ = (
        [(name, ctypes.c_int32) for name in _INTEGERS]
        + [(name, ctypes.c_float) for name in _FLOATS]
        + [(name, ctypes.c_void_p) for name in _POINTERS]
    )


class _Layer(ctypes.Structure):  # Layer in decode.c
    _fields_ = [(field.name, ctypes.c_void_p) for field in fields(LayerWeights)]


class _Sampling(ctypes.Structure):  # Sampling in decode.c
    _fields_ = [
        ("temperature", ctypes.c_float),
        ("top_k", ctypes.c_int32),
        ("top_p", ctypes.c_double),
        ("log_min_p", ctypes.c_float),
        ("use_min_p", ctypes.c_int32),
        ("n_never", ctypes.c_int32),
        ("never", ctypes.c_void_p),
    ]


def _library() -> ctypes.CDLL:
    library = load_kernel()
    for name, result, arguments in (
        ("gpt_open", ctypes.c_void_p, 2),
        ("gpt_close", None, 1),
        ("gpt_begin", ctypes.c_void_p, 6),
        ("gpt_end", None, 1),
        ("gpt_write", ctypes.c_int32, 5),
        ("gpt_stop", None, 2),
        ("gpt_push", None, 4),
        ("gpt_draft", ctypes.c_int32, 5),
        ("gpt_drafted", None, 2),
        ("gpt_score", None, 4),
    ):
        getattr(library, name).restype = result
        whole = {"gpt_begin": {1}, "gpt_write": {1, 2}, "gpt_stop": {1}, "gpt_push": {1, 3}}
        whole |= {"gpt_draft": {3, 4}, "gpt_score": {2}}
        getattr(library, name).argtypes = [
            ctypes.c_int32 if i in whole.get(name, ()) else ctypes.c_void_p for i in range(arguments)
        ]
    return library


def _describe(weights: Weights, format: WeightFormat, threads: int) -> tuple[_Network, "ctypes.Array[_Layer]"]:
    config = weights.config
    net = _Network(
        n_layer=config.n_layer,
        n_head=config.n_head,
        n_kv_head=config.kv_heads,
        head_dim=config.head_dim,
        n_embd=config.n_embd,
        mlp_hidden=config.mlp_hidden,
        vocab_size=weights.vocab_size,
        context_length=config.context_length,
        layernorm=config.norm == "layernorm",
        post_norm=config.norm_position == "post",
        mlp=_MLPS.index(config.mlp),
        window=0 if config.window is None else min(config.window, config.context_length),
        format=FORMATS.index(format),
        threads=threads,
        norm_eps=config.norm_eps,
        softcap=config.logit_softcap or 0.0,
        embedding_scale=weights.embedding_scale,
        **{name: _address(getattr(weights, name)) for name in _POINTERS},
    )
    layers = (_Layer * config.n_layer)(
        *(_Layer(*(_address(getattr(layer, f.name)) for f in fields(layer))) for layer in weights.layers)
    )
    return net, layers


def _address(array: "np.ndarray[tuple[int, ...], np.dtype[np.generic]] | None") -> int | None:
    """Where the numbers of an array begin; whoever passes it on keeps the array."""
    return None if array is None else array.ctypes.data
