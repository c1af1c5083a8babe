"""``python -m sentport``: the same command line as the ``sentport`` script."""

import sys

from sentport.cli import main

if __name__ == "__main__":
    sys.exit(main())
