"""Advice for training on a text, from its report."""

from gpt_cli.analysis.text_report import TextReport

_SHORT = 200_000  # characters
_FEWEST_HELD_OUT = 100  # characters; what xz writes is a multiple of four bytes
_REPEATED = 0.005  # nats per character, which is shown as 0.00
_LARGE_ALPHABET = 512
_REPLACEMENT = "U+FFFD"


def advise(report: TextReport) -> list[str]:
    """A good loss to reach, then problems, the most severe first."""
    sound = [] if report.distinct_characters < 2 else ["Nothing here needs mending."]
    return [_good_loss(report), *(_problems(report) or sound)]


def _good_loss(report: TextReport) -> str:
    best = min(report.baselines, key=lambda baseline: baseline.bits_per_character)
    bigram = report.baseline("bigram")
    if report.distinct_characters < 2:
        return "It is one character throughout: there is nothing to learn from it."
    if report.measured_on < _FEWEST_HELD_OUT:
        return "Too little text is held out to say what a good loss is."
    if best.nats_per_character < _REPEATED:
        return f"Its held-out part repeats the rest, as {best.name} shows: any loss near 0 only says so."
    return (
        f"A good loss is below {best.nats_per_character:.2f} nats per character"
        f" ({best.bits_per_byte:.2f} bits per byte), which {best.name} reaches; above"
        f" {bigram.nats_per_character:.2f} a model has learned no more than which character follows which."
    )


def _problems(report: TextReport) -> list[str]:
    advice: list[str] = []
    if (leaked := report.leak.passages.share) >= 0.01:
        advice.append(
            f"{leaked:.1%} of the validation passages also stand in the training text: the validation loss will look"
            " better than the model is. Remove copies, or hold out other documents."
        )
    if report.duplicate_documents.copies:
        advice.append(
            f"{_documents(report.duplicate_documents.copies)} of an earlier one. Remove them:"
            " they are memorised, and may fall on both sides of the split."
        )
    if (repeated := report.duplicate_lines.share) >= 0.05:
        advice.append(
            f"{repeated:.1%} of the long lines are copies of an earlier one. Unless that is how such text is,"
            " remove the copies."
        )
    if any(character.code_point == _REPLACEMENT for character in report.invisible):
        advice.append(
            f"The text holds {_REPLACEMENT}, which stands for bytes that somebody could not decode."
            " Go back to the original, and read it in its own encoding."
        )
    elif report.invisible:
        advice.append(
            "The text holds characters that cannot be seen, listed above. Joiners belong to some scripts and to emoji;"
            " remove what has no such reason."
        )
    lines = report.lines
    kinds = ((lines.crlf, "a carriage return and newline (CRLF)"), (lines.cr, "a carriage return alone (CR)"))
    if found := [f"{count:,} of {lines.ends:,} line ends are {kind}" for count, kind in kinds if count]:
        advice.append(f"{', '.join(found)}: the model learns to write them. Save the file with line feeds (LF).")
    if report.distinct_characters > _LARGE_ALPHABET:
        advice.append(
            f"{report.distinct_characters:,} distinct characters make a large vocabulary of characters:"
            " bytes or BPE suit this text better."
        )
    elif report.rare:
        occur = "occurs" if len(report.rare) == 1 else "occur"
        advice.append(
            f"{len(report.rare):,} of {report.distinct_characters:,} characters {occur} fewer than 5 times. As tokens"
            " they would be ids that hardly anything trains: replace them, or take bytes or BPE."
        )
    if report.characters < _SHORT:
        advice.append(
            f"{report.characters:,} characters are few: a model memorises them soon. Take a small one, dropout,"
            " and train.patience to stop in time."
        )
    return advice


def _documents(copies: int) -> str:
    return "1 document is a copy" if copies == 1 else f"{copies:,} documents are copies"
