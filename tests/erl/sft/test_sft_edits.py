"""Which edits teach nothing, and what survives into an endpoint."""

import pytest
from erl.sft.sft_make import card
from hypothesis import given
from hypothesis import strategies as st
from openmle_erl.sft.canonical import canonical
from openmle_erl.sft.edits import only_downscales, uninstructive
from openmle_erl.sft.inheritance import inheritance
from openmle_erl.sft.reasons import Drop
from openmle_gym.jobs import Outcome
from openmle_gym.operators import Operator

PROGRAM = '''\
"""A forest."""
import os
import pandas as pd
from sklearn.ensemble import RandomForestClassifier

# read
train = pd.read_csv(os.path.join(os.environ["DATA_DIR"], "train.csv"))
test = pd.read_csv("test.csv")

def fit(frame, trees: int = 500):
    """Fits."""
    model = RandomForestClassifier(n_estimators=trees, max_depth=8, random_state=0)
    return model.fit(frame[["a", "b"]], frame["y"])

model = fit(train)
print("fitted")
test["y"] = model.predict(test[["a", "b"]])
test[["id", "y"]].to_csv("submission.csv", index=False)
print(f"Final Validation Score: {0.5}")
'''


def changed(*swaps: tuple[str, str]) -> str:
    source = PROGRAM
    for old, new in swaps:
        assert old in source, old
        source = source.replace(old, new)
    return source


COSMETIC = {
    "comments": changed(("# read", "# Read both tables, carefully.")),
    "docstrings": changed(('"""A forest."""\n', "")),
    "layout": changed(("max_depth=8, random_state=0", "max_depth=8,\n        random_state=0")),
    "names": changed(
        ("train = pd", "rows = pd"), ("fit(train)", "fit(rows)"), ("frame, trees", "table, trees"), ("frame[", "table[")
    ),
    "import order": changed(("import os\nimport pandas as pd\n", "import pandas as pd\nimport os\n")),
    "an alias": changed(("import pandas as pd", "import pandas"), ("pd.", "pandas.")),
    "an unused import": changed(("import os\n", "import os\nimport json\n")),
    "annotations": changed(("trees: int = 500", "trees=500")),
    "logging": changed(('print("fitted")', "import logging\nlogging.info('done')\nprint(len(train))")),
    "warnings": changed(("# read", "import warnings\nwarnings.filterwarnings('ignore')")),
}
SUBSTANTIAL = {
    "a parameter": changed(("max_depth=8", "max_depth=4")),
    "a column": changed(('["a", "b"]', '["a"]')),
    "a missing import": changed(("import os\n", "")),
    "the score's print": changed(("Final Validation Score: ", "score ")),
    "another class": changed(("RandomForestClassifier", "ExtraTreesClassifier")),
    "an added statement": changed(("model = fit(train)", "train = train.dropna()\nmodel = fit(train)")),
    "a misspelt name": changed(("model.predict(test[", "model.predict(tset[")),
}


@pytest.mark.parametrize("how", COSMETIC)
def test_what_only_looks_different_has_the_same_canonical_form(how: str) -> None:
    assert COSMETIC[how] != PROGRAM
    assert canonical(COSMETIC[how]) == canonical(PROGRAM)


@pytest.mark.parametrize("how", SUBSTANTIAL)
def test_what_acts_differently_has_another_canonical_form(how: str) -> None:
    assert canonical(SUBSTANTIAL[how]) != canonical(PROGRAM)


@pytest.mark.parametrize("how", COSMETIC)
def test_a_rename_or_a_comment_does_not_defeat_the_check_for_unchanged_code(how: str) -> None:
    """The release compared strings: a comment or a rename made an unchanged program pass for a change."""
    parent = card(0, 1.0, source=PROGRAM)
    step = card(1, 0.5, operator=Operator.IMPROVE, parents=(0,), source=COSMETIC[how])
    assert uninstructive(step, [parent]) is Drop.COSMETIC_EDIT


@pytest.mark.parametrize(
    "source",
    [
        "x = " + " + ".join(["1"] * 2000),
        "x = " + "-" * 2000 + "1",
        "x = frame" + ".copy()" * 1000,
        "if x == 0:\n    y = 0\n" + "".join(f"elif x == {n}:\n    y = {n}\n" for n in range(500)),
    ],
    ids=["sum", "minus", "calls", "elif"],
)
def test_a_program_that_nests_as_deep_as_it_is_long_is_compared_by_its_lines(source: str) -> None:
    assert canonical(source + "\n# more\n") == canonical(source)
    assert canonical(source, mask_seeds=True, mask_numbers=True) != canonical(source + "\nz = 2\n")
    assert inheritance(source, [], source + "\nz = 2\n").share == 1.0
    assert not only_downscales(source, "x = 1\n")


