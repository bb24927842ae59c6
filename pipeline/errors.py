"""What a job says when it cannot or must not go on."""


class JobError(Exception):
    """The text tells an operator why and what to do; the job ends with exit code 1."""
