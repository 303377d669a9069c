"""`python -m megaflow` is `megaflow`.

Python puts the current directory first in the path. It is taken out before anything more is imported: the files there
are no part of megaflow. (What Python had imported by then may be from there; `python -P -m megaflow` and the script
`megaflow` import nothing from there.)
"""

import sys

INTERRUPTED = 130  # as shells tell of Ctrl-C


def run() -> None:
    """Run the command line and exit. Ctrl-C ends it without a word as long as it is not there to say one."""
    try:
        from megaflow.cli.main import main
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    main()


if __name__ == "__main__":
    if not sys.flags.safe_path:
        del sys.path[0]
    run()
