"""Do the tests test? Each fault planted here must turn its named test red: `make mutations`, or
`python tests/mutations.py [WORD ...]` for those whose name has one of the words.

A fault is planted in a copy of the checkout, never in the checkout itself. Exits with 1 if a fault survives, or if a
named test is red without one.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from gpt_cli.runtime.cpu_level import processor_flags

ROOT = Path(__file__).parents[1]
POWER_CUT = "run/test_checkpoint.py::test_a_power_cut_at_any_moment_never_loses_what_was_said_to_be_saved"
BYTES = "cpu/test_native_batch.py::test_keys_and_values_in_bytes_are_those_of_the_reference_wherever_they_lie"
TILES = "cpu/test_native_batch.py::test_tiles_give_the_sums_of_vectors_for_widths_that_fill_none"
RESUME = "training/test_training.py::test_stopped_and_resumed_equals_uninterrupted_bit_for_bit"

TOGETHER = "distributed/test_parallel.py::test_any_number_of_processes_trains_the_same_bits[2]"


@dataclass(frozen=True)
class Mutation:
    """A fault: in `file`, each text `old` becomes `new`; then `test` must fail.

    Where the processor does not have what the fault `needs`, nothing would run into it: it is left out.
    """

    name: str
    file: str
    changes: tuple[tuple[str, str], ...]
    test: str
    needs: str = ""


MUTATIONS = [
    Mutation(
        "a file is not flushed",
        "files/durable.py",
        (
            (
                "            write_all(descriptor, chunk)\n        os.fsync(descriptor)\n",
                "            write_all(descriptor, chunk)\n",
            ),
        ),
        POWER_CUT,
    ),
    Mutation(
        "the new directory is not flushed", "files/atomic_dir.py", (("    sync_directory(temporary)\n", ""),), POWER_CUT
    ),
    Mutation(
        "the parent is not flushed",
        "files/atomic_dir.py",
        (("            raise\n        sync_directory(final.parent)\n", "            raise\n"),),
        POWER_CUT,
    ),
    Mutation(
        "renamed before it is flushed",
        "files/atomic_dir.py",
        (
            ("    sync_directory(temporary)\n", ""),
            (
                "            os.rename(temporary, final)\n        except",
                "            os.rename(temporary, final)\n            sync_directory(final)\n        except",
            ),
        ),
        POWER_CUT,
    ),
    Mutation(
        "sums are not compared",
        "files/atomic_dir.py",
        (("if digest.hexdigest() != sha256:", "if len(digest.hexdigest()) != len(sha256):"),),
        "run/test_checkpoint.py::test_every_kind_of_damage_is_told_kept_and_answered_with_the_previous_checkpoint",
    ),
    Mutation(
        "saved without the last update",
        "run/directory.py",
        (("checkpoint.save(self.path, step, *contents)", "checkpoint.save(self.path, step + 1, *contents)"),),
        RESUME + "[1-muon]",
    ),
    Mutation(
        "resumed one step too late",
        "training/state.py",
        (
            (
                'return checkpoint.step, checkpoint.get_float("seconds")',
                'return checkpoint.step + 1, checkpoint.get_float("seconds")',
            ),
        ),
        RESUME + "[5-muon]",
    ),
    Mutation(
        "the batch after a resume is skipped",
        "training/loop.py",
        (("batches.at(step), config", "batches.at(step + (start > 0)), config"),),
        RESUME + "[5-adamw]",
    ),
    Mutation(
        "noise is seeded per process, not per step",
        "training/accumulate.py",
        (('derive_seed(seed, "noise", step, leaf)', 'derive_seed(seed, "noise") + leaf'),),
        "training/test_health.py::test_every_step_has_its_own_noise",
    ),
    Mutation(
        "noise is not seeded",
        "training/torch_engine.py",
        (("        torch.manual_seed(seed)\n", ""),),
        RESUME + "[5-by-torch]",
    ),
    Mutation(
        "the optimizer starts anew",
        "training/state.py",
        (("local.copy_(shard.local_part(key, local, tensors[key]))", "pass"),),
        RESUME + "[5-adamw]",
    ),
    Mutation(
        "processes do not send the weights that they update",
        "training/step.py",
        (("        state.shard.broadcast_weights()\n", ""),),
        TOGETHER,
    ),
    Mutation(
        "processes clip by the norm of their own gradients",
        "distributed/shard.py",
        (("self.world.all_reduce_disjoint(all_norms).split", "all_norms.split"),),
        TOGETHER,
    ),
    Mutation(
        "processes send the sums of gradients to the wrong one",
        "distributed/reduce.py",
        (("key=lambda pair: pair[1].owner", "key=lambda pair: 0"),),
        TOGETHER,
    ),
    Mutation(
        "processes with different texts train together",
        "run/open_run.py",
        (("    world.compare(", "    dict("),),
        "distributed/test_parallel.py::test_a_process_with_another_text_is_refused_by_its_number",
    ),
    Mutation(
        "a window ends with the file that it begins in",
        "corpus/tokens.py",
        (("        while position < stop:\n", "        if position < stop:\n"),),
        "corpus/test_mapped_tokens.py::test_mapped_ids_are_those_in_memory_however_they_are_cut_into_files",
    ),
    Mutation(
        "cached tokens are trained on unverified",
        "corpus/store.py",
        (("            if digest.hexdigest() != self._sums[path.name]:\n", "            if not digest:\n"),),
        "corpus/test_stamps.py::test_a_flipped_byte_of_cached_tokens_is_noticed_where_they_are_loaded",
    ),
    Mutation(
        "a file put in the place of a text is taken for it",
        "corpus/stamps.py",
        (("status.st_dev, status.st_ino, status.st_size, *times)", "status.st_size, status.st_mtime_ns)"),),
        "corpus/test_stamps.py::test_a_change_that_keeps_size_and_time_is_noticed[replaced]",
    ),
    Mutation(
        "logs are not cut back on a resume",
        "training/state.py",
        (("        run.log.truncate(checkpoint.step, note)\n", ""),),
        "run/test_kill_anytime.py::test_a_run_killed_20_times_ends_as_if_it_never_was[muon-dropout-accumulation]",
    ),
    Mutation(
        "an edited config is trained on",
        "run/resume.py",
        (("    refuse_edited_config(run, written)\n", ""),),
        "run/test_run_damage.py::test_an_edit_of_a_key_that_may_not_change_is_told_by_train_and_doctor[seed-1337-6]",
    ),
    Mutation(
        "the best is forgotten",
        "run/checkpoint.py",
        (
            (
                "spared = {*paths[: paths.index(intact[-1]) + 1], best_checkpoint(run_dir, is_intact)}",
                "spared = {*paths[: paths.index(intact[-1]) + 1]}",
            ),
        ),
        "run/test_checkpoint.py::test_pruning_keeps_the_newest_and_the_best",
    ),
    Mutation(
        "a short write is taken for a whole one",
        "files/durable.py",
        (("        view = view[written:]\n", "        return\n"),),
        "files/test_files.py::test_a_system_that_writes_less_than_it_was_given_loses_nothing",
    ),
    Mutation(
        "whatever goes wrong is called damage",
        "run/checkpoint.py",
        (
            (
                "                if not isinstance(error, DamagedError):\n                    raise\n",
                "",
            ),
        ),
        "run/test_checkpoint.py::test_a_checkpoint_of_a_newer_format_is_not_called_damaged",
    ),
    Mutation(
        "samples reach a terminal raw",
        "cli/output.py",
        (("if sys.stdout.isatty() and not raw:", "if sys.stdout.isatty() and raw:"),),
        "cli/test_cli_main.py::test_text_reaches_a_pipe_unchanged_and_a_terminal_escaped",
    ),
    Mutation(
        "weights that are not finite are saved",
        "run/checkpoint.py",
        (('    require_finite(model_tensors, f"step {step}: weight")\n', ""),),
        "run/test_checkpoint.py::test_tensors_that_are_not_finite_are_never_saved_and_the_first_is_named",
    ),
    Mutation(
        "an fp16 update that overflowed moves the momentum",
        "training/muon.py",
        (("torch.where(found_inf > 0, buffer, gradient)", "torch.nan_to_num(gradient, 0.0, 0.0, 0.0)"),),
        "training/test_optim.py::test_an_update_of_gradients_that_overflowed_changes_no_bit_and_one_of_others_is_the_plain_one",
    ),
    Mutation(
        "a compile that fails in the backward pass ends the run",
        "training/torch_engine.py",
        (
            (
                "            except Exception as error:  # what compilers",
                "            except TypeError as error:  # what compilers",
            ),
        ),
        "training/test_step.py::test_a_compile_that_fails_is_told_once_and_the_run_is_the_eager_one",
    ),
    Mutation(
        "ids of two bytes are taken for signed ones",
        "training/device_tokens.py",
        (("ids.long() & 0xFFFF if", "ids.long() if"),),
        "training/test_batches.py::test_ids_are_used_as_they_are_stored_up_to_the_largest",
    ),
    Mutation(
        "an update with a bad gradient is made",
        "training/step.py",
        (('grad_norm.device.type != "cpu" or bool(torch.isfinite(grad_norm))', "True"),),
        "training/test_health.py::test_an_update_with_a_bad_gradient_is_not_made",
    ),
    Mutation(
        "a captured decode step keeps the position it was captured at",
        "model/static_cache.py",
        (
            (
                "visible = ragged_causal_mask(self._start, 1",
                "visible = ragged_causal_mask(torch.tensor(self._start.tolist()), 1",
            ),
        ),
        "sampling/test_graphed_decode.py::test_every_filter_and_batch_is_written_as_by_eager_steps",
    ),
    Mutation(
        "the C decoder draws tokens that a constraint excludes",
        "cpu/decode/sampling.h",
        (("    if (mask) apply_mask(logits, n, mask);\n", ""),),
        "sampling/test_text_generator.py::test_a_constrained_text_is_the_same_by_every_engine",
    ),
    Mutation(
        "a text that a constraint leaves no token counts as a match",
        "sampling/text_stream.py",
        (('"dead_end" if self._matcher.stuck else ', ""),),
        "sampling/test_constraint.py::test_a_dead_end_of_the_vocabulary_ends_the_text_and_is_no_match",
    ),
    Mutation(
        "a stop string cuts a constrained text that is no match",
        "sampling/text_stream.py",
        (("and (self._matcher is None or self._matcher.matches)", ""),),
        "sampling/test_constraint.py::test_a_stop_string_ends_the_text_of_a_grammar_only_where_it_is_a_match",
    ),
    Mutation(
        "decoding by CUDA graphs is tried again where it failed",
        "sampling/graphed_decode.py",
        (("                self._works = False\n", ""),),
        "sampling/test_graphed_decode.py::test_where_a_capture_or_a_replay_fails_the_same_text_goes_on_with_one_note",
    ),
    Mutation(
        "a decode step asks the device where it is",
        "sampling/graphed_decode.py",
        (("            n_key = length_bucket(filled, max_length)\n", "            n_key = int(rows.latest.max())\n"),),
        "sampling/test_graphed_decode.py::test_no_decode_step_asks_the_device_for_a_number",
    ),
    Mutation(
        "the gradients of a failed try stay",
        "training/oom_retry.py",
        (("            state.optimizer.zero_grad()\n", ""),),
        "training/test_health.py::test_out_of_memory_in_the_middle_leaves_no_trace_of_the_failed_try",
    ),
    Mutation(
        "a lock that others may hold too",
        "files/lock.py",
        (("fcntl.LOCK_EX", "fcntl.LOCK_SH"),),
        "files/test_files.py::test_a_lock_is_held_by_one_process_named_to_others_and_freed_by_its_death",
    ),
    Mutation(
        "a file that changed counts as verified",
        "files/atomic_dir.py",
        (
            (
                "if (*before, sha256) in verified:",
                "if (str(path / name), sha256) in {(known[0], known[-1]) for known in verified}:",
            ),
        ),
        "run/test_checkpoint.py::test_what_was_verified_is_read_again_only_once_it_changed",
    ),
    Mutation(
        "a second signal waits like the first",
        "runtime/signals.py",
        (("            os._exit(128 + number)", "            return"),),
        "run/test_kill_anytime.py::test_a_run_asked_to_stop_at_20_moments_ends_as_if_it_never_was",
    ),
    Mutation(
        "the scale of the loss starts anew",
        "training/state.py",
        (
            (
                'self.grad_scaler.scale.fill_(checkpoint.get_float("loss_scale", torch.finfo(torch.float32).max))',
                "pass",
            ),
        ),
        "training/test_training.py::test_a_scaled_loss_resumes_exactly_overflows_included[5]",
    ),
    Mutation(
        "a kill for memory is like any other",
        "run/lifecycle.py",
        (("now > before", "now < before"),),
        "training/test_health.py::test_a_kill_while_the_kernel_killed_for_memory_is_recorded_as_such",
    ),
    Mutation(
        "windows that did not fit are left out",
        "training/evaluate.py",
        (
            (
                "                    batch_size //= 2  # the same windows, fewer at once\n",
                "                    row += batch_size\n                    batch_size //= 2\n",
            ),
        ),
        "training/test_health.py::test_an_evaluation_that_does_not_fit_takes_fewer_windows_at_once",
    ),
    Mutation(
        "a config is believed whatever its tensors are",
        "run/load_model.py",
        (("    check_tensors(checkpoint.model_tensors, tensor_specs(outline.state_dict()))\n", ""),),
        "cli/test_hostile_input.py::test_a_config_that_asks_for_a_giant_is_refused_before_it_is_built",
    ),
    Mutation(
        "a dropped attention weight has a gradient",
        "cpu/train/attention.h",
        (("d_weight[i] * factor - deltas", "d_weight[i] - deltas"),),
        "cpu/test_native_training.py::test_attention_dropout_is_what_the_seed_draws_forwards_and_backwards[{}-3]",
    ),
    Mutation(
        "keys of two blocks are those of one",
        "cpu/decode/kv_int8.h",
        (("keys + f / 4 * stride + f % 4 * group_stride", "keys + f % 4 * group_stride"),),
        BYTES,
    ),
    Mutation(
        "values begin at the first block whatever is seen",
        "cpu/decode/kv_int8.h",
        (("first_group = begin * 4,", "first_group = 0,"),),
        BYTES,
    ),
    Mutation(
        "of the last block a four is left out",
        "cpu/decode/kv_int8.h",
        (("stop = last / 4 + 1;", "stop = (last + 3) / 4;"),),
        BYTES,
    ),
    Mutation(
        "the last sums of a product are not all settled",
        "cpu/decode/gemm_amx.h",
        (("last_row, 0, last_n, row_scales", "last_row, 0, last_n - 1, row_scales"),),
        TILES,
        needs="amx_bf16",
    ),
    Mutation(
        "sums are settled while they are being made",
        "cpu/decode/gemm_amx.h",
        (("&sums[!which], last_row, finished", "&sums[which], last_row, finished"),),
        TILES,
        needs="amx_bf16",
    ),
    Mutation(
        "the schema for editors has no meanings",
        "config/section.py",
        (("use_attribute_docstrings=True", "use_attribute_docstrings=False"),),
        "config/test_config.py::test_the_json_schema_of_a_new_process_says_what_every_key_and_section_means",
    ),
    Mutation(
        "several texts are worth no more threads than one",
        "cli/open_generator.py",
        (("if rows is not None and rows * sum(", "if rows is not None and sum("),),
        "cli/test_cli_sample.py::test_what_a_pass_is_worth_counts_texts_beams_and_the_prompt_of_several",
    ),
]


def planted(mutation: Mutation, package: Path) -> str:
    """The source of its file with the fault. Raises ValueError unless each text to be changed is there exactly once."""
    source = (package / mutation.file).read_text()
    for old, new in mutation.changes:
        if source.count(old) != 1:
            raise ValueError(f"{mutation.file} has {source.count(old)} places to plant: {mutation.name}")
        if old.startswith(" ") and f"\n{old}" not in source:
            raise ValueError(f"{mutation.file} is indented further than what is planted: {mutation.name}")
        source = source.replace(old, new)
    return source


def run_test(test: str, checkout: Path) -> bool:
    """True if `test` is green in `checkout`. Exits if it could not be run."""
    completed = subprocess.run(
        [sys.executable, "-m", "pytest", "-n0", "-x", "-q", "-p", "no:cacheprovider", f"tests/{test}"],
        cwd=checkout, env={**os.environ, "PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if completed.returncode not in (0, 1):
        sys.exit(f"error: cannot run {test}\n{completed.stdout[-2000:]}{completed.stderr[-2000:]}")
    return completed.returncode == 0


def can_run(mutation: Mutation) -> bool:
    return not mutation.needs or mutation.needs in processor_flags()


def copy_checkout(target: Path) -> None:
    """What the tests need, at `target`."""
    for name in ("gpt_cli", "tests", "configs"):
        shutil.copytree(ROOT / name, target / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", target)


def main(words: list[str]) -> int:
    """Plant each fault in turn and print a table of what became of it."""
    chosen = [mutation for mutation in MUTATIONS if not words or any(word in mutation.name for word in words)]
    for mutation in chosen:
        if not can_run(mutation):
            print(f"left out, since this processor has no {mutation.needs}: {mutation.name}")
    chosen = [mutation for mutation in chosen if can_run(mutation)]
    if not chosen:
        return 0
    survivors = 0
    width = max(len(mutation.name) for mutation in chosen)
    with tempfile.TemporaryDirectory(prefix="gpt-mutations-") as folder:
        sound = Path(folder) / "sound"
        copy_checkout(sound)
        green = {test: run_test(test, sound) for test in {mutation.test for mutation in chosen}}
        for number, mutation in enumerate(chosen):
            copy = Path(folder) / str(number)
            copy_checkout(copy)
            (copy / "gpt_cli" / mutation.file).write_text(planted(mutation, copy / "gpt_cli"))
            started = time.monotonic()
            caught = not run_test(mutation.test, copy)
            verdict = "RED WITHOUT IT" if not green[mutation.test] else "caught" if caught else "SURVIVED"
            survivors += verdict != "caught"
            print(
                f"{mutation.name:<{width}}  {verdict:<8}  {time.monotonic() - started:5.1f} s  {mutation.test}",
                flush=True,
            )
    print(f"{len(chosen) - survivors} of {len(chosen)} planted faults were caught")
    return min(survivors, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
