"""What the command line starts, a module for each job.

Each has `add_arguments(parser)` and `run(arguments) -> Exit`. A job checks its arguments, opens a session where it
needs one, calls the package that does the work, and says what came of it.
"""
