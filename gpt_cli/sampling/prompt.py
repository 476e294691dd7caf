"""From the text of a prompt to the tokens that a model continues."""

from gpt_cli.tokenizer import Tokenizer


def encode_prompt(tokenizer: Tokenizer, text: str, *, parse_special: bool = False) -> list[int]:
    """The ids of `text`, at least one. An empty prompt stands for the start of a text.

    With `parse_special` the text of a special token is encoded as that token.

    That is what the tokenizer puts before a text, else the end-of-text token if the vocabulary has one, else a newline,
    else token 0. Raises UnknownCharacters for characters that the vocabulary lacks.
    """
    ids = tokenizer.encode_prompt(text, allow_special=parse_special)
    if len(ids):
        return [int(token) for token in ids]
    if tokenizer.eot_id is not None:
        return [tokenizer.eot_id]
    newline = () if tokenizer.unknown_characters("\n") else tokenizer.encode("\n")
    return [int(token) for token in newline] or [0]
