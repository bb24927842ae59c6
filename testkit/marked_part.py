"""The part of a page between two comments, which a generator writes; the rest is written by hand."""


def with_part(text: str, name: str, part: str) -> str:
    """Replaces one part of a page.

    Args:
        text: a page with the lines `<!-- NAME -->` and `<!-- end of NAME -->`.
        name: the part's name.
        part: the new text between these lines.
    """
    begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    before, _, rest = text.partition(begin)
    _, _, after = rest.partition(end)
    return f"{before}{begin}\n{part}\n{end}{after}"
