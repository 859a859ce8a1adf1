"""``python -m tools.explore``: the same as ``zpd explore``."""

from __future__ import annotations

import sys

from tools.explore.run import main

if __name__ == "__main__":
    sys.exit(main())
