"""Attention weights of a model on a text, and the kind of each head (previous token, first token, induction).

Read first: `capture.py`, then `heads.py`.
Never: changes the model, or computes by a path of its own: the maps are of `model/layers.py`'s own queries and keys.
"""

from gpt_cli.attention_maps.capture import LayerAttention as LayerAttention
from gpt_cli.attention_maps.capture import capture_attention as capture_attention
from gpt_cli.attention_maps.heads import Head as Head
from gpt_cli.attention_maps.heads import classify_heads as classify_heads
