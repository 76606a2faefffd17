"""What docs/comparison.md claims of ours has a command, and every command that it names is there to be run."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "comparison.md").read_text(encoding="utf-8")
ROWS = [line for line in PAGE.splitlines() if line.startswith("|")]
TICKS = [int(number) for row in ROWS for number in re.findall(r"✓ (\d+)", row)]
(BLOCK,) = re.findall(r"```sh\n(.*?)```", PAGE, flags=re.DOTALL)
COMMANDS = {int(number): command for command, number in re.findall(r"^(.+?)  # (\d+)$", BLOCK, flags=re.MULTILINE)}
CONSOLE = [command.split() for command in COMMANDS.values() if command.startswith("openmle-")]
SCRIPTS = [command.split()[0] for command in COMMANDS.values() if command.startswith("scripts/")]
NODES = [command.removeprefix("pytest ") for command in COMMANDS.values() if command.startswith("pytest ")]


def test_every_tick_has_a_command_and_every_command_a_tick() -> None:
    assert sorted(TICKS) == list(range(1, len(TICKS) + 1)) == sorted(COMMANDS)
    assert len(BLOCK.splitlines()) == len(COMMANDS) == len(CONSOLE) + len(SCRIPTS) + len(NODES)
    assert len(re.findall("✓", "\n".join(ROWS))) == len(TICKS)


def test_every_row_has_a_cell_for_each_column() -> None:
    for table in re.findall(r"(?:^\|.*\n)+", PAGE, flags=re.MULTILINE):
        assert len({row.count("|") for row in table.splitlines()}) == 1, table


@pytest.mark.parametrize("words", CONSOLE, ids=" ".join)
def test_a_console_command_is_there_with_its_subcommands_and_settings(words: list[str]) -> None:
    subcommands = [word for word in words[1:] if re.fullmatch(r"[a-z-]*[a-z]", word) and not word.startswith("-")]
    program = Path(sys.executable).parent / words[0]
    shown = subprocess.run([program, *subcommands, "--help"], capture_output=True, text=True, timeout=120)
    assert shown.returncode == 0, shown.stderr
    before_the_profile = words[: words.index("--")] if "--" in words else words
    for setting in (word.split("=")[0] for word in before_the_profile if "=" in word):
        assert f"\n  {setting}=" in shown.stdout, setting


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_is_there_to_be_run(script: str) -> None:
    assert os.access(ROOT / script, os.X_OK)


@pytest.mark.parametrize("node", NODES)
def test_a_test_is_where_the_page_says(node: str) -> None:
    file, name = node.split("::")
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