def test_a_crossover_that_repeats_one_of_its_parents_is_a_copy() -> None:
    parents = [card(0, 1.0, source=PROGRAM), card(1, 2.0, source=SUBSTANTIAL["a column"])]
    copy = card(2, 1.0, operator=Operator.CROSSOVER, parents=(0, 1), source=COSMETIC["names"])
    fusion = card(3, 1.0, operator=Operator.CROSSOVER, parents=(0, 1), source=SUBSTANTIAL["another class"])
    assert uninstructive(copy, parents) is Drop.COPY_OF_PARENT
    assert uninstructive(fusion, parents) is None


def debug(source: str, **more):
    return card(1, more.pop("value", None), operator=Operator.DEBUG, parents=(0,), source=source, **more)


def test_a_repair_that_changes_nothing_or_only_seeds_is_a_blind_retry() -> None:
    broken = card(0, source=PROGRAM, signature="KeyError@fit")
    assert uninstructive(debug(COSMETIC["logging"], value=1.0), [broken]) is Drop.BLIND_RETRY
    reseeded = changed(("random_state=0", "random_state=42"))
    assert uninstructive(debug(reseeded, value=1.0), [broken]) is Drop.BLIND_RETRY
    improved = card(1, 0.5, operator=Operator.IMPROVE, parents=(0,), source=reseeded)
    assert uninstructive(improved, [card(0, 1.0, source=PROGRAM)]) is Drop.BLIND_RETRY


@pytest.mark.parametrize(("old", "new"), [
    ("SEED = 1", "SEED = 2"), ("np.random.seed(1)", "np.random.seed(2)"), ("default_rng(1)", "default_rng(2)"),
    ("f(random_state=1)", "f(random_state=7)"),
])  # fmt: skip
def test_seeds_are_known_in_their_usual_places(old: str, new: str) -> None:
    assert canonical(old, mask_seeds=True) == canonical(new, mask_seeds=True)
    assert canonical(old) != canonical(new)
    assert canonical(old.replace("1", "x"), mask_seeds=True) != canonical(old, mask_seeds=True)


def test_a_repair_that_fails_as_its_parent_failed_is_a_repeated_failure() -> None:
    broken = card(0, source=PROGRAM, signature="KeyError@fit", message="KeyError: 'c'")
    again = debug(SUBSTANTIAL["a column"], signature="KeyError@fit", message="KeyError: 'c'")
    further = debug(SUBSTANTIAL["a column"], signature="KeyError@fit", message="KeyError: 'd'")
    mended = debug(SUBSTANTIAL["a column"], value=1.0)
    assert uninstructive(again, [broken]) is Drop.REPEATED_FAILURE
    assert uninstructive(further, [broken]) is None
    assert uninstructive(mended, [broken]) is None


DOWNSCALES = {
    "fewer trees": changed(("trees: int = 500", "trees: int = 50")),
    "fewer trees, deeper": changed(("trees: int = 500", "trees: int = 50"), ("max_depth=8", "max_depth=9")),
    "a sample": changed(("model = fit(train)", "train = train.sample(1000, random_state=0)\nmodel = fit(train)")),
    "the head of the table": changed(("model = fit(train)", "model = fit(train.head(1000))")),
    "less data read": changed(('"train.csv"))', '"train.csv"), nrows=1000)')),
}


@pytest.mark.parametrize("how", DOWNSCALES)
@pytest.mark.parametrize(
    "failure",
    [{"outcome": Outcome.TIMEOUT, "signature": "timeout"}, {"signature": "oom"}, {"signature": "MemoryError@fit"}],
    ids=["timeout", "oom", "MemoryError"],
)
def test_a_mere_reduction_of_scale_after_a_lack_of_resources_is_dropped(how: str, failure: dict) -> None:
    """The paper discards resource-limit scale reductions; the release had no such rule at all."""
    starved = card(0, source=PROGRAM, **failure)
    assert uninstructive(debug(DOWNSCALES[how], value=1.0), [starved]) is Drop.RESOURCE_DOWNSCALE


@pytest.mark.parametrize("how", DOWNSCALES)
def test_the_same_edit_after_another_failure_is_no_downscale(how: str) -> None:
    broken = card(0, source=PROGRAM, signature="ValueError@fit")
    assert uninstructive(debug(DOWNSCALES[how], value=1.0), [broken]) is None


