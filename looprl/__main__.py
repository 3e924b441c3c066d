"""`python -m looprl` is the `looprl` command."""

import sys

from looprl.cli import main

# vLLM's worker processes import this module again, under another name.
if __name__ == "__main__":
    sys.exit(main())
