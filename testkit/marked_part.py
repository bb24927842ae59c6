"""The part of a page between two comments, which a generator writes; the rest is written by hand."""


def with_part(text: str, name: str, part: str) -> str:
    """The page with this part.

    Args:
        text: a page with the lines `<!-- NAME -->` and `<!-- end of NAME -->`.
        name: of the part.
        part: what is to stand between them.
    """
    begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    before, _, rest = text.partition(begin)
    _, _, after = rest.partition(end)
    return f"{before}{begin}\n{part}\n{end}{after}"
