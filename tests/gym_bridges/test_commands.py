"""Each command once, as it is called."""

import json
from pathlib import Path

import pytest
from gym_bridges.test_naturebench import entry
from gym_bridges.test_naturebench import package as nature_package
from openmle_gym.cli import main
from toy import write_toy_package


def said(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict:
    code = main([str(each) for each in arguments])
    out = json.loads(capsys.readouterr().out)
    return {"code": code, **out}


def test_the_commands_print_json_and_exit_codes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = write_toy_package(tmp_path / "tasks" / "toy").root
    index = tmp_path / "index.sqlite"
    assert said(capsys, "index", "build", root.parent, "--output", index)["tasks"] == 1
    assert [task["name"] for task in said(capsys, "index", "query", index, "--modality", "tabular")["tasks"]] == ["toy"]
    stands = said(capsys, "leaderboard", "standing", root, "nan")
    assert (stands["rank"], stands["medal"], stands["code"]) == (21, None, 0)
    (tmp_path / "board.csv").write_text("rank,score\n1,0.1\n")
    attached = said(capsys, "leaderboard", "attach", root, tmp_path / "board.csv", "--source", "mine")
    assert (attached["teams"], attached["best"]) == (1, 0.1)
    written = said(capsys, "prepare-input", root.parent, "--output", tmp_path / "in.parquet")
    assert written["tasks"] == ["toy"]
    assert said(capsys, "released", root.parent)["tasks"][0]["kind"] == "built_task"
    lite = said(capsys, "mle-bench", "list", "--lite")
    assert len(lite) == 23
    (tmp_path / "catalogue.csv").write_text("slug,teams\na,100\nb,3\n")
    assert said(capsys, "funnel", tmp_path / "catalogue.csv")["reached"]["eligible"] == 1
    task = nature_package(tmp_path / "nature", entry("a", "higher", 0.5))
    gap = said(capsys, "naturebench", task, "--score", "a=0.6")["gap"]
    assert (gap["aggregate"], gap["surpasses_sota"]) == (pytest.approx(0.2), True)
    for score, words in (
        ("b=0.6", "of one of a"),
        ("0.6", "of one of a"),
        ("a=x", "'x' is no number"),
    ):
        assert main(["naturebench", str(task), "--score", score]) == 2
        assert words in capsys.readouterr().err
    assert main(["naturebench", str(task), "--score", "a=0.6", "--score", "a=0.7"]) == 2
    assert "is there twice" in capsys.readouterr().err
    assert main(["prepare-input", str(root), "--output", str(tmp_path)]) == 1
    assert f"{tmp_path}'. Detail: [errno 21] Is a directory\n" in capsys.readouterr().err
    assert main(["funnel", str(tmp_path)]) == 1
    assert capsys.readouterr().err == f"error: {tmp_path}: cannot be read: Is a directory\n"
    for slug, words in (
        ("../x", "a competition is named by a slug"),
        ("https://www.kaggle.com/datasets/a/b", "only comp"),
    ):
        assert main(["leaderboard", "download", slug, "--output", str(tmp_path)]) == 2
        assert words in capsys.readouterr().err
    overview = said(
        capsys, "overview", root.parent, "--output", tmp_path / "o.csv", "--runner", "process", "--allow-process"
    )
    assert (overview["status"], overview["code"]) == ("ok", 0)
