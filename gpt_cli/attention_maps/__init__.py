"""Where a model looks: its attention weights on a text, and what kind of head each head is.

capture   the queries, keys and values of a forward pass, and the weights that follow from them
heads     simple scores: previous-token, first-token and induction heads
"""

from gpt_cli.attention_maps.capture import LayerAttention as LayerAttention
from gpt_cli.attention_maps.capture import capture_attention as capture_attention
from gpt_cli.attention_maps.heads import Head as Head
from gpt_cli.attention_maps.heads import classify_heads as classify_heads
