"""A BPE of a text with many combining marks is split by a pattern that keeps them, unless another one is asked for."""

import random
import unicodedata
from pathlib import Path
from typing import Any

import pytest

from gpt_cli.config.schema import Config, DataConfig, TokenizerConfig
from gpt_cli.corpus.prepare import prepare_corpus
from gpt_cli.corpus.tokenize_pipeline import TokenizePipeline
from gpt_cli.corpus.vocab_size import choose_vocab_size
from gpt_cli.errors import RequestError
from gpt_cli.literals import Pattern
from gpt_cli.search.auto_config import fit_config
from gpt_cli.tokenizer import BPETokenizer, load_tokenizer, train_tokenizer
from gpt_cli.tokenizer.pretokenizer import choose_pattern
from tests.support.command import in_process

HINDI = "सभी मनुष्यों को गौरव और अधिकारों के मामले में जन्मजात स्वतन्त्रता और समानता प्राप्त है। "
VIETNAMESE = "Tất cả mọi người sinh ra đều được tự do và bình đẳng về nhân phẩm và quyền lợi. "
FRENCH = "Tous les êtres humains naissent libres et égaux en dignité et en droits, élevés à la même école. "
ENGLISH = "All human beings are born free and equal in dignity and rights. "
CUT: dict[str, str] = {
    "ascii": ENGLISH,
    "french": FRENCH,
    "decomposed french": unicodedata.normalize("NFD", FRENCH),
    "german": "Alle Menschen sind frei und gleich an Würde und Rechten geboren; größer, schöner, früher. ",
    "vietnamese": unicodedata.normalize("NFC", VIETNAMESE),
    "arabic": "يولد جميع الناس أحرارا متساوين في الكرامة والحقوق. ",
    "hebrew": "כל בני האדם נולדו בני חורין ושווים בערכם ובזכויותיהם. ",
    "chinese": "人人生而自由，在尊严和权利上一律平等。",
    "korean": "모든 인간은 태어날 때부터 자유로우며. ",
    "emoji": "❤️ ☀️ 1️⃣ 👩‍❤️‍👩 ok ",
    "empty": "",
}
KEPT: dict[str, str] = {
    "hindi": HINDI,
    "tamil": "மனிதப் பிறவியினர் சகலரும் சுதந்திரமாகவே பிறக்கின்றனர். ",
    "bengali": "সমস্ত মানুষ স্বাধীনভাবে সমান মর্যাদা এবং অধিকার নিয়ে জন্মগ্রহণ করে। ",
    "thai": "มนุษย์ทั้งปวงเกิดมามีอิสระและเสมอภาคกันในเกียรติศักดิ์และสิทธิ ",
    "burmese": "လူတိုင်းသည် တူညီလွတ်လပ်သော ဂုဏ်သိက္ခာဖြင့် လည်းကောင်း ",
    "pointed hebrew": "בְּרֵאשִׁית בָּרָא אֱלֹהִים אֵת הַשָּׁמַיִם ",
    "decomposed vietnamese": unicodedata.normalize("NFD", VIETNAMESE),
}


def fitted(path: Path, **keys: Any) -> tuple[Config, str]:
    values = {"data.source": str(path), **{key.replace("__", "."): value for key, value in keys.items()}}
    config, sentences = fit_config(values, run_dir="runs/x", has_gpu=False, cores=2)
    return config, sentences[0]


@pytest.fixture
def hindi(tmp_path: Path) -> Path:
    path = tmp_path / "hindi.txt"
    path.write_text(HINDI * 300, encoding="utf-8")
    return path


@pytest.mark.parametrize("name", CUT)
def test_text_with_few_marks_or_none_after_letters_keeps_the_default(name: str) -> None:
    assert choose_pattern(CUT[name]) == "gpt2"


@pytest.mark.parametrize("name", KEPT)
def test_text_whose_words_have_many_marks_is_split_by_o200k(name: str) -> None:
    assert choose_pattern(KEPT[name]) == "o200k"


def test_hindi_has_fewer_tokens_by_the_pattern_that_is_chosen() -> None:
    text = " ".join(random.Random(1).choices(HINDI.split(), k=2000))
    configs = (TokenizerConfig(kind="bpe", vocab_size=300, pattern=pattern) for pattern in ("gpt2", "o200k"))
    by_gpt2, chosen = (len(train_tokenizer([text], config).encode(text)) for config in configs)
    assert chosen < 0.95 * by_gpt2


def test_a_fitted_config_has_the_pattern_and_says_how_to_force_the_other(hindi: Path) -> None:
    config, sentence = fitted(hindi, tokenizer__kind="bpe")
    assert config.tokenizer.pattern == "o200k"
    assert "tokenizer.pattern=gpt2" in sentence
    assert prepare_corpus(config.data, config.tokenizer, cache=False, note=pytest.fail).tokenizer.vocab_size > 256


