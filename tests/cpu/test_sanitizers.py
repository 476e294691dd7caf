"""The C engines under the compiler's sanitizers: no address, no undefined behaviour, no race between threads."""

import platform
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from gpt_cli.cpu.decode.weight_formats import FORMATS
from gpt_cli.runtime.cpu_level import processor_flags
from tests.portable.comparison import MODELS, VOCAB_SIZE, compare_training, prompts
from tests.portable.engines import Target, Texts, answers, build, decode_input
from tests.support.autograd_reference import make_model
from tests.support.native_model import weights_of

pytestmark = [pytest.mark.slow, pytest.mark.sanitize]

SANITIZERS = {
    "address, undefined": ("-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
    "thread": ("-fsanitize=thread",),
}
ENVIRONMENT = {"ASAN_OPTIONS": "detect_leaks=1", "TSAN_OPTIONS": "halt_on_error=1"}


@pytest.fixture(scope="module", params=SANITIZERS)
def target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Target:
    """This processor, with a sanitizer; skipped where the compiler brings none."""
    if not shutil.which("gcc"):
        pytest.skip("there is no gcc")
    options = SANITIZERS[request.param]
    probe = tmp_path_factory.mktemp("probe") / "probe.c"
    probe.write_text("int main(void) { return 0; }\n")
    compiled = subprocess.run(["gcc", *options, "-o", probe.with_suffix(""), probe], capture_output=True, check=False)
    if compiled.returncode or subprocess.run([probe.with_suffix("")], capture_output=True, check=False).returncode:
        pytest.skip(f"gcc's sanitizers ({request.param}) do not run here")
    native = "-march=native" if platform.machine() in ("x86_64", "AMD64") else "-mcpu=native"
    return Target("gcc", (native, "-O1", "-g", *options))


def test_the_decoder_is_sound_in_every_format(
    target: Target, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    command = build(target, "decode", tmp_path)
    for name, options in MODELS.items():
        weights = weights_of(make_model(options, VOCAB_SIZE))
        for format in FORMATS:
            scored = [i * i % VOCAB_SIZE for i in range(39)]
            texts = (Texts(prompts(19), 30), Texts([[5] * 7] * 3, 60), Texts([[1, 2, 3, 4] * 4], 60))  # windows move
            data = decode_input(weights, format, 3, scored, texts)
            assert len(answers(command, data, **ENVIRONMENT)) == 7, (name, format)
    record_property("faults", len(MODELS) * len(FORMATS))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_training_code_is_sound(
    target: Target, dtype: torch.dtype, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    if dtype == torch.bfloat16 and "avx512_bf16" not in processor_flags():
        pytest.skip("this processor does not multiply bf16")
    command = build(target, "train", tmp_path, *(["-DBF16"] if dtype == torch.bfloat16 else []))
    for name in MODELS:
        compare_training(command, name, dtype, **ENVIRONMENT)
    record_property("faults", len(MODELS))
