"""The layout of `--help`: options in named groups, one sentence each.

1. All groups of a command share one column for names, so that the sentences line up.
2. An option's environment variable is MEGAFLOW_ and its name. The help shows a variable only if it has another name;
   `docs/environment.md` lists them all.
"""

import os
from typing import Any

import click

RUNTIME_DIR = "MEGAFLOW_RUNTIME_DIR"
UNGROUPED = "Options"
NAMES_WIDTH_MAX = 28  # longer names get a line of their own
CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


def variable_of(name: str) -> str:
    """Return the environment variable that an option has by default.

    >>> variable_of("--checkpoint-every")
    'MEGAFLOW_CHECKPOINT_EVERY'
    """
    return f"MEGAFLOW_{name.lstrip('-').replace('-', '_').upper()}"


class GroupedOption(click.Option):
    """An option that stands in a group of its command's help."""

    def __init__(self, *words: Any, group: str = UNGROUPED, **more: Any) -> None:
        super().__init__(*words, **more)
        self.group = group

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """Return names and help, with "repeatable" among the remarks if the option may come several times."""
        record = super().get_help_record(ctx)
        if record is None or not self.multiple:
            return record
        names, text = record
        return names, f"{text[:-1]}; repeatable]" if text.endswith("]") else f"{text}  [repeatable]"


class Command(click.Command):
    """A command whose help lists its options by groups."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command, with the folder of --runtime-dir in the environment only until it ends.

        A program may call several commands.
        """
        before, folder = os.environ.get(RUNTIME_DIR), ctx.meta.get(RUNTIME_DIR)
        if folder is None:
            return super().invoke(ctx)
        os.environ[RUNTIME_DIR] = folder
        try:
            return super().invoke(ctx)
        finally:
            os.environ.pop(RUNTIME_DIR)
            if before is not None:
                os.environ[RUNTIME_DIR] = before

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write a section for each group, in the order of their first options."""
        groups: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is None or isinstance(param, click.Argument):
                continue
            if isinstance(param, GroupedOption):
                groups.setdefault(param.group, []).append(record)
            else:  # --help itself
                groups.setdefault(UNGROUPED if UNGROUPED in groups or not groups else [*groups][-1], []).append(record)
        names = [len(name) for rows in groups.values() for name, _ in rows]
        width = max((length for length in names if length <= NAMES_WIDTH_MAX), default=NAMES_WIDTH_MAX)
        for group, rows in groups.items():
            with formatter.section(group):
                formatter.write_dl([(name.ljust(width), text) for name, text in rows], col_max=width)
