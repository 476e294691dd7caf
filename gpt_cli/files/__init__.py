"""Every durable file operation: single files, append-only files, atomic directories, checksums, locks.

Read first: `durable.py` (one file), then `atomic_dir.py` (a directory that appears whole or not at all); `kinds.py`.
Never: writes through a symbolic link or into a device, or bypasses `os`, whose functions the tests replace.
"""

from gpt_cli.files.append_only import AppendOnlyFile as AppendOnlyFile
from gpt_cli.files.atomic_dir import DamagedError as DamagedError
from gpt_cli.files.atomic_dir import ExistsError as ExistsError
from gpt_cli.files.atomic_dir import VerifiedFiles as VerifiedFiles
from gpt_cli.files.atomic_dir import atomic_directory as atomic_directory
from gpt_cli.files.atomic_dir import commit_files as commit_files
from gpt_cli.files.atomic_dir import read_directory as read_directory
from gpt_cli.files.atomic_dir import read_sums as read_sums
from gpt_cli.files.atomic_dir import remove_directory as remove_directory
from gpt_cli.files.atomic_dir import remove_stale_temp_dirs as remove_stale_temp_dirs
from gpt_cli.files.atomic_dir import verify_directory as verify_directory
from gpt_cli.files.atomic_dir import verify_files as verify_files
from gpt_cli.files.durable import list_directory as list_directory
from gpt_cli.files.durable import make_directory as make_directory
from gpt_cli.files.durable import read_file as read_file
from gpt_cli.files.durable import replace_file as replace_file
from gpt_cli.files.durable import require_space as require_space
from gpt_cli.files.durable import sha256_file as sha256_file
from gpt_cli.files.durable import sync_directory as sync_directory
from gpt_cli.files.durable import write_file as write_file
from gpt_cli.files.locations import cache_dir as cache_dir
from gpt_cli.files.locations import free_name as free_name
from gpt_cli.files.lock import DirectoryLock as DirectoryLock
from gpt_cli.files.lock import LockedError as LockedError
from gpt_cli.files.lock import is_locked as is_locked
from gpt_cli.files.os_errors import DiskError as DiskError
