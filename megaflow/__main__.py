"""`python -m megaflow` is `megaflow`.

Python puts the current directory first in the path. It is taken out before anything more is imported: the files there
are no part of megaflow. (What Python had imported by then may be from there; `python -P -m megaflow` and the script
`megaflow` import nothing from there.)
"""

import sys


def run() -> None:
    """Run the command line and exit. Ctrl-C ends it without a word as long as it is not there to say one."""
    import signal

    is_raised = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_raised:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from megaflow.cli.main import main

    if is_raised:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    main()


if __name__ == "__main__":
    if not sys.flags.safe_path:
        del sys.path[0]
    run()
