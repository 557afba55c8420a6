"""The file of a statement: complete, or as it was before."""

from pathlib import Path

from runtime.private_files import replace_file


def write_statement(path: Path, text: str) -> None:
    """Write the file, which only its owner may read. Raises OSError."""
    replace_file(path, text)