@pytest.mark.parametrize("pattern", ["gpt2", "gpt4", "o200k", None])
def test_no_pattern_is_chosen_where_one_is_asked_for(hindi: Path, pattern: Pattern | None) -> None:
    config, sentence = fitted(hindi, tokenizer__kind="bpe", tokenizer__pattern=pattern)
    assert config.tokenizer.pattern is None
    assert "pattern" not in sentence


def test_no_pattern_is_written_where_the_default_suits_or_no_bpe_is_learned(hindi: Path, tmp_path: Path) -> None:
    (tmp_path / "english.txt").write_text(ENGLISH * 300)
    assert fitted(tmp_path / "english.txt", tokenizer__kind="bpe")[0].tokenizer.pattern is None  # the cache key of old
    assert fitted(hindi, tokenizer__kind="char")[0].tokenizer.pattern is None
    tokenizer = train_tokenizer([HINDI], TokenizerConfig(kind="bpe", vocab_size=270))
    tokenizer.save(tmp_path / "tokenizer.json")
    config, _ = fitted(hindi, tokenizer__kind="bpe", tokenizer__file=str(tmp_path / "tokenizer.json"))
    assert config.tokenizer.pattern is None


def test_a_config_without_a_pattern_is_still_split_by_gpt2(hindi: Path) -> None:
    data, config = DataConfig(source=str(hindi)), TokenizerConfig(kind="bpe", vocab_size=270)
    actual = prepare_corpus(data, config, cache=False, note=pytest.fail).tokenizer
    expected = prepare_corpus(data, config.model_copy(update={"pattern": "gpt2"}), cache=False, note=pytest.fail)
    assert actual.digest == expected.tokenizer.digest


def test_the_pattern_of_a_pipeline_is_chosen_by_its_training_text(tmp_path: Path) -> None:
    path = tmp_path / "mixed.txt"
    path.write_text(ENGLISH * 300 + HINDI * 20, encoding="utf-8")
    config = TokenizerConfig(kind="bpe", vocab_size=270)
    pipeline = TokenizePipeline.scan(DataConfig(source=str(path)), config, pytest.fail, None)
    assert pipeline.adapted().config == pipeline.config


@pytest.mark.parametrize(("options", "pattern"), [((), "o200k"), (("--pattern", "gpt2"), "gpt2")])
def test_gpt_tokenize_chooses_and_notes_a_pattern_that_is_not_asked_for(
    hindi: Path, options: tuple[str, ...], pattern: Pattern, capsys: pytest.CaptureFixture[str]
) -> None:
    out = hindi.parent / "tokens"
    command = ("tokenize", str(hindi), "--kind", "bpe", "--vocab-size", "270", "--out", str(out), *options)
    done = in_process(capsys)(*command)
    tokenizer = load_tokenizer(out / "tokenizer.json")
    assert isinstance(tokenizer, BPETokenizer)
    assert tokenizer.vocabulary.pattern == pattern
    assert ("--pattern gpt2" in done.stderr) == (pattern != "gpt2")


@pytest.mark.parametrize(
    ("text", "pattern", "is_hinted"),
    [(HINDI, "gpt2", True), (HINDI, "gpt4", True), (HINDI, "o200k", False), (ENGLISH, "gpt2", False)],
)
def test_a_size_out_of_reach_hints_at_o200k_where_the_pattern_cuts_marks(
    text: str, pattern: Pattern, is_hinted: bool
) -> None:
    with pytest.raises(RequestError) as caught:
        train_tokenizer([text] * 3, TokenizerConfig(kind="bpe", vocab_size=5000, pattern=pattern))
    assert "the text supports " in caught.value.message
    suggestion = caught.value.suggestion or ""
    assert (suggestion == "tokenizer.pattern=o200k") == is_hinted
    assert suggestion.startswith("tokenizer.vocab_size=") != is_hinted


def test_the_vocabulary_size_counts_words_as_the_pattern_splits_them() -> None:
    words = [first + second for first in ("कि", "ता", "में", "है") for second in ("नी", "लो", "दू", "रे")]
    start = " ".join(words * 2)
    assert choose_vocab_size(start, 1000, "o200k") == 257 + 15  # the first word has no space before it once
    assert choose_vocab_size(start, 1000, "gpt2") < 257 + 16


def test_gpt_tokenize_makes_as_many_ids_as_the_text_supports_and_says_so(
    hindi: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = hindi.parent / "tokens"
    done = in_process(capsys)("tokenize", str(hindi), "--kind", "bpe", "--vocab-size", "9000", "--out", str(out))
    size = load_tokenizer(out / "tokenizer.json").vocab_size
    assert size < 9000
    assert f"the text supports {size:,} ids, fewer than the 9,000 that were asked for" in done.stderr
