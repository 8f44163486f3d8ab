"""`python -m samepolicy` is the command `samepolicy`.

Worker processes import this module again, so it loads nothing by itself.
"""

from typing import NoReturn


def main() -> NoReturn:
    """Run the program and leave with its status."""
    from samepolicy.cli.main import main

    main()


if __name__ == "__main__":
    main()
