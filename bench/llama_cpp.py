"""Greedy texts that llama.cpp writes as `gpt` does, by the precision of the file and of its keys and values.

    python -m bench.llama_cpp --run runs/quickstart        (pip install llama-cpp-python)

The run is exported in each precision of `gpt export --to gguf`, and llama.cpp makes Q4_K_M of the file in f32. Prompts
are stretches of the run's validation split, evenly apart; each is continued by the likeliest token. Exit code 1 where
the file in f32, with keys and values in f32, does not write all of them.
"""

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any, get_args

import torch

from gpt_cli.export.gguf import GGUFType, export_gguf
from gpt_cli.run.load_model import LoadedRun, load_model
from gpt_cli.run.run_corpus import load_run_corpus
from gpt_cli.terminal.table import render_table

CACHES = {"f32": 0, "f16": 1}  # of keys and values: ggml's numbers for its types


def take_prompts(run: LoadedRun, n: int, length: int, new_tokens: int) -> list[list[int]]:
    """`n` stretches of `length` tokens of the run's validation split, each before `new_tokens` more."""
    context = run.config.model.context_length
    if length + new_tokens > context:
        sys.exit(f"prompt and continuation have {length + new_tokens} tokens; the model's context is {context}")
    ids = load_run_corpus(run, note=print, instead="take another run").val
    apart = (len(ids) - length) // n
    return [ids[i * apart : i * apart + length].tolist() for i in range(n)]


@torch.inference_mode()
def continue_prompt(run: LoadedRun, prompt: list[int], new_tokens: int) -> list[int]:
    """The likeliest tokens, by the model itself, without a cache."""
    ids = list(prompt)
    for _ in range(new_tokens):
        ids.append(int(run.model(torch.tensor([ids]))[0, -1].argmax()))
    return ids[len(prompt) :]


def open_file(library: Any, file: Path, context: int, cache: int) -> Any:
    """The model in `file`, on one thread, without the instructions (AMX) that not every sandbox lets through."""
    defaults = library.llama_cpp.llama_model_default_params

    def plain() -> Any:
        parameters = defaults()
        parameters.use_extra_bufts = False
        return parameters

    library.llama_cpp.llama_model_default_params = plain
    try:
        return library.Llama(str(file), n_ctx=context, n_threads=1, verbose=False, type_k=cache, type_v=cache)
    finally:
        library.llama_cpp.llama_model_default_params = defaults


def continue_by_llama_cpp(model: Any, prompt: list[int], new_tokens: int) -> list[int]:
    """The likeliest tokens, by llama.cpp."""
    model.reset()
    written = model.generate(prompt, temp=0.0, repeat_penalty=1.0)
    return [token for token, _ in zip(written, range(new_tokens), strict=False)]


def write_files(library: Any, run: LoadedRun, folder: Path) -> dict[str, Path]:
    """The run in each precision."""
    files = {dtype: folder / f"{dtype}.gguf" for dtype in get_args(GGUFType)}
    for dtype, file in files.items():
        export_gguf(run, file, dtype)
    files["Q4_K_M, by llama.cpp"] = file = folder / "q4_k_m.gguf"
    asked = library.llama_model_quantize_default_params()
    asked.ftype, asked.nthread = library.LLAMA_FTYPE_MOSTLY_Q4_K_M, 1
    if library.llama_model_quantize(str(files["f32"]).encode(), str(file).encode(), asked):
        sys.exit("llama.cpp did not quantize the file")
    return files


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--prompts", type=int, default=50)
    parser.add_argument("--prompt-tokens", type=int, default=20)
    parser.add_argument("--new-tokens", type=int, default=50)
    arguments = parser.parse_args()
    import llama_cpp

    torch.set_num_threads(1)
    run = load_model(arguments.run, torch.device("cpu"), print)
    prompts = take_prompts(run, arguments.prompts, arguments.prompt_tokens, arguments.new_tokens)
    ours = [continue_prompt(run, prompt, arguments.new_tokens) for prompt in prompts]
    rows, exact = [], 0
    with tempfile.TemporaryDirectory(prefix="gpt-bench-") as folder:
        for dtype, file in write_files(llama_cpp, run, Path(folder)).items():
            same = []
            for cache in CACHES.values():
                model = open_file(llama_cpp, file, run.config.model.context_length, cache)
                theirs = [continue_by_llama_cpp(model, prompt, arguments.new_tokens) for prompt in prompts]
                model.close()
                same.append(sum(map(list.__eq__, ours, theirs)))
            exact = same[0] if dtype == "f32" else exact
            rows.append((dtype, f"{file.stat().st_size:,}", *same))
    print(f"the same texts, of {len(prompts)}, of {arguments.new_tokens} tokens after {arguments.prompt_tokens}")
    print(render_table(rows, header=("file", "bytes", *(f"keys and values in {name}" for name in CACHES))))
    return 0 if exact == len(prompts) else 1


if __name__ == "__main__":
    sys.exit(main())
