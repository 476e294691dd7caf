"""`python -m gpt_cli` is `gpt`."""

import sys

from gpt_cli.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
