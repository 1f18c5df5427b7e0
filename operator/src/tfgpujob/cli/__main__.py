"""`python -m tfgpujob.cli`: `tfgpu`, where its script is not on the PATH."""

import sys

from tfgpujob.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
