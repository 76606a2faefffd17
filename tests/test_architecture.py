"""The direction of the layers, read from the source."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LAYERS = {
    "openmle_gym": set(),
    "openmle_evo": {"openmle_gym"},
    "openmle_erl": {"openmle_gym"},
    "sandbox_service": {"openmle_gym"},
}
TOP_LEVEL = {
    "pyproject.toml", "openmle_gym", "openmle_erl", "openmle_evo", "sandbox_service", "configs", "scripts", "tests",
    "docs", "README.md", "LICENSE", "constraints.txt",
}  # fmt: skip


def _imports(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
    return names


@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_imports_only_the_layers_below_it(layer: str) -> None:
    allowed = LAYERS[layer] | {layer}
    files = list((ROOT / layer / "src").rglob("*.py"))
    assert files
    for path in files:
        ours = {name.partition(".")[0] for name in _imports(path)} & set(LAYERS)
        assert ours <= allowed, f"{path.relative_to(ROOT)} imports {sorted(ours - allowed)}"


def test_no_module_of_ours_runs_untrusted_text() -> None:
    """No exec, eval or import by path in the libraries: generated code runs isolated only."""
    for layer in LAYERS:
        for path in (ROOT / layer / "src").rglob("*.py"):
            if path.name in RUNS_INSIDE:
                continue
            names = {node.id for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Name)}
            attributes = {
                node.attr for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Attribute)
            }
            assert not names & {"exec", "eval", "__import__"}, path
            assert not attributes & {"exec_module", "spec_from_file_location", "run_path", "import_module"}, path


RUNS_INSIDE = {"grading_child.py", "vram_hook.py", "zygote_parent.py"}
"""Scripts of ours that run inside the isolation, where running untrusted code is the point."""


def _modules_after(statement: str, *, without: tuple[str, ...]) -> set[str]:
    blocked = "".join(f"sys.modules[{name!r}] = None\n" for name in without)
    code = f"import sys\n{blocked}{statement}\nprint('\\n'.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_rewards_import_with_numpy_alone() -> None:
    others = ("torch", "hydra", "omegaconf", "pandas", "pydantic", "httpx", "scipy", "sklearn")
    assert "numpy" in _modules_after("import openmle_erl.rewards", without=others)


CONFIGURATIONS = [
    "openmle_erl.rl.config",
    "openmle_erl.sft.config",
    "openmle_erl.sft.train_config",
    "openmle_evo.config",
    "sandbox_service.config",
]


@pytest.mark.parametrize("module", CONFIGURATIONS)
def test_configuration_imports_without_torch(module: str) -> None:
    assert module in _modules_after(f"import {module}", without=("torch", "transformers", "sklearn"))


@pytest.mark.parametrize("layer", LAYERS)
def test_importing_a_library_imports_nothing_heavy(layer: str) -> None:
    heavy = ("numpy", "pandas", "pydantic", "httpx", "hydra", "torch", "sklearn", "docker", "starlette", "rich")
    assert layer in _modules_after(f"import {layer}", without=heavy)


def test_the_top_level_holds_exactly_what_the_design_says() -> None:
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    names = {line.partition("/")[0] for line in tracked.splitlines()}
    assert {name for name in names if not name.startswith(".")} == TOP_LEVEL
