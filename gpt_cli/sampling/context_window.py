"""The context window of a text that outgrows the context: it slides by halves (context shift in llama.cpp).

Torch's decoding uses this definition; C (`append_token` in `cpu/decode/session.h`) and NumPy implement the same.
"""


def context_start(position: int, context_length: int) -> int:
    """The first token that the prediction of token `position` sees; it sees all from there on.

    When a further token would not fit, the older half of the window is dropped, and the other moves to the front of the
    context. So a token past the context sees between half a context and a whole one, at a cost that does not grow.
    """
    half = context_length // 2
    n_dropped = -(-(position - context_length) // half)  # rounded up
    return max(0, n_dropped) * half
