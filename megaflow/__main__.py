"""`python -m megaflow` is `megaflow`.

Python puts the current directory first in the path. It is taken out before anything more is imported: the files there
are no part of megaflow. (What Python had imported by then may be from there; `python -P -m megaflow` and the script
`megaflow` import nothing from there.)
"""

import sys

if __name__ == "__main__":
    if not sys.flags.safe_path:
        del sys.path[0]
    from megaflow.cli.main import main

    main()
