"""``python -m zpd``, and the way in of the command ``zpd``: the tools, if they are ours."""

from __future__ import annotations

import importlib
import sys

from zpd.errors import UserError
from zpd.packages import check_packages


def main() -> int:
    try:
        check_packages()
    except UserError as e:
        print(f"zpd: {e}", file=sys.stderr)
        return 2
    code: int = importlib.import_module("tools.cli").main()
    return code


if __name__ == "__main__":
    sys.exit(main())
