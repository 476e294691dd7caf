"""What an attacker tries, by count: the rows behind `make attack`, which `promises.py` runs and writes as a table.

A row is a `Promise` whose tests inject the faults; each says how many by `record_property("faults", n)`. A test that
takes more than a few seconds has a short version in the suite and is marked `slow` itself. All rows together take at
most 20 minutes on two cores.
"""

from tests.support.promise import Promise

STORE = "cpu/test_native_store.py"
ATTACK = [
    Promise(
        "The compiled library that is loaded is the one that was compiled",
        "exchanged, folder or file, by another user while it is loaded, in a place that is safe and in one open to all",
        (f"{STORE}::test_of_600_exchanges_while_it_is_loaded_none_brings_in_a_foreign_library",),
        where="attack",
    ),
    Promise(
        "A compiled library that is damaged is told, compiled again, and never loaded",
        "bits flipped and ends cut off, in the library and its record",
        (f"{STORE}::test_of_300_bit_flips_and_truncations_none_is_loaded",),
        where="attack",
    ),
    Promise(
        "Whatever else stands in the cache, nothing of it is loaded, and nothing is changed through a link",
        "links, FIFOs, folders, devices, others' files and permissions in place of the library, its record, the folder"
        " and the way to it",
        (f"{STORE}::test_what_is_not_as_it_was_compiled_is_told_compiled_again_and_never_loaded",
         f"{STORE}::test_a_foreign_library_under_the_name_of_the_users_is_never_loaded",
         f"{STORE}::test_a_cache_that_cannot_be_used_is_told_and_done_without",
         f"{STORE}::test_a_way_to_the_cache_that_others_can_change_is_not_taken"),
        where="attack",
    ),
    Promise(
        "A compiler that is missing, strange, hanging or killed is one message and a remembered one",
        "none; one that fails, says and makes nonsense, or makes what lacks functions; three that hang;"
        " one that is killed",
        (f"{STORE}::test_without_a_compiler_or_with_a_broken_one_there_is_a_reason",
         f"{STORE}::test_a_compiler_that_hangs_is_told_stopped_and_remembered_until_it_changes_or_may_take_longer",
         f"{STORE}::test_what_a_killed_compilation_leaves_is_removed_by_the_next_and_what_is_in_use_stays"),
        where="attack",
    ),
    Promise(
        "Compiled training code that computes something else is told, or ends the process, and never trains",
        "bits flipped in its code, the sum made right: a step is the same, told, or not made",
        ("cpu/test_native_proof.py::test_of_60_bit_flips_in_training_code_with_a_right_sum_none_trains_silently_wrong",),
        where="attack",
    ),
    Promise(
        "The C engines compute on other processors what their references do",
        "gcc and clang without a warning, for x86-64 (baseline, v3, v4) and aarch64 (by qemu: ARMv8.0, ARMv8.2 with dot"
        " products, ARMv8.6 with bf16 and int8 matrices)",
        ("cpu/test_portable.py",),
        where="attack",
    ),
    Promise(
        "No sanitizer complains of the C engines",
        "address, undefined and thread: texts by three threads in fp32, bf16 and int8, windows that move;"
        " losses and gradients by two threads",
        ("cpu/test_sanitizers.py",),
        where="attack",
    ),
    Promise(
        "What the system refuses is one error, and the same command resumes to the same bits",
        "EIO, EROFS, EDQUOT, ENOLCK, EOPNOTSUPP of write, fsync, rename, read, create, mkdir and flock, below Python"
        " and in a file system of its own (FUSE), once or from then on, at random moments of a training; one that turns"
        " read-only, over its quota or without locks as a whole, and an ext4 that is made read-only",
        ("run/test_io_errors.py",),
        where="attack",
    ),
    Promise(
        "A run directory that goes while it is trained is told within one save, and the weights are beside it",
        "removed, moved, replaced; removed where nothing can be made beside it",
        ("cli/test_disconnect.py::test_a_run_directory_that_goes_while_it_is_trained_is_an_error_within_one_save_and_the_weights_are"
         "_beside",),
        where="attack",
    ),
    Promise(
        "Of many starts in one directory one trains, and the others say who does",
        "20 starts at one moment",
        ("run/test_kill_anytime.py::test_of_20_starts_at_once_exactly_one_trains_and_the_others_say_who_does",),
        where="attack",
    ),
    Promise(
        "A flipped bit in a checkpoint is reported by the command that meets it",
        "a random bit of any file of the newest checkpoint, and then one of eight commands",
        ("run/test_run_damage.py::test_a_thousand_flips_are_told_by_the_commands_that_read_them",),
        where="attack",
    ),
    Promise(
        "No input takes memory or time beyond a stated bound, however long it is looked at",
        "as in the suite, and what takes seconds to make: 200,001 files, tables of millions of empty rows, a footer of"
        " 143 MB",
        (
            "corpus/test_input_bounds.py::test_every_bomb_ends_in_one_error_in_10_seconds_and_600_mb",
            "corpus/test_input_bounds.py::test_the_larger_bombs_end_in_one_error_in_10_seconds_and_600_mb",
        ),
        where="attack",
    ),
]  # fmt: skip
