"""The table of promises in docs/reliability.md, with the figures of this very run: `make promises`.

    python -m tests.promises [--long | --attack] [WORD ...]

Runs the tests that stand behind each promise (with `--long` those that take minutes, with `--attack` those of
attack.py; with WORDs only rows whose promise has one of them), counts the faults that were injected and survived, takes
the time, and writes the rows of the table anew; others stay as they are. A test says how many faults it injects by
`record_property("faults", n)`; one that does not injects one. Exits with 1 if any was not survived.
"""

import os
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from tests.attack import ATTACK
from tests.support.junit import read_cases
from tests.support.promise import Promise, Where

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reliability.md"
HEADER = "| promise | what is done to it | faults | survived | seconds | tests |\n|---|---|---|---|---|---|\n"
TITLES: dict[Where, str] = {
    "suite": "### In the suite",
    "slow": "### Behind `make test-slow`",
    "attack": "### Behind `make attack`",
}

KILL, SAVE, DAMAGE = "run/test_kill_anytime.py", "run/test_checkpoint.py", "run/test_run_damage.py"
TRAIN, HEALTH = "training/test_training.py", "training/test_health.py"
PROMISES = [
    Promise(
        "Kill it any time: the same command resumes, and ends with the same bits",
        "SIGKILL at random moments, a quarter of them inside a save; weights, optimizer, metrics and samples are"
        " compared with a run left alone",
        (f"{KILL}::test_a_run_killed_20_times_ends_as_if_it_never_was",),
    ),
    Promise(
        "What was said to be saved survives a kill",
        "SIGKILL of a process that saves and prunes without pause",
        (f"{SAVE}::test_a_killed_process_never_loses_what_it_said_was_saved",),
    ),
    Promise(
        "A signal saves and leaves, a second one leaves at once; the same bits in the end",
        "SIGINT, SIGTERM, SIGUSR1, SIGHUP at random moments, and inside evaluations, samples, saves and steps",
        (f"{KILL}::test_a_run_asked_to_stop_at_20_moments_ends_as_if_it_never_was",),
    ),
    Promise(
        "Two runs cannot write one directory",
        "20 starts at one moment: one trains, 19 say who does, and it can be sampled meanwhile",
        (f"{KILL}::test_of_20_starts_at_once_exactly_one_trains_and_the_others_say_who_does", "files/test_files.py::"
         "test_a_lock_is_held_by_one_process_named_to_others_and_freed_by_its_death"),
    ),
    Promise(
        "A power cut loses at most what came after the last save",
        "the power is cut before every file operation of three saves and a pruning, on a simulated disk that keeps any"
        " part of what was not flushed",
        (f"{SAVE}::test_a_power_cut_at_any_moment_never_loses_what_was_said_to_be_saved",),
    ),
    Promise(
        "... and every flush is needed",
        "each of five flushes is forgotten in turn: the test above must fail",
        (f"{SAVE}::test_each_flush_is_needed_to_survive_a_power_cut",),
    ),
    Promise(
        "A full or failing disk is one clear message; what was saved stays",
        "ENOSPC, EIO, EROFS at every operation of a save; short writes; too little space",
        (f"{SAVE}::test_a_save_that_fails_anywhere_leaves_the_previous_checkpoint_and_can_be_repeated",
         f"{SAVE}::test_too_little_space_is_told_before_anything_is_written", "files/test_files.py"),
    ),
    Promise(
        "Damage is noticed, told, and never used; nothing is deleted",
        "flipped bits, truncation, appended bytes, missing, foreign and swapped files",
        (f"{SAVE}::test_every_kind_of_damage_is_told_kept_and_answered_with_the_previous_checkpoint",
         f"{SAVE}::test_a_checkpoint_under_the_name_of_another_step_is_damage",
         f"{SAVE}::test_damage_between_loading_and_reading_the_optimizer_is_noticed",
         "corpus/test_corpus_fuzz.py::test_a_damaged_store_is_refused_also_when_its_sums_are_right"),
    ),
    Promise(
        "A flipped bit in a checkpoint is reported by every command that reads it, and one elsewhere in a run changes"
        " neither training nor evaluation",
        "flipped bits in each file of a checkpoint, and commands that read it; in each file that a run writes once, and"
        " then an evaluation and a resume",
        (f"{DAMAGE}::test_a_thousand_flips_of_a_thousand_are_noticed",
         f"{DAMAGE}::test_every_command_that_reads_a_checkpoint_tells_a_flip_in_it",
         f"{DAMAGE}::test_a_flip_in_what_a_run_wrote_once_changes_no_number"),
    ),
    Promise(
        "A damaged line of a log is reported and skipped, and keeps no run from resuming",
        "every bit of logs, flipped; commands that read them; runs that are resumed",
        ("run/test_log.py::test_any_flipped_bit_costs_the_lines_that_it_damages_and_no_resume",
         "run/test_log.py::test_every_command_that_reads_a_log_notes_a_damaged_line_once_and_works"),
    ),
    Promise(
        "Keeping few never deletes the only good one, nor the best",
        "saves, saves that fail, damage, restarts and pruning in any order (a state machine of hypothesis)",
        (f"{SAVE}::TestRetention", f"{SAVE}::test_whatever_happens_enough_good_ones_and_the_best_stay"),
    ),
    Promise(
        "Old runs load, write what they wrote, and resume",
        "a run of every released format, and of every kind",
        ("run/test_formats.py", "run/test_kept_runs.py"),
    ),
    Promise(
        "Stopping changes nothing",
        "stopped at every step of 30, resumed from the checkpoint of every step of 30, stopped in three ways to train",
        (f"{TRAIN}::test_a_run_stopped_at_every_step_equals_uninterrupted_bit_for_bit",
         f"{TRAIN}::test_a_resume_from_the_checkpoint_of_any_step_equals_uninterrupted_bit_for_bit",
         f"{TRAIN}::test_stopped_and_resumed_equals_uninterrupted_bit_for_bit"),
    ),
    Promise(
        "The scale of an fp16 loss resumes exactly",
        "stopped before, at and after overflows and growth",
        (f"{TRAIN}::test_a_scaled_loss_resumes_exactly_overflows_included",),
    ),
    Promise(
        "A changed config or text is refused, with both values",
        "each key, the text, the tokenizer",
        ("run/test_run_directory.py::test_whatever_decides_the_numbers_cannot_change_in_a_run",
         f"{TRAIN}::test_a_changed_config_is_refused_showing_both_values",
         f"{TRAIN}::test_a_changed_text_is_refused"),
    ),
    Promise(
        "A number that is not finite never reaches a checkpoint, and is named with its step",
        "NaN and infinity in a weight, a moment, a momentum, a gradient, a loss, in fp32 and bf16, and before a save",
        (f"{HEALTH}::test_what_is_not_finite_is_named_with_its_step_and_never_saved",
         f"{HEALTH}::test_what_turns_bad_just_before_a_save_is_not_saved",
         f"{HEALTH}::test_an_update_with_a_bad_gradient_is_not_made",
         f"{TRAIN}::test_a_loss_that_is_not_finite_stops_the_run_and_is_never_saved",
         f"{TRAIN}::test_a_validation_loss_that_is_not_finite_stops_the_run_and_is_never_saved",
         f"{SAVE}::test_tensors_that_are_not_finite_are_never_saved_and_the_first_is_named"),
    ),
    Promise(
        "A spike is reported, ordinary noise is not",
        "a loss far above its running mean; ten quiet curves of 3,000 steps",
        (f"{HEALTH}::test_a_spike_is_told_once_when_it_begins",
         f"{HEALTH}::test_ordinary_noise_around_a_falling_loss_is_no_spike",
         f"{HEALTH}::test_a_spike_of_the_loss_is_an_event_and_a_note_and_training_goes_on"),
    ),
    Promise(
        "Out of memory is answered by smaller micro-batches of the same batch, or by one clear error",
        "the errors of three allocators in steps, evaluations, samples, and while the model is built",
        (f"{HEALTH}::test_out_of_memory_is_answered_by_smaller_micro_batches_of_the_same_batch",
         f"{HEALTH}::test_out_of_memory_in_the_middle_leaves_no_trace_of_the_failed_try",
         f"{HEALTH}::test_one_sequence_that_does_not_fit_is_told_with_a_way_out",
         f"{HEALTH}::test_an_evaluation_that_does_not_fit_takes_fewer_windows_at_once",
         f"{HEALTH}::test_out_of_memory_outside_a_step_says_where_and_what_to_do",
         f"{HEALTH}::test_a_model_far_larger_than_the_machine_is_one_clear_error"),
    ),
    Promise(
        "A hang says where, and ends",
        "a step that sleeps (`runtime.watchdog_minutes`)",
        (f"{HEALTH}::test_a_hang_prints_where_every_thread_is_and_exits_with_1",),
    ),
    Promise(
        "Hostile input ends in an answer or in one error, runs no code, and makes nothing outside",
        "configs, checkpoints with recomputed sums, prompts, names, command lines, in a watched process",
        ("cli/test_hostile_input.py::test_150_hostile_inputs_end_in_an_answer_or_in_one_error",
         "config/test_config_refusals.py::test_five_hundred_damaged_configs_are_loaded_or_refused_and_nothing_else"),
    ),
    Promise(
        "A foreign config whose numbers cannot be is refused by its key",
        "not finite, not positive, out of range, of another type: each number of configs for Hugging Face, also of"
        " their rotary positions",
        ("export/test_import_hf.py::test_a_number_that_cannot_be_one_is_refused_by_its_key_in_a_sentence_of_ours",),
    ),
    Promise(
        "Any bytes become tokens that say them, or are refused",
        "texts that are cut, spliced, recoded, binary; names of texts",
        ("corpus/test_corpus_fuzz.py::test_any_bytes_become_tokens_that_say_them_or_are_refused",
         "corpus/test_corpus_fuzz.py::test_no_name_of_a_text_puts_anything_outside_its_folder"),
    ),
    Promise(
        "No input takes memory or time beyond a stated bound",
        "compressed text, JSON, tables, Parquet, folders and links that would become more than a machine has: each in a"
        " process, at most 600 MB and 10 s of processor time",
        ("corpus/test_input_bounds.py::test_every_bomb_ends_in_one_error_in_10_seconds_and_600_mb",
         "corpus/test_input_bounds.py::test_want_of_memory_is_not_called_damage"),
    ),
    Promise(
        "Data is never code",
        "the source is read for pickle, exec, eval, unsafe YAML, torch.load; a train, resume, eval, sample and doctor"
        " run under an audit hook; lines and acts are planted for both to see",
        ("project/test_no_code.py",),
    ),
    Promise(
        "Kill it any time, however it trains",
        "as above, over ten combinations of eager/compile, fp32/bf16, accumulation 1/3, dropout 0/0.1, char/BPE,"
        " AdamW/Muon, in which any two choices meet",
        (f"{KILL}::test_200_kills_over_ten_ways_to_train_change_nothing",),
        where="slow",
    ),
    Promise(
        "Signals, and more of them",
        "as above, and while a model is compiled",
        (f"{KILL}::test_100_signals_at_random_moments_change_nothing",
         f"{KILL}::test_signals_while_a_model_is_compiled_change_nothing"),
        where="slow",
    ),
    Promise(
        "Kill any of the processes that train together",
        "SIGKILL of either process or of their launcher, in its start, between steps and inside a save, with the"
        " optimizer sharded or not; compared with one process that was left alone",
        ("distributed/test_parallel_kills.py::test_processes_killed_20_times_end_with_the_bits_of_one_that_was_left_alone",),
        where="slow",
    ),
    Promise(
        "A host that vanishes ends the others with one error, and the run goes on",
        "the cable between two network namespaces that train together is cut",
        ("distributed/test_two_hosts.py::test_a_host_that_vanishes_ends_the_other_with_one_error_and_the_run_goes_on",),
        where="slow",
    ),
    *(
        Promise(
            f"Hostile {kind}",
            "as above",
            (f"cli/test_hostile_input.py::test_20_000_hostile_inputs_end_in_an_answer_or_in_one_error[{kind}]",),
            where="slow",
        )
        for kind in ("configs", "checkpoints", "prompts", "names", "commands")
    ),
    Promise(
        "Hostile texts",
        "as above",
        ("corpus/test_corpus_fuzz.py::test_many_more_bytes_become_tokens_or_are_refused",),
        where="slow",
    ),
    *ATTACK,
]  # fmt: skip


