"""The jobs of the command line, one module each.

Each has `add_arguments(parser)` and `run(arguments) -> Exit`. A job checks its arguments, opens a session if it needs
one, calls the package that does the work, and prints the result.
"""
