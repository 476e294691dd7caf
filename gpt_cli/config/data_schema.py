"""The section `data` of the schema."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from gpt_cli.config.section import ConfigSection, Count, Name, Probability, Steps, given_values
from gpt_cli.literals import DataFormat, DocumentUnit, SplitBy
from gpt_cli.terminal.plural import plural


class DataConfig(ConfigSection):
    """The text: where it comes from and how it is split."""

    source: Name | Annotated[list[Name], Field(min_length=1)] = "builtin:python-docs"
    """A text file, folder, glob, `-` (standard input), token store, `builtin:NAME`, `corpus:NAME`, `hf:NAME` (Hugging
    Face; needs the network), or a list of these. Paths are relative to the current directory, not to the config's."""
    weights: Annotated[list[Count], Field(min_length=1)] | None = None
    """Repetitions of each listed source in the training split. null: once each."""
    encoding: Name = "utf-8"
    """Encoding of the text files, by Python's name for it. JSON lines and Parquet are always UTF-8."""
    text_key: Name = "text"
    """Key of JSON records, or column of tables, that holds the documents."""
    documents: DocumentUnit | None = None
    """Reads every file as plain text, of which the whole file, each line or each paragraph is a document. null: by its
    suffix, a file of .json, .jsonl, .csv, .tsv or .parquet by its records, .ipynb by its cells, any other whole."""
    format: DataFormat = "text"
    """text; labelled: texts with a label, which task.kind classes chooses; pairs: prompts and their completions, under
    two keys of records; chat: lists of messages with a role (system, user, assistant) and a content, or with the from
    (system, human, gpt) and value of ShareGPT."""
    label_key: Name = "label"
    """Of labelled texts: the key or column of the label, a text or a whole number. The label of a plain text file is
    the name of its folder."""
    prompt_key: Name | Annotated[list[Name], Field(min_length=1)] = "prompt"
    """Of pairs: the key or column of the prompts, or a list of several, whose texts are joined by line breaks; all but
    the first may be missing or empty."""
    completion_key: Name = "completion"
    """Of pairs: the key or column of the completions."""
    messages_key: Name = "messages"
    """Of chat: the key of the messages; in tables a column of their JSON. A text under the key `system` beside them is
    the system message."""
    prompt_end: Name = "\x02"
    """Of pairs and chat: stands between a prompt and its completion, or a role and its message. A control character,
    which no text has, unless a vocabulary without it is to be used further."""
    completion_end: Name = "\x03"
    """Of pairs and chat: ends each completion, or each message; so no completion may contain it."""
    loss_on: Literal["completion", "all"] = "completion"
    """Of pairs and chat: which tokens are learned and evaluated, those of completions (in a chat, of what the assistant
    says) with their ends, or those of prompts, too."""
    too_long: Literal["drop", "cut"] | None = None
    """Of pairs, chat and labelled texts: whether an example that is longer than the context is left out, or loses its
    end. null: pairs and chats are left out, labelled texts lose their end."""
    split: SplitBy = "characters"
    """Unit that is never divided between splits. characters: the text is cut in order, training first, then validation,
    then test; else the documents (or files) are dealt out by a hash of their content, equal ones alike. Lines and
    paragraphs are documents. Pairs and chats are, too, dealt out by a hash of what comes before the last completion,
    and so are labelled texts, each label by itself."""
    split_seed: Steps = 0
    """Of labelled texts: another number deals out others."""
    val_fraction: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.1
    """Share of the text held out for validation: the last part where `split` is characters."""
    test_fraction: Probability = 0.0
    """Share held out besides for `gpt eval --split test`, which alone reads it: the part after validation's."""
    val_source: Name | Annotated[list[Name], Field(min_length=1)] | None = None
    """Texts that validate, in place of a val_fraction of `source`. null: none."""
    rules: Annotated[int, Field(ge=1, le=2)] = 2
    """Rules by which files are read and examples dealt out and ordered; 1: those of runs begun before this key."""

    @property
    def sources(self) -> list[str]:
        """`source` as a list."""
        return [self.source] if isinstance(self.source, str) else self.source

    @property
    def val_sources(self) -> list[str]:
        """`val_source` as a list, empty for null."""
        return [self.val_source] if isinstance(self.val_source, str) else self.val_source or []

    @property
    def prompt_keys(self) -> list[str]:
        """`prompt_key` as a list."""
        return [self.prompt_key] if isinstance(self.prompt_key, str) else self.prompt_key

    @property
    def learned_end(self) -> str:
        """The text with which a model of pairs, chats or lines learns to end what it writes; empty for other texts."""
        if self.format in ("pairs", "chat"):
            return self.completion_end
        return "\n" if self.documents == "lines" else ""

    @model_validator(mode="before")
    @classmethod
    def _divide_by_examples(cls, values: Any) -> Any:
        """Pairs, chats, lines and paragraphs are never cut in two."""
        if not isinstance(values, Mapping) or values.get("format") not in ("pairs", "chat", "labelled"):
            if isinstance(values, Mapping) and values.get("documents") in ("lines", "paragraphs"):  # of a text
                by_default = values.get("split", "characters") == "characters"
                return {**values, "split": "documents"} if by_default else values
            # Runs made when this was the default have it written down, also those of text.
            return {**values, "too_long": None} if given_values(values).get("too_long") == "drop" else values
        if values.get("too_long") is None:
            values = {**values, "too_long": "cut" if values["format"] == "labelled" else "drop"}
        return {**values, "split": "documents"} if values.get("split", "characters") == "characters" else values

    @model_validator(mode="after")
    def _check_values(self) -> Self:
        if self.format != "text" and self.split != "documents":
            raise ValueError(f"data.split {self.split} is for texts: data.format {self.format} is split by documents")
        keys = {"pairs": "data.prompt_key and data.completion_key", "chat": "data.messages_key"}
        if self.format in keys and self.text_key != "text":
            raise ValueError(f"data.text_key is for texts: data.format {self.format} is read by {keys[self.format]}")
        if self.format == "pairs" and self.completion_key in self.prompt_keys:
            raise ValueError(f"data.prompt_key and data.completion_key are both {self.completion_key!r}")
        if self.format == "labelled" and self.text_key == self.label_key:
            raise ValueError(f"data.text_key and data.label_key are both {self.text_key!r}")
        if self.val_source is None and self.val_fraction + self.test_fraction >= 1:
            raise ValueError(
                f"data.val_fraction ({self.val_fraction}) and data.test_fraction ({self.test_fraction})"
                " must leave a part to train on"
            )
        if self.weights is not None and len(self.weights) != len(self.sources):
            numbers = plural(len(self.weights), "number")
            raise ValueError(f"data.weights has {numbers} for {plural(len(self.sources), 'source')} in data.source")
        return self