@pytest.mark.parametrize(
    "source",
    [
        changed(("random_state=0", "random_state=0, n_jobs=4")),
        changed(("trees: int = 500", "trees: int = 900")),
        changed(("max_depth=8", "max_depth=8, max_features='sqrt'"), ("trees: int = 500", "trees: int = 50")),
        changed(("model = fit(train)", "train = train.astype('float32')\nmodel = fit(train)")),
        SUBSTANTIAL["another class"],
    ],
    ids=["more jobs", "larger", "fewer and other", "smaller types", "another class"],
)
def test_a_repair_that_does_something_new_is_no_downscale(source: str) -> None:
    assert not only_downscales(PROGRAM, source)


def test_leaving_models_out_of_an_ensemble_is_a_downscale() -> None:
    many = "m = V([('a', A()), ('b', B(n=500)), ('c', C())])\nm.fit(x)\n"
    assert only_downscales(many, "m = V([('a', A())])\nm.fit(x)\n")


BROKEN = (
    "import pandas as pd\nframe = pd.read_csv('a.csv')\nfirst = frame['x'].mean()\nframe.to_csv('submission.csv')\n"
)
MENDED = BROKEN.replace("frame['x'].mean()", "frame['y'].mean()")


def test_the_endpoint_inherits_all_of_itself() -> None:
    own = inheritance(MENDED, [BROKEN], MENDED)
    assert (own.surviving, own.returned, own.share) == (own.added, 0, 1.0)
    assert inheritance(MENDED, [], MENDED).share == 1.0


def test_a_repair_that_the_endpoint_takes_back_is_reverted() -> None:
    back = inheritance(MENDED, [BROKEN], BROKEN)
    assert (back.surviving, back.returned, back.share) == (0, back.removed, 0.0)
    assert back.reverted


def test_a_repair_that_the_endpoint_replaces_by_another_is_lost_but_not_reverted() -> None:
    gone = inheritance(MENDED, [BROKEN], BROKEN.replace("frame['x'].mean()", "1.0"))
    assert gone.surviving == 0
    assert not gone.reverted


def test_the_counts_of_an_inheritance_by_hand() -> None:
    """The edit takes out one statement and its one call, and puts in one of each."""
    edit = inheritance(MENDED, [BROKEN], MENDED + "print(1)\n")
    assert (edit.added, edit.surviving, edit.removed, edit.returned, edit.share) == (2, 2, 2, 0, 1.0)
    half = inheritance(
        "a = f(1)\nb = g(2)\n", ["pass\n"], "a = f(1)\nb = g(3)\n"
    )  # a = f(1), f(1), b = g(2), g(2): two of four are there
    assert (half.added, half.surviving, half.share) == (4, 2, 0.5)


def test_a_repair_by_removal_survives_while_the_removed_code_stays_out() -> None:
    shorter = BROKEN.replace("first = frame['x'].mean()\n", "")
    assert inheritance(shorter, [BROKEN], shorter + "x = 1\n").share == 1.0
    assert inheritance(shorter, [BROKEN], BROKEN).reverted


def test_renaming_everything_later_does_not_hide_the_inheritance() -> None:
    renamed = MENDED.replace("frame", "table").replace("first", "average")
    assert inheritance(MENDED, [BROKEN], renamed).share == 1.0


def test_a_draft_whose_framework_was_replaced_is_not_inherited() -> None:
    assert inheritance(PROGRAM, [], "import json\nprint(json.dumps({}))\n").share < 0.1


def test_programs_that_do_not_parse_are_compared_by_lines() -> None:
    broken = "x = (\nimport os\n"
    assert inheritance("x = 1\nimport os\n", [broken], "x = 1\nimport os\ny = 2\n").share == 1.0


def test_a_crossover_contributes_what_is_not_in_both_parents() -> None:
    first, second = "a = f(1)\nc = h(3)\n", "b = g(2)\nc = h(3)\n"
    fusion = inheritance("a = f(1)\nb = g(2)\nc = h(3)\n", [first, second], first)
    assert (fusion.added, fusion.surviving) == (4, 2)


@given(st.lists(st.sampled_from(["a = f(1)", "b = g(2)", "c = h(3)", "d = k(4)"]), max_size=6),
       st.lists(st.sampled_from(["a = f(1)", "b = g(2)", "c = h(3)", "d = k(4)"]), max_size=6),
       st.lists(st.sampled_from(["a = f(1)", "b = g(2)", "c = h(3)", "d = k(4)"]), max_size=6))  # fmt: skip
def test_a_share_is_between_0_and_1_and_1_for_the_endpoint_itself(
    parent: list[str], step: list[str], endpoint: list[str]
) -> None:
    text = ["\n".join(lines) for lines in (parent, step, endpoint)]
    assert 0.0 <= inheritance(text[1], [text[0]], text[2]).share <= 1.0
    if sorted(parent) != sorted(step):
        assert inheritance(text[1], [text[0]], text[1]).share == 1.0
