"""`python -m samepolicy` is the command `samepolicy`."""

from samepolicy.cli.main import main

if __name__ == "__main__":
    main()
