"""Tokenizers: characters, bytes, byte-level BPE; training them, loading other people's files.

Read first: `base.py` (the protocol), then `bpe.py`; `corpus/encoder_pool.py` encodes on all cores.
Never: loses a character silently, or imports torch.
"""

from gpt_cli.tokenizer.alphabets import ByteTokenizer as ByteTokenizer
from gpt_cli.tokenizer.alphabets import CharTokenizer as CharTokenizer
from gpt_cli.tokenizer.base import Ids as Ids
from gpt_cli.tokenizer.base import Tokenizer as Tokenizer
from gpt_cli.tokenizer.base import UnknownCharacters as UnknownCharacters
from gpt_cli.tokenizer.base import drop_unknown as drop_unknown
from gpt_cli.tokenizer.base import token_sizes as token_sizes
from gpt_cli.tokenizer.bpe import BPETokenizer as BPETokenizer
from gpt_cli.tokenizer.foreign import ForeignTokenizer as ForeignTokenizer
from gpt_cli.tokenizer.loader import load_tokenizer as load_tokenizer
from gpt_cli.tokenizer.stream_decoder import StreamDecoder as StreamDecoder
from gpt_cli.tokenizer.trainer import train_tokenizer as train_tokenizer
