"""From the text of a prompt to the tokens that a model continues."""

from gpt_cli.tokenizer import Tokenizer


def encode_prompt(tokenizer: Tokenizer, text: str) -> list[int]:
    """The ids of `text`, at least one. An empty prompt stands for the start of a text.

    That is encoded as the end-of-text token if the vocabulary has one, else as a newline, else as token 0. Raises
    UnknownCharacters for characters that the vocabulary lacks.
    """
    if text:
        return [int(token) for token in tokenizer.encode(text)]
    if tokenizer.eot_id is not None:
        return [tokenizer.eot_id]
    return [0] if tokenizer.unknown_characters("\n") else encode_prompt(tokenizer, "\n")
