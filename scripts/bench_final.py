"""Compares what a run submits by two strategies, `best` and `blend`, on the test split: the same searches, both ways.

    .venv/bin/python scripts/bench_final.py --results final.jsonl     eight anchors, two seeds: 16 searches of 8 programs and
                                                                     up to 45 more for each blend
    .venv/bin/python scripts/bench_final.py --tasks diabetes --seeds 1 --attempts 4

With `--results` rows of earlier runs are read and not made again, so a stopped comparison goes on. A search is made once,
with the built-in policy, and graded by `best`; its copy is then graded by `blend`. Prints a Markdown table and the exact
paired permutation test on the relative differences.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from openmle_evo.evaluation.statistics import paired
from openmle_evo.reading import read_run
from openmle_evo.run import FinalReport, read_final

ANCHORS = ("breast-cancer", "concrete", "credit", "diabetes", "diamonds", "digits", "olive-oils", "penguins")
"""Eight, as five could not give a p-value below 0.05."""
PROGRAMS = Path(sys.executable).parent


def searched(folder: Path, package: Path, *, seed: int, attempts: int, settings: Sequence[str]) -> Path:
    """A finished run, graded by `best`."""
    run = folder / f"{package.name}-{seed}"
    command = [PROGRAMS / "openmle-evo", "search", f"task={package}", f"run_dir={run}", f"seed={seed}"]
    command += [f"budget.attempts={attempts}", f"schedule.initial_drafts={max(attempts // 2, 1)}", *settings]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return run


def graded_by_blend(run: Path) -> FinalReport | None:
    """The final report of a copy of the run that submits a blend."""
    copy = run.with_name(f"{run.name}-blend")
    shutil.copytree(run, copy)
    (copy / "final.json").unlink()
    manifest = json.loads((copy / "manifest.json").read_text())
    manifest["settings"]["final"]["strategy"] = "blend"
    (copy / "manifest.json").write_text(json.dumps(manifest))
    subprocess.run([PROGRAMS / "openmle-evo", "resume", copy], check=True, stdout=subprocess.DEVNULL)
    audited = subprocess.run([PROGRAMS / "openmle-evo", "audit", copy], check=False, stdout=subprocess.DEVNULL)
    if audited.returncode != 0:
        raise SystemExit(f"{copy}: the audit failed")
    return read_final(copy)


def compared(run: Path, task: str, seed: int) -> dict:
    """One row: what each way scored."""
    best, blend = read_final(run), graded_by_blend(run)
    if best is None or blend is None or best.test is None or blend.test is None or blend.blend is None:
        raise SystemExit(
            f"{run}: not graded both ways; is a valid program among its {len(read_run(run).cards)} attempts?"
        )
    return {
        "task": task,
        "seed": seed,
        "best_validation": best.validation.value,
        "blend_validation": blend.validation.value,
        "best_test": best.test.value,
        "blend_test": blend.test.value,
        "gain": (blend.test.utility - best.test.utility) / max(abs(best.test.value), 1e-12),
        "chosen": blend.blend.chosen,
        "parts": len(blend.blend.parts),
        "jobs": blend.blend.jobs,
        "message": blend.blend.message,
    }


def print_table(rows: Sequence[dict]) -> None:
    print("| task | seed | validation: best | blend | test: best | blend | change on test | submitted |")
    print("|---|---|---|---|---|---|---|---|")
    for row in sorted(rows, key=lambda each: (each["task"], each["seed"])):
        submitted = f"blend of {row['parts']}" if row["chosen"] else f"best ({row['message']})"
        print(
            f"| {row['task']} | {row['seed']} | {row['best_validation']:.5g} | {row['blend_validation']:.5g} | "
            f"{row['best_test']:.5g} | {row['blend_test']:.5g} | {row['gain']:+.2%} | {submitted} |"
        )
    gains = [row["gain"] for row in rows]
    told = paired((row["task"], row["gain"]) for row in rows)
    better, worse = sum(gain > 0 for gain in gains), sum(gain < 0 for gain in gains)
    error = "" if told.standard_error is None else f" +/- {told.standard_error:.2%} (standard error over tasks)"
    print(
        f"\n{len(gains)} pairs on {told.tasks} tasks: blend better in {better}, worse in {worse}, equal in "
        f"{len(gains) - better - worse}; mean relative change on test {told.mean:+.2%}{error}; paired permutation test over "
        f"tasks p = {told.test.p_value:.3g} ({'exact' if told.test.exact else 'drawn'}; no less than "
        f"{2 / 2**told.tasks:.2g} is possible)"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="*", default=ANCHORS)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--attempts", type=int, default=8)
    parser.add_argument("--results", type=Path, help="a file of rows: read first, and added to")
    parser.add_argument(
        "--setting", nargs="*", default=[], metavar="key=value", help="settings of `openmle-evo search`"
    )
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    rows = []
    if options.results and options.results.is_file():
        rows = [json.loads(line) for line in options.results.read_text().splitlines()]
    made = {(row["task"], row["seed"]) for row in rows}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for task in options.tasks:
            missing = [seed for seed in range(options.seeds) if (task, seed) not in made]
            if not missing:
                continue
            build = [PROGRAMS / "openmle-gym", "anchors", "build", task, "--output", folder / "tasks"]
            subprocess.run(build, check=True, stdout=subprocess.DEVNULL)
            for seed in missing:
                package = folder / "tasks" / task
                run = searched(folder, package, seed=seed, attempts=options.attempts, settings=options.setting)
                rows.append(compared(run, task, seed))
                print(f"{len(rows)} of {len(options.tasks) * options.seeds}: {rows[-1]}", file=sys.stderr, flush=True)
                if options.results:
                    with options.results.open("a") as file:
                        file.write(json.dumps(rows[-1]) + "\n")
    print_table(rows)


if __name__ == "__main__":
    main()
