"""`python -m megaflow` is `megaflow`."""

from megaflow.cli.main import main

if __name__ == "__main__":
    main()
