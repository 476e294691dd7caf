"""The sections `task`, `data` and `sample` of the schema: what is learned, from which text, and what is written."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from gpt_cli.config.section import (
    Conditions,
    ConfigSection,
    Count,
    Every,
    Name,
    Positive,
    Probability,
    Steps,
    given_values,
)
from gpt_cli.literals import DataFormat, DocumentUnit, SplitBy

# Bounds beyond which fp32 logits would overflow, or a search the memory.
MAX_TEMPERATURE = 1e6
MAX_PENALTY = 1e6
MAX_LENGTH_PENALTY = 10.0
MAX_BEAMS = 1024


class TaskConfig(ConfigSection):
    """Prediction of the model: the next token, or a class of the whole text."""

    kind: Literal["language", "classes"] = "language"
    """language: the next token. classes: the label of a text, by a linear head over its tokens; texts and labels are
    read as `data.text_key` and `data.label_key` say."""
    labels: Annotated[list[Name], Field(min_length=2)] | None = None
    """Names of the classes in their order. null: those in the data, sorted; the run keeps them."""
    pooling: Literal["last", "mean"] = "last"
    """Input of the head: the features of the last token, or their mean over all tokens."""
    class_weights: Literal["balanced"] | Annotated[list[Positive], Field(min_length=2)] | None = None
    """Factor of each class in the loss of training. balanced: examples over classes times examples of the class; the
    run keeps the numbers. null: none."""
    trains: Literal["all", "head"] = "all"
    """head: only the head is trained, on the features of train.init_from as they are."""

    conditions: ClassVar[Conditions] = (
        (lambda t: len(set(t.labels or ())) == len(t.labels or ()), "{} has a label twice", "labels"),
        (
            lambda t: not isinstance(t.class_weights, list) or len(t.class_weights) == len(t.labels or ()),
            "{} must have a number for each of {}",
            "class_weights labels",
        ),
    )

    @property
    def predicted(self) -> Literal["token", "text"]:
        """That of which there is one loss each."""
        return "text" if self.kind == "classes" else "token"


class DataConfig(ConfigSection):
    """The text: where it comes from and how it is split."""

    source: Name | Annotated[list[Name], Field(min_length=1)] = "builtin:python-docs"
    """A text file, folder, glob, `-` (standard input), token store, `builtin:NAME`, `corpus:NAME`, `hf:OWNER/NAME`
    (Hugging Face Hub; a run keeps the commit), or a list of these. Paths are relative to the current directory, not to
    the config's."""
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
    def source_weights(self) -> list[int]:
        """`weights`, one for each source."""
        return self.weights or [1] * len(self.sources)

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
        given = given_values(values)
        is_text = given.get("format") not in ("pairs", "chat", "labelled")
        changes: dict[str, Any] = {}
        if given.get("split", "characters") == "characters" and (
            not is_text or given.get("documents") in ("lines", "paragraphs")
        ):
            changes["split"] = "documents"
        if is_text and given.get("too_long") == "drop" and given.get("documents") not in ("lines", "paragraphs"):
            changes["too_long"] = None  # runs made when this was the default have it written down, also those of text
        if not is_text and given.get("too_long") is None:
            changes["too_long"] = "cut" if given["format"] == "labelled" else "drop"
        return {**given, **changes} if changes else values

    conditions: ClassVar[Conditions] = (
        (lambda d: d.format == "text" or d.split == "documents", "{} is for texts, not for {}", "split format"),
        (
            lambda d: d.format != "pairs" or d.completion_key not in d.prompt_keys,
            "{} and {} must be two keys",
            "prompt_key completion_key format",
        ),
        (
            lambda d: d.format != "labelled" or d.text_key != d.label_key,
            "{} and {} must be two keys",
            "text_key label_key format",
        ),
        (
            lambda d: d.val_source is not None or d.val_fraction + d.test_fraction < 1,
            "{} and {} must leave a part to train on",
            "val_fraction test_fraction val_source",
        ),
        (
            lambda d: d.weights is None or len(d.weights) == len(d.sources),
            "{} must have a number for each of {}",
            "weights source",
        ),
    )


class SampleConfig(ConfigSection):
    """Samples during training, and the default sampling settings afterwards."""

    every: Every = 250
    """Steps between samples; the last step always samples. null: never."""
    prompt: str = ""
    """Text that the samples continue. Empty: the start of a text."""
    max_new_tokens: Count = 200
    """Tokens written."""
    temperature: Annotated[float, Field(ge=0.0, le=MAX_TEMPERATURE)] = 0.8
    """Divides the logits; 0 always takes the likeliest token."""
    top_k: Count | None = None
    """Keep only the k likeliest tokens. null: off."""
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    """Keep the likeliest tokens that together have this probability (Holtzman et al., 2020). null: off."""
    min_p: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    """Keep tokens at least this fraction as likely as the likeliest (Nguyen et al., 2024). null: off."""
    repetition_penalty: Annotated[float, Field(ge=1.0 / MAX_PENALTY, le=MAX_PENALTY)] | None = None
    """Divides the logits of tokens that are there already (Keskar et al., 2019). null: off."""
    no_repeat_ngram: Count | None = None
    """No run of this many tokens occurs twice (Paulus et al., 2017). null: off."""
    min_new_tokens: Steps = 0
    """Before which neither the end of the text nor a stop string ends it."""
    stop: list[Name] = []
    """Texts before which a sample ends."""
    beams: Annotated[int, Field(ge=1, le=MAX_BEAMS)] | None = None
    """Search for the likeliest text with this many candidates, in place of sampling. null: off."""
    length_penalty: Annotated[float, Field(ge=-MAX_LENGTH_PENALTY, le=MAX_LENGTH_PENALTY)] = 1.0
    """Exponent, in beam search, of the length by which a text's log-probability is divided."""
    heal: bool = True
    """Draw the last tokens of a plain text prompt again, so that a word which it breaks off is completed."""
    prefix: str = ""
    """Put before each prompt."""
    suffix: str = ""
    """Put after each prompt."""

    conditions: ClassVar[Conditions] = (
        (lambda s: s.min_new_tokens <= s.max_new_tokens, "{} must be at most {}", "min_new_tokens max_new_tokens"),
    )
