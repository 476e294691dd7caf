"""Text to ids and back: one id per character, one per byte, or byte-level byte-pair encoding.

base         the Tokenizer protocol and what its kinds share
char byte    the two alphabets; the characters may have an `<unk>`, the bytes lack nothing
bpe          byte-level BPE: `pattern` splits text, `pieces`, `merging`, `fast` encode it, `vocabulary` was learned
load train   the two ways to get a tokenizer; `huggingface` and `ranks` are the files of others
stream       tokens to text while they are being generated
describe     facts about a vocabulary, for tables
"""

from gpt_cli.tokenizer.base import Ids as Ids
from gpt_cli.tokenizer.base import Tokenizer as Tokenizer
from gpt_cli.tokenizer.base import UnknownCharacters as UnknownCharacters
from gpt_cli.tokenizer.bpe import BPETokenizer as BPETokenizer
from gpt_cli.tokenizer.byte import ByteTokenizer as ByteTokenizer
from gpt_cli.tokenizer.char import CharTokenizer as CharTokenizer
from gpt_cli.tokenizer.load import load_tokenizer as load_tokenizer
from gpt_cli.tokenizer.stream import StreamDecoder as StreamDecoder
from gpt_cli.tokenizer.train import train_tokenizer as train_tokenizer
