"""Generation of a text that outgrows the context: sliding by halves (elsewhere called context shift, or truncation).

The definition, which torch's decoding follows; that of C (`append_token` in `cpu/decode/session.h`) and of NumPy is
equal to it.
"""


def context_start(position: int, context_length: int) -> int:
    """The first token that the prediction of token `position` sees; it sees all from there on.

    This defines sampling past the context: when a further token would not fit, the older half of the window
    is dropped, and what remains moves to the front of the context. So a token past the context sees between
    half a context and a whole one, and costs the same however long the text has become.
    """
    half = context_length // 2
    n_dropped = -(-(position - context_length) // half)  # rounded up
    return max(0, n_dropped) * half