@dataclass
class Figures:
    """What came of the tests of a row."""

    faults: int = 0
    survived: int = 0
    seconds: float = 0.0

    def row(self, promise: Promise) -> str:
        """The line of the table."""
        files = dict.fromkeys(f"`{test.partition('::')[0]}`" for test in promise.tests)
        numbers = f"{self.faults:,} | {self.survived:,} | {self.seconds:.0f}" if self.faults else "not measured yet | |"
        return f"| {promise.promise} | {promise.fault} | {numbers} | {', '.join(files)} |\n"


def measure(promises: list[Promise]) -> dict[str, Figures]:
    """Run the tests of `promises`; the figures of each, by its name."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        tests = sorted({f"tests/{test}" for promise in promises for test in promise.tests})
        subprocess.run(
            [sys.executable, "-m", "pytest", "-m", "not gpu", f"--junitxml={report}", *tests],
            cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False,
        )  # fmt: skip
        cases = list(read_cases(report))
    actual: dict[str, Figures] = defaultdict(Figures)
    for promise in promises:
        for case in cases:
            if case.outcome == "skipped" or not any(is_of(case.name, test) for test in promise.tests):
                continue
            faults = int(case.properties.get("faults", "1"))
            figures = actual[promise.promise]
            figures.faults += faults
            figures.survived += faults if case.outcome == "passed" else 0
            figures.seconds += case.seconds
    return actual


def is_of(name: str, test: str) -> bool:
    """True if the case `name` belongs to `test`: a file, a class, a function, or one case of it."""
    return name == test or any(name.startswith(test + mark) for mark in ("::", "["))


def written(page: str, measured: dict[str, Figures]) -> str:
    """`page` with the rows of what was measured written anew."""
    for where, title in TITLES.items():
        start = page.index(title)
        end = (re.compile(r"\n#+ ").search(page, start + 1) or re.compile(r"\Z").search(page)).start()  # type: ignore[union-attr]
        old_rows = {line.split(" | ")[0].removeprefix("| "): line for line in page[start:end].splitlines(keepends=True)}
        rows = [
            measured[promise.promise].row(promise)
            if promise.promise in measured
            else old_rows.get(promise.promise) or Figures().row(promise)
            for promise in PROMISES
            if promise.where == where
        ]
        page = f"{page[:start]}{title}\n\n{HEADER}{''.join(rows)}{page[end:]}"
    return page


def main(arguments: list[str]) -> int:
    """Measure the rows that `arguments` choose, and write them."""
    where: Where = "slow" if "--long" in arguments else "attack" if "--attack" in arguments else "suite"
    words = [word for word in arguments if word not in ("--long", "--attack")]
    chosen = [p for p in PROMISES if p.where == where and (not words or any(word in p.promise for word in words))]
    measured = measure(chosen)
    PAGE.write_text(written(PAGE.read_text(), measured))
    for promise in chosen:
        figures = measured[promise.promise]
        print(f"{figures.survived:>7,} of {figures.faults:>7,}  {figures.seconds:6.1f} s  {promise.promise}")
    return int(any(measured[p.promise].survived < measured[p.promise].faults for p in chosen))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
