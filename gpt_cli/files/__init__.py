"""Every durable file operation of `gpt`: nothing else in the package writes what must survive a crash.

    disk     write, read and replace one file; make and flush directories; operating system errors in words
    commit   a directory that appears whole or not at all, proves itself by SHA256SUMS, and goes in one rename
    sums     SHA256SUMS of a directory, of all that is in it or of what is written once
    append   a file that only grows, by whole lines
    lock     one writer per directory
    cache    where things that can be made again are kept

Every call goes through `os`, so a test that replaces `os.write` or `os.fsync` meets every operation there is.
Nothing is ever written through a symbolic link or into a device.
"""

from gpt_cli.files.append import LineFile as LineFile
from gpt_cli.files.append import read_lines as read_lines
from gpt_cli.files.cache import cache_dir as cache_dir
from gpt_cli.files.commit import ExistsError as ExistsError
from gpt_cli.files.commit import Verified as Verified
from gpt_cli.files.commit import clean_leftovers as clean_leftovers
from gpt_cli.files.commit import commit_directory as commit_directory
from gpt_cli.files.commit import commit_files as commit_files
from gpt_cli.files.commit import read_directory as read_directory
from gpt_cli.files.commit import remove_directory as remove_directory
from gpt_cli.files.commit import verify_directory as verify_directory
from gpt_cli.files.disk import DiskError as DiskError
from gpt_cli.files.disk import NewFile as NewFile
from gpt_cli.files.disk import list_directory as list_directory
from gpt_cli.files.disk import make_directory as make_directory
from gpt_cli.files.disk import read_file as read_file
from gpt_cli.files.disk import replace_file as replace_file
from gpt_cli.files.disk import require_space as require_space
from gpt_cli.files.disk import sha256_file as sha256_file
from gpt_cli.files.disk import sync_directory as sync_directory
from gpt_cli.files.disk import write_file as write_file
from gpt_cli.files.lock import DirectoryLock as DirectoryLock
from gpt_cli.files.lock import LockedError as LockedError
from gpt_cli.files.sums import DamagedError as DamagedError
from gpt_cli.files.sums import check_listed as check_listed
from gpt_cli.files.sums import read_sums as read_sums
from gpt_cli.files.sums import replace_listed as replace_listed
from gpt_cli.files.sums import write_listed as write_listed
