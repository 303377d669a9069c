"""`python -m tests.attack`: see `tests.attack.long`."""

from tests.attack.long import main

main()
