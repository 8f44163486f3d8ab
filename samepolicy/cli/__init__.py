"""The command line. A module here with a function `command` is a command of that name, found by itself."""
