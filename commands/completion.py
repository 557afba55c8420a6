"""`tollgate completion`: prints a script for a shell (docs/reference/command-line.md#completion)."""

import os

import click

_INSTRUCTION = "_TOLLGATE_COMPLETE"


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the script that makes a shell complete `tollgate`'s commands and flags.

    bash: eval "$(tollgate completion bash)"; zsh the same; fish: tollgate completion fish | source
    """
    os.environ[_INSTRUCTION] = f"{shell}_source"  # as click documents it; the command then prints the script and ends
    context.find_root().command.main([], prog_name="tollgate")
