"""`python -m megaflow` is `megaflow`."""

from megaflow.cli import main

if __name__ == "__main__":
    main()
