"""The program ``hlo-opt``, as ``python -m hlo_opt`` or the console script."""

import signal
import sys

from hlo_opt import _native


def main() -> int:
    """Runs the command line with the arguments of this process and returns its exit code."""
    # Python turns Ctrl-C into an exception that no native code would see.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    return _native.main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
