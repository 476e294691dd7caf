"""`gpt` itself: what it tells the shell, what goes where, and that a traceback never reaches the user."""

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer

from gpt_cli import __version__
from gpt_cli.cli import main as main_module
from gpt_cli.cli.main import main
from gpt_cli.cli.output import print_json, write_text
from gpt_cli.errors import RequestError, UserError
from tests.support.command import ROOT, subprocess_env
from tests.support.live_server import make_run
from tests.support.waiting import HANG

# A `gpt` whose one verb does what the test asks: the real main, the real streams, a process of its own.
PROGRAM = """
import sys, typer
from gpt_cli.cli import main
from gpt_cli.cli.help_format import App
from gpt_cli.cli.output import note, print_json, write_text
from gpt_cli.errors import RequestError, UserError

main.app = App(pretty_exceptions_enable=False)
main.app.callback(invoke_without_command=True)(main.gpt)

@main.app.command()
def verb() -> None:
    {body}

sys.exit(main.main())
"""


def run_verb(body: str, *options: str, redirect: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a verb with this `body`; `redirect` is shell syntax after the command."""
    program = PROGRAM.format(body=body)
    line = f'"$0" -c "$1" {" ".join(options)} verb {redirect}'
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", line, sys.executable, program],
        capture_output=True,
        text=True,
        env=subprocess_env(**environment),
        timeout=HANG,
        check=False,
    )


def python(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT, timeout=HANG
    ).stdout


def test_help_imports_neither_torch_nor_numpy_nor_any_other_heavy_package() -> None:
    heavy = {"torch", "numpy", "matplotlib", "tokenizers", "safetensors", "pydantic", "yaml", "tqdm", "rich"}
    loaded = python(
        "import sys; from gpt_cli.cli.main import main; main(['--help'])\n"
        f"print('loaded:', *sorted({heavy!r} & sys.modules.keys()))"
    )
    assert loaded.splitlines()[-1].strip() == "loaded:"


@pytest.mark.system
@pytest.mark.parametrize("engine", ["native", "torch"])
def test_training_and_sampling_on_a_cpu_do_not_load_the_compiler_of_torch(engine: str, tmp_path: Path) -> None:
    """It takes half as long to load as torch does."""
    if engine == "native" and shutil.which("cc") is None:
        pytest.skip("there is no C compiler")
    (tmp_path / "text.txt").write_text("To be, or not to be. " * 60)
    sizes = "model.n_layer=1 model.n_embd=32 model.context_length=16 tokenizer.kind=byte eval.every=1 sample.every=1"
    overrides = [
        *sizes.split(),
        "train.steps=2",
        "runtime.device=cpu",
        f"runtime.engine={engine}",
        f"run_dir={tmp_path / 'run'}",
    ]
    loaded = python(
        "import sys; from gpt_cli.cli.main import main\n"
        f"code = main(['train', {str(tmp_path / 'text.txt')!r}, *{overrides!r}])\n"
        f"code = code or main(['sample', {str(tmp_path / 'run')!r}, '--prompt', 'To', '--engine', {engine!r}])\n"
        f"code = code or main(['info', {str(tmp_path / 'run')!r}])\n"
        "print('loaded:', code, *sorted({'torch._dynamo', 'torch._inductor', 'sympy'} & sys.modules.keys()))"
    )
    assert loaded.splitlines()[-1].strip() == "loaded: 0"


def test_help_loads_few_modules() -> None:
    loaded = python(
        "import sys; from gpt_cli.cli.main import main\n"
        "main(['--help']); print('modules:', len(sys.modules.keys()), file=sys.stdout)"
    )
    assert int(loaded.splitlines()[-1].removeprefix("modules:")) < 300  # 240 of Python 3.11: two tenths of a second


def test_every_verb_has_a_help_page(gpt: Callable[..., Any]) -> None:
    root: Any = typer.main.get_command(main_module.app)
    context = root.make_context("gpt", [])
    assert root.list_commands(context) == [
        *(
            "train",
            "sample",
            "chat",
            "classify",
            "tokenize",
            "eval",
            "score",
            "info",
            "report",
            "plot",
            "diff",
            "attention",
            "draw",
            "bench",
            "tune",
            "sweep",
            "scale",
            "export",
            "import",
            "serve",
            "doctor",
            "selftest",
            "runs",
            "config",
            "data",
        )
    ]
    for verb in root.list_commands(context):
        _, page, _ = root.resolve_command(context, [verb])
        assert page.help
        assert page.get_short_help_str(200) == root.commands[verb].get_short_help_str(200)


@pytest.mark.parametrize("ask", ["main(['--help'])", "main()"])
def test_help_and_the_completion_of_a_name_import_no_verb(ask: str) -> None:
    asked = "os.environ.update(_GPT_COMPLETE='complete_bash', COMP_WORDS='gpt\\ntra', COMP_CWORD='1');"
    loaded = python(
        f"import os, sys; from gpt_cli.cli.main import main; {asked if ask == 'main()' else ''} {ask}\n"
        "print('loaded:', *(name for name in sys.modules if name.startswith('gpt_cli.cli.verbs')))"
    )
    assert "train" in loaded
    assert loaded.splitlines()[-1].strip() == "loaded:"


def test_bare_gpt_prints_the_help_that_dash_h_prints(gpt: Callable[..., Any]) -> None:
    assert gpt() == gpt("-h") == gpt("--help")
    assert gpt().rc == 0


def test_version_is_the_package_version(gpt: Callable[..., Any]) -> None:
    outcome = gpt("--version")
    assert (outcome.rc, outcome.stdout, outcome.stderr) == (0, f"gpt {__version__}\n", "")


COMPLETED = {
    "gpt exp": ["export"],
    "gpt data ": ["get", "inspect", "list"],
    "gpt sample --max-": ["--max-new-tokens"],
    "gpt sample --device ": ["auto", "cpu", "cuda", "mps"],
    "gpt train book.txt model.n_l": ["model.n_layer="],
    "gpt config show a.yaml runtime.thr": ["runtime.threads="],
    "gpt train boo": [],
    "gpt data get text": ["text8"],
    "gpt sample runs/book@": ["@0", "@best"],
    "gpt sample --run runs/book@b": ["@best"],
    "gpt sample --run=runs/book@b": ["@best"],
    "gpt sample runs/book@x": [],
    "gpt sample runs/book@best --dev": ["--device"],
    "gpt serve runs/book@b": ["@best"],
    "gpt plot runs/book@": [],
    "gpt report --run runs/book@b": [],
    "gpt diff --run runs/book@b": [],
    "gpt sample --device=c": ["cpu", "cuda"],
    "gpt train book.txt model.norm=": ["layernorm", "rmsnorm"],
    "gpt train book.txt model.norm=r": ["rmsnorm"],
}


def words_of(line: str) -> list[str]:
    """The words of a line whose end is completed, as bash gives them: it divides them at each = and @, too."""
    return re.findall("[^ =@]+|[=@]", line) + [""] * line.endswith(" ")


@pytest.mark.system
@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash here")
def test_a_fresh_bash_completes_verbs_options_choices_and_keys_once_completion_is_installed(tmp_path: Path) -> None:
    (tmp_path / "gpt").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m gpt_cli "$@"\n')
    (tmp_path / "gpt").chmod(0o755)
    make_run(tmp_path / "runs/book")
    completions = "".join(
        f"COMP_WORDS=({shlex.join(words)}); COMP_CWORD={len(words) - 1}; _gpt_completion gpt; echo ${{COMPREPLY[@]}}\n"
        for words in map(words_of, COMPLETED)
    )
    environment = subprocess_env(HOME=str(tmp_path), SHELL="bash")
    environment["PATH"] = f"{tmp_path}:{environment['PATH']}"

    def bash(script: str) -> subprocess.CompletedProcess[str]:
        command, timeout = ["bash", "-c", script], HANG
        return subprocess.run(
            command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=timeout, check=False
        )

    installed = bash("gpt --install-completion; exit $?")
    assert (installed.returncode, installed.stderr) == (0, "")
    assert "bash completion installed" in installed.stdout
    completed = bash(f"source ~/.bashrc; complete -p gpt; {completions}")
    assert completed.stderr == ""
    how, *answers = completed.stdout.splitlines()
    assert how.endswith("-F _gpt_completion gpt")
    assert [sorted(answer.split()) for answer in answers] == list(COMPLETED.values())


@pytest.mark.parametrize(
    ("arguments", "error", "hint"),
    [
        (["trian"], "error: no such command 'trian'", "hint: did you mean gpt train?"),
        (["train", "--nosuch"], "error: no such option: --nosuch", "hint: gpt train --help"),
        (["plot", "--x"], "error: option '--x' requires an argument", "hint: gpt plot --help"),
        (["--nosuch"], "error: no such option: --nosuch", "hint: gpt --help"),
    ],
)
def test_a_wrong_command_line_is_one_error_line_and_a_hint_with_code_2(
    gpt: Callable[..., Any], arguments: list[str], error: str, hint: str
) -> None:
    outcome = gpt(*arguments)
    lines = outcome.stderr.splitlines()
    assert outcome.rc == 2
    assert outcome.stdout == ""
    assert lines[0].startswith(error)
    assert lines[1:] == [hint]


@pytest.mark.parametrize(
    ("body", "code", "message"),
    [
        ("pass", 0, ""),
        (
            "raise UserError('no space', where='a:1', hint='free some')",
            1,
            "error: no space\n  --> a:1\nhint: free some\n",
        ),
        ("raise RequestError('no such key')", 2, "error: no such key\n"),
        ("raise UserError('evil \\x1b[31m name')", 1, "error: evil \\x1b[31m name\n"),
        ("raise KeyboardInterrupt", 130, "\n"),
        (
            "raise ValueError('Error building `literal` serializer:\\n  KeyboardInterrupt: ')",
            130,
            "\n",
        ),  # pydantic-core
        ("raise ValueError('SigTerm: ')", 143, "\n"),
        ("raise typer.Exit(143)", 143, ""),
        ("return 130", 130, ""),
        ("raise MemoryError", 1, "error: out of memory\n"),
        (
            "raise ImportError('PLEASE READ\\nlibtorch_cpu.so: failed to map segment from shared object', name='_C')",
            1,
            "error: there is too little memory to load a library\nhint: allow the process more: ulimit -v\n",
        ),
        (
            "raise RuntimeError('CUDA out of memory. Tried to allocate 2 GiB.\\nmore')",
            1,
            "error: out of memory: CUDA out",
        ),
        (
            "raise RuntimeError('DefaultCPUAllocator: can\\'t allocate memory')",
            1,
            "error: out of memory: DefaultCPU",
        ),
        (
            "raise OSError(28, 'No space left on device', 'a.bin')",
            1,
            "error: cannot write to a.bin: No space left",
        ),
        ("import no_such_package", 1, "error: cannot import no_such_package: "),
        ("1 / 0", 70, "error: a bug in gpt: ZeroDivisionError: division by zero\nhint: the traceback is in "),
        ("import gpt_cli.nothing", 70, "error: a bug in gpt: ModuleNotFoundError: "),
    ],
)
def test_every_ending_has_its_exit_code_and_message(tmp_path: Path, body: str, code: int, message: str) -> None:
    result = run_verb(body, TMPDIR=str(tmp_path))
    assert result.returncode == code
    assert result.stderr.startswith(message)
    assert bool(message) == bool(result.stderr)
    assert "Traceback" not in result.stderr


def test_the_traceback_of_a_bug_is_kept_in_the_file_that_the_hint_names(tmp_path: Path) -> None:
    result = run_verb("1 / 0", TMPDIR=str(tmp_path))
    (report,) = tmp_path.iterdir()
    assert str(report) in result.stderr
    assert report.read_text().rstrip().endswith("ZeroDivisionError: division by zero")


@pytest.mark.parametrize(("options", "environment"), [(["--debug"], {}), ([], {"GPT_DEBUG": "1"})])
@pytest.mark.parametrize("body", ["1 / 0", "raise UserError('expected')"])
def test_debug_prints_the_traceback_and_the_error_stays_last(
    body: str, options: list[str], environment: dict[str, str]
) -> None:
    result = run_verb(body, *options, **environment)
    assert "Traceback (most recent call last)" in result.stderr
    assert result.stderr.splitlines()[-1].startswith("error: ")


def test_debug_is_taken_anywhere_before_two_dashes() -> None:
    assert "Traceback" in run_verb("1 / 0", redirect="--debug").stderr
    behind = run_verb("1 / 0", redirect="-- --debug")  # an argument, which the verb does not have
    assert (behind.returncode, behind.stderr.count("Traceback")) == (2, 0)


def test_help_of_a_command_is_its_help_page(gpt: Callable[..., Any]) -> None:
    assert gpt("help") == gpt("--help")
    assert gpt("help", "plot") == gpt("plot", "--help")


def test_of_an_option_given_twice_the_last_counts(gpt_here: Callable[..., Any], tmp_path: Path) -> None:
    assert gpt_here("config", "init", "-o", "a.yaml", "--output", "b.yaml").rc == 0
    assert [path.name for path in tmp_path.iterdir()] == ["b.yaml"]


def test_a_request_that_the_command_line_refuses_leads_to_the_help_of_the_command(gpt: Callable[..., Any]) -> None:
    assert gpt("diff", "runs/one").stderr.splitlines()[1:] == ["hint: gpt diff --help"]
    assert gpt("runs", "--dir", "").stderr.splitlines()[1:] == ["hint: gpt runs --help"]
    assert gpt("runs", "--dir", "nowhere").stderr.splitlines()[1:] == []  # which another room refuses


def test_a_reader_that_stops_early_is_no_error() -> None:
    result = run_verb("[write_text('line\\n') for _ in range(100_000)]", redirect="| head -n 1")
    assert (result.returncode, result.stdout, result.stderr) == (0, "line\n", "")


@pytest.mark.parametrize("body", ["write_text('a')", "print('buffered')", "print_json([1])"])
def test_a_full_disk_behind_stdout_is_an_error_and_not_a_silent_loss(body: str) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    result = run_verb(body, redirect="> /dev/full")
    assert result.returncode == 1
    assert result.stderr == "error: cannot write to standard output: No space left on device\n"


@pytest.mark.parametrize("prints", [False, True])
def test_closed_streams_do_not_stop_the_work_nor_lend_their_number_to_a_file(prints: bool, tmp_path: Path) -> None:
    path = tmp_path / "kept"
    body = f"file = open({str(path)!r}, 'w'); {prints} and print('lost'); note('lost too'); file.write('kept')"
    result = run_verb(body, redirect=">&- 2>&-")
    assert result.returncode == prints  # what nobody can read is an error, once the work is done
    assert path.read_text() == "kept"


def test_a_closed_stdout_is_an_error_and_not_a_silent_loss() -> None:
    result = run_verb("write_text('a')", redirect=">&-")
    assert result.returncode == 1
    assert result.stderr == "error: standard output is closed\n"


def test_a_message_nobody_reads_does_not_stop_the_work(tmp_path: Path) -> None:
    marker = tmp_path / "done"
    body = f"[note('line') for _ in range(100_000)]; open({str(marker)!r}, 'w').close()"
    assert run_verb(body, redirect="2>&1 >/dev/null | head -n 1").returncode == 0
    assert marker.exists()


def test_a_locale_without_the_character_does_not_stop_the_work() -> None:
    result = run_verb("print(chr(960))", LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
    assert (result.returncode, result.stdout) == (0, "\\u03c0\n")


def test_a_name_that_the_locale_cannot_spell_is_one_error_with_the_way_out() -> None:
    result = run_verb("open('runs/' + chr(960))", LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
    assert result.returncode == 1
    assert "this locale has names in ascii\nhint: have names and arguments read as UTF-8: export PYTHONUTF8=1" in (
        result.stderr
    )


def test_an_argument_that_the_locale_left_undecoded_is_refused_with_the_way_out(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for encoding, is_hinted in (("ascii", True), ("utf-8", False)):
        monkeypatch.setattr(sys, "getfilesystemencoding", lambda encoding=encoding: encoding)
        for command in (["train", "run_dir=runs/\udcc3\udca9"], ["train", "\udcc3.txt"], ["tokenize", "\udcc3.txt"]):
            assert main(command) == 2
            assert ("export PYTHONUTF8=1" in capsys.readouterr().err) == is_hinted


@pytest.mark.parametrize("command", [["config", "show"], ["tokenize"], ["train", "TEXT", "run_dir=runs/NAME"]])
def test_a_name_longer_than_a_file_may_have_is_one_error_with_the_bound(
    command: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "TEXT").write_text("text " * 99)
    name = "é" * 128
    command = [argument.replace("NAME", name) for argument in command] + [name] * ("TEXT" not in command)
    assert main(command) in (1, 2)
    assert "255 bytes, not 256" in capsys.readouterr().err


def test_text_reaches_a_pipe_unchanged_and_a_terminal_escaped(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "a\x1b]0;owned\x07\tb\n"
    write_text(text)
    assert capsys.readouterr().out == text
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    write_text(text)
    assert capsys.readouterr().out == "a\\x1b]0;owned\\x07\tb\n"
    write_text(text, raw=True)
    assert capsys.readouterr().out == text


def test_json_is_strict_and_ascii(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"run_dir": Path("runs/ü"), "loss": 1.5, "text": "\x1b\udc80"})
    assert capsys.readouterr().out == '{"run_dir": "runs/\\u00fc", "loss": 1.5, "text": "\\u001b\\udc80"}\n'
    with pytest.raises(ValueError, match="not JSON compliant"):
        print_json({"loss": float("nan")})


def test_errors_render_untrusted_text_escaped_and_keep_the_lines_of_a_list() -> None:
    error = UserError("first\nsecond \u202e", where="a\x1b", hint="h\n")
    assert error.render() == "error: first\nsecond \\u202e\n  --> a\\x1b\nhint: h\\n"
    assert RequestError("x").exit_code == 2


@pytest.mark.parametrize("command", ["sample nowhere/run", "train ../text.txt", "runs"])
def test_a_current_directory_that_was_removed_is_an_error_and_no_bug(tmp_path, command):
    (tmp_path / "gone").mkdir()
    (tmp_path / "text.txt").write_text("the king and the queen\n" * 99)
    completed = subprocess.run(
        ["sh", "-c", f'rmdir ../gone; exec "{sys.executable}" -m gpt_cli {command}'], cwd=tmp_path / "gone",
        env=subprocess_env(), capture_output=True, text=True, timeout=HANG, check=False,
    )  # fmt: skip
    assert completed.returncode == 1
    assert completed.stderr.splitlines() == [
        "error: the current directory was removed",
        "hint: change to another one, such as: cd ~",
    ]
