import hashlib
import json
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openmle_gym.errors import ReplyError
from openmle_gym.program import Program, parse_reply, program_id

REPLIES = Path(__file__).parent / "fixtures" / "replies"  # .txt, for a formatter changes the code in .md files
OK = 'import pandas as pd\nprint("OK_MARK")\n'
NESTED = 'DOC = """\n```\ninner\n```\n"""\n' + OK
FENCED = f"```python\n{OK}```\n"
DRAFT = 'print("WRONG_DRAFT")\n'
LONG = (
    "import os\nimport pandas as pd\n"
    + "".join(f"step_{i} = {i}\n" for i in range(20))
    + "frame = pd.DataFrame({'id': [1], 'target': [step_1]})\n"
    + "frame.to_csv('submission.csv', index=False)\n"
)
FORGETFUL = (
    "import pandas as pd\n"
    + "".join(f"part_{i} = os.name\n" for i in range(6))
    + "pd.DataFrame({'id': [1]}).to_csv('submission.csv')\n"
)
SCRIPT = (
    "import pandas as pd\n"
    "test = pd.read_csv('data/test.csv')\n"
    "if len(test) > 1:\n"
    '    print("OK_MARK")\n'
    "test[['id']].to_csv('submission.csv')\n"
)
NOTEBOOK = {
    "cells": [
        {"cell_type": "markdown", "source": ["# Plan\n", "import nothing\n"]},
        {"cell_type": "code", "source": ["import pandas as pd\n", "x = 1\n"]},
        {"cell_type": "code", "source": 'print("OK_MARK", x)\n'},
    ],
    "nbformat": 4,
}
NOTEBOOK_SOURCE = 'import pandas as pd\nx = 1\n\n\nprint("OK_MARK", x)\n'
HELPERS = '"""Helpers."""\nimport os\n\n\ndef helper():\n    return os.name\n'
SHORT = "import pandas as pd\nframe = pd.DataFrame({'id': [1]})\nframe.to_csv('submission.csv')\n"


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("01_plain_python_fence", OK),
        ("02_py_tag", OK),
        ("04_tilde_fence", OK),
        ("06_nested_fence_in_docstring", NESTED),
        ("08_think_closed_w_draft_code", OK),
        ("12_two_python_blocks_old_then_final", OK),
        ("13_crlf", OK),
        ("16_no_fence_raw_code", OK),
    ],
)
def test_the_final_program_of_a_collected_reply_is_found(name: str, source: str) -> None:
    reply = (REPLIES / f"{name}.txt").read_bytes().decode()
    program = parse_reply(reply)
    assert program.source == source
    assert program.syntax_error is None


@pytest.mark.parametrize("name", ["09_think_unclosed", "17_prose_only"])
def test_a_collected_reply_without_a_program_is_no_code(name: str) -> None:
    with pytest.raises(ReplyError) as caught:
        parse_reply((REPLIES / f"{name}.txt").read_text())
    assert caught.value.code == "no_code"


def indented(text: str, by: str) -> str:
    return "".join(by + line if line.strip() else line for line in text.splitlines(keepends=True))


ACCEPTED = {
    # How a block is fenced.
    "upper case tag": (f"```Python\n{OK}```", OK),
    "python3 tag": (f"```python3\n{OK}```", OK),
    "python3.11 tag": (f"``` python3.11\n{OK}```", OK),
    "attributes after the tag": (f'```python title="main.py" linenums="1"\n{OK}```', OK),
    "tag in braces": (f"```{{python}}\n{OK}```", OK),
    "class in braces": (f"```{{.python .numberLines}}\n{OK}```", OK),
    "file name after the tag": (f"```python:main.py\n{OK}```", OK),
    "file name for a tag": (f"```solution.py\n{OK}```", OK),
    "tag as the first line": (f"```\npython\n{OK}```", OK),
    "import on the fence line": ('```python import pandas as pd\nprint("OK_MARK")\n```', OK),
    "no tag": (f"Plan.\n```\n{OK}```", OK),
    "longer fence": (f"`````python\n{OK}`````", OK),
    "longer fence around shorter ones": (f"````python\n{NESTED}````", NESTED),
    "longer tilde fence": (f"~~~~ python\n{OK}~~~~~", OK),
    "fences of unequal length": (f"````python\n{OK}```\nDone.", OK),
    "closing fence glued to the code": (f"```python\n{OK.rstrip()}```\nDone.", OK),
    "prose on the closing fence's line": (f"```python\n{OK}``` That is all.", OK),
    "opening fence after prose": (f"Here it is: ```python\n{OK}```", OK),
    "opening fence in a list": ("1. Load.\n2. Run:\n   ```python\n" + indented(OK, "   ") + "   ```\n", OK),
    "opening fence behind a bullet": ("- ```python\n" + indented(OK, "  ") + "  ```\n", OK),
    "list with tabs": ("*\tRun:\n\t```python\n" + indented(OK, "\t") + "\t```\n", OK),
    "code indented more than its fence": ("```python\n" + indented(OK, "    ") + "```", OK),
    "block quote": ("Plan.\n> ```python\n" + indented(OK, "> ") + "> ```\nDone.", OK),
    "nested block quote": (">> ```python\n" + indented(OK, ">> ") + ">> ```\n", OK),
    "markdown around it all": (f"```markdown\n# Plan\nLoad.\n```python\n{OK}```\n```\n", OK),
    "a longer markdown fence around it all": (f"````markdown\n# Plan\n```python\n{OK}```\n````\n", OK),
    "invisible characters around fences": (f"\ufeff\u200b```python\u200b\n{OK}\u00a0```\u200b\n", OK),
    "non-breaking spaces in the code": (
        "```python\nif True:\n\u00a0\u00a0\u00a0\u00a0x = 1\n```",
        "if True:\n    x = 1\n",
    ),
    "old Mac newlines": (FENCED.replace("\n", "\r"), OK),
    "backslash-n in place of newlines": ('```python\\nimport pandas as pd\\nprint(\\"OK_MARK\\")\\n```', OK),
    "a JSON object": ('{"plan": "x", "code": "```python\\nimport pandas as pd\\nprint(\\"OK_MARK\\")\\n```"}', OK),
    "backslash-n within the block": ('```python\nimport pandas as pd\\nprint("OK_MARK")\\n\n```', OK),
    "HTML": ('<pre><code class="language-python">import pandas as pd\nprint(&quot;OK_MARK&quot;)\n</code></pre>', OK),
    "answer tags around a block": (f"<answer>\n{FENCED}</answer>", OK),
    "answer tags around bare code": (f"Plan.\n<answer>\n{OK}</answer>", OK),
    "closing fence forgotten": (f"Plan.\n```python\n{OK}", OK),
    "closing fence cut": (f"Plan.\n```python\n{OK}``", OK),
    "opening fence forgotten": (f"{OK}```\nIt prints a mark.", OK),
    "prose, then bare code": (f"Here is the program:\n\n{OK}", OK),
    # Thinking.
    "only the closing tag": (f"Hm.\n```python\n{DRAFT}```\n</think>\nPlan.\n{FENCED}", OK),
    "only the closing tag, draft unclosed": (f"Hm.\n```python\nfor (\n</think>\nPlan.\n{FENCED}", OK),
    "upper case thinking": (f"<THINK>```python\n{DRAFT}```</THINK>{FENCED}", OK),
    "thinking": (f"<thinking>\n{DRAFT}</thinking>\n{OK}", OK),
    "thought": (f"<thought>```python\n{DRAFT}```\n</thought>\n{FENCED}", OK),
    "reasoning": (f"<reasoning>```python\n{DRAFT}```\n</reasoning>\n{FENCED}", OK),
    "draft left open in the thinking": (f"<think>\n```python\nfor x in (\n</think>\n{FENCED}", OK),
    "thinking after the program": (f"{FENCED}<think>\nIs it right?\n```python\n{DRAFT}```\n</think>\nYes.", OK),
    "thinking that never ends after the program": (f"{FENCED}\n<think>\n```python\n{DRAFT}```\n", OK),
    "thinking within thinking": (f"<think>a <think>b</think>\n```python\n{DRAFT}```\n</think>\n{FENCED}", OK),
    "tags in a string": (
        '```python\nprint("<think>")\nprint("</think>")\n```',
        'print("<think>")\nprint("</think>")\n',
    ),
    "tags in a long string": (
        f'```python\nX = """\n<think>\nno\n</think>\n"""\n{OK}```',
        f'X = """\n<think>\nno\n</think>\n"""\n{OK}',
    ),
    "tags in bare code": (f'X = """\n<think>\n"""\n{OK}', f'X = """\n<think>\n"""\n{OK}'),
    "tags spoken of": (f"I strip `<think>` and `</think>` from the text.\n{FENCED}", OK),
    "a closing tag spoken of after the program": (f"{FENCED}I strip the `</think>` tag.", OK),
    "a tag spoken of": (f"The <think> tag is stripped.\n{FENCED}", OK),
    "draft that names the tag": (f"<think>\n```python\nre.sub('</think>', '')\n{DRAFT}```\n</think>\n{FENCED}", OK),
    # Which block.
    "shell after the program": (f"{FENCED}Run it:\n```bash\npython main.py\n```", OK),
    "shell in a block that says Python": (f"{FENCED}Run it:\n```python\npython main.py\n```", OK),
    "output after the program": (f"{FENCED}It prints:\n```\nOK_MARK\n```", OK),
    "output that parses": (f"{FENCED}It prints:\n```\nloss = 0.5\naccuracy = 0.9\n```", OK),
    "JSON after the program": (f'{FENCED}```json\n{{"score": 1}}\n```', OK),
    "JSON that says Python": (f'{FENCED}```python\n{{"score": 1}}\n```', OK),
    "transcript after the program": (f"{FENCED}```python\n>>> import this\n```", OK),
    "transcript with its own tag": (f"{FENCED}```pycon\n>>> import this\n```", OK),
    "diff after the program": (f"{FENCED}```python\n-print(1)\n+print(2)\n```", OK),
    "shell left open, then the program": (f"```bash\npip install x\n{FENCED}", OK),
    "text left open, then the program": (f"Output:\n```\nsome text\n{FENCED}", OK),
    "old program left open, then the final": (f"```python\n{DRAFT}\nBetter:\n{FENCED}", OK),
    "old program left open, then the final after prose": (f"```python\n{DRAFT}\nBetter: {FENCED}", OK),
    "stray fence before the program": (f"```\n\nPlan.\n\n{FENCED}", OK),
    "usage of the program's own names": (f"{FENCED}For instance:\n```python\npd.read_csv('x')\n```", OK),
    "usage after a long program": (f"```python\n{LONG}```\n```python\nimport os\nprint(os.listdir())\n```", LONG),
    "patch after a long program": (f"```python\n{LONG}```\nOr:\n```python\nframe['target'] = step_2\n```", LONG),
    "printed model after the program": (f"```python\n{LONG}```\n```\npd.DataFrame()\n```", LONG),
    "printed call after the program": (f"{FENCED}```\nModel(depth=3)\n```", OK),
    "final program that forgot an import of the draft": (f"```python\n{LONG}```\n```python\n{FORGETFUL}```", FORGETFUL),
    "longer program without imports after a short one": (
        f"```python\n{SHORT}```\nBetter:\n```python\n{SHORT.split(chr(10), 1)[1] * 2}```",
        SHORT.split("\n", 1)[1] * 2,
    ),
    "short final program after a long draft": (
        f"```python\n{LONG}```\nSimpler:\n```python\n" + "\n".join(LONG.splitlines()[:8]) + "\n```",
        "\n".join(LONG.splitlines()[:8]) + "\n",
    ),
    "cells of one program": (
        "First:\n```python\nimport pandas as pd\n```\nThen:\n```python\nx = pd.NA\n```\nLast:\n```python\nprint(x)\n```",
        "import pandas as pd\n\nx = pd.NA\n\nprint(x)\n",
    ),
    "last cell writes the submission": (
        "```python\n" + LONG.replace("frame.to_csv('submission.csv', index=False)\n", "") + "```\n"
        "```python\nframe.to_csv('submission.csv')\n```",
        LONG.replace("frame.to_csv('submission.csv', index=False)\n", "") + "\nframe.to_csv('submission.csv')\n",
    ),
    "code that ends in a comment with a fence": (f"```python\n{OK}# ``` not the end\n```", f"{OK}# ``` not the end\n"),
    "fence in a string with an inner tag": (
        f"```python\nX = '''\n```python\nx\n```\n'''\n{OK}```",
        f"X = '''\n```python\nx\n```\n'''\n{OK}",
    ),
    "unclosed string in an older block, closed by chance": (
        f'```python\nx = """oops\n```\nFinal:\n```python\nq = \'"""\'\n{OK}```',
        f'q = \'"""\'\n{OK}',
    ),
    "unclosed string in an older block": (f'```python\nx = """oops\n```\nFinal:\n{FENCED}', OK),
    "bare code with fences in a string": (NESTED, NESTED),
    "helpers in a file of their own after the program": (
        f"```python\n{SCRIPT}```\n`helpers.py`:\n```python\n{HELPERS}```",
        SCRIPT,
    ),
    # Code that is wrapped in something else.
    "JSON on one line": (json.dumps({"plan": "Load it.\nFit it.", "code": SCRIPT}), SCRIPT),
    "JSON on lines": (json.dumps({"plan": "x", "code": SCRIPT}, indent=2), SCRIPT),
    "JSON in a block": (f"Plan.\n```json\n{json.dumps({'code': SCRIPT}, indent=2)}\n```\nDone.", SCRIPT),
    "JSON of messages": (json.dumps([{"role": "assistant", "content": f"Plan.\n```python\n{SCRIPT}```"}]), SCRIPT),
    "JSON in JSON": (json.dumps({"arguments": json.dumps({"code": SCRIPT}, indent=1)}), SCRIPT),
    "tool call": (f"<tool_call>\n{json.dumps({'name': 'run', 'arguments': {'code': SCRIPT}})}\n</tool_call>", SCRIPT),
    "tool call in tags": (f"<function=run>\n<parameter=code>\n{SCRIPT}</parameter>\n</function>", SCRIPT),
    "old and final code in JSON": (json.dumps({"old": f"import os\n{DRAFT}", "new": SCRIPT}), SCRIPT),
    "notebook": (json.dumps(NOTEBOOK, indent=1), NOTEBOOK_SOURCE),
    "notebook in a block": (f"```json\n{json.dumps(NOTEBOOK)}\n```", NOTEBOOK_SOURCE),
    "square brackets": (f"[PYTHON]\n{SCRIPT}[/PYTHON]", SCRIPT),
    "a tag that nobody knows": (f"<solution>\n{SCRIPT}</solution>", SCRIPT),
    "character data": (f"<code><![CDATA[\n{SCRIPT}]]></code>", SCRIPT),
    "LaTeX": (f"\\begin{{lstlisting}}[language=Python]\n{SCRIPT}\\end{{lstlisting}}", SCRIPT),
    "colons for a fence": (f":::python\n{SCRIPT}:::\n", SCRIPT),
    "two backticks for a fence": (f"Plan.\n``python\n{SCRIPT}``\n", SCRIPT),
    "quotes for a fence": (f"'''python\n{SCRIPT}'''\n", SCRIPT),
    "a block of plain text that is a program": (f"```text\n{SCRIPT}```", SCRIPT),
    "a block for a notebook": (f"```jupyter\n{SCRIPT}```", SCRIPT),
    "bare code between prose": (f"Sure! Here it is:\n\n{SCRIPT}\nThis isn't hard: it loads and it writes.\n", SCRIPT),
    "bare code before prose": (f"{SCRIPT}\nThis program trains nothing.\nIt's done.\n", SCRIPT),
    "entities in a block": (f"```python\n{SCRIPT.replace('>', '&gt;').replace(chr(34), '&quot;')}```", SCRIPT),
    "magics of a notebook": (
        f"```python\n%matplotlib inline\n!pip install lightgbm\n{SCRIPT}```",
        f"pass  # %matplotlib inline\npass  # !pip install lightgbm\n{SCRIPT}",
    ),
    "numbered lines": (
        "```python\n" + "".join(f"{n:3} | {x}\n" for n, x in enumerate(SCRIPT.splitlines(), 1)) + "```",
        SCRIPT,
    ),
    "closing fence of the other kind": (f"```python\n{OK}~~~\n", OK),
    # What a chat template leaves behind.
    "end token after bare code": (f"{SCRIPT}<|im_end|>\n", SCRIPT),
    "end tokens after bare code": (f"{SCRIPT}<|eot_id|></s>", SCRIPT),
    "role before bare code": (f"assistant\n{SCRIPT}", SCRIPT),
    "role in tokens before bare code": (f"<|start_header_id|>assistant<|end_header_id|>\n\n{SCRIPT}", SCRIPT),
    # Other marks of thinking.
    "tag with an attribute": (f'<think time="3">\n```python\n{DRAFT}```\n</think>\n{FENCED}', OK),
    "tag with a prefix": (f"<seed:think>\n```python\n{DRAFT}```\n</seed:think>\n{FENCED}", OK),
    "thinking in square brackets": (f"[THINK]\n```python\n{DRAFT}```\n[/THINK]{FENCED}", OK),
    "thinking in triangles": (f"\u25c1think\u25b7\n```python\n{DRAFT}```\n\u25c1/think\u25b7\n{FENCED}", OK),
    "thought in tokens": (f"<|begin_of_thought|>\n```python\n{DRAFT}```\n<|end_of_thought|>\n{FENCED}", OK),
    "channels": (
        f"<|channel|>analysis<|message|>Hm.\n```python\n{DRAFT}```\n<|end|><|start|>assistant<|channel|>final<|message|>{FENCED}",
        OK,
    ),
    "marks of thinking in a string": (
        '```python\nprint("[THINK]")\nprint("\u25c1/think\u25b7")\n```',
        'print("[THINK]")\nprint("\u25c1/think\u25b7")\n',
    ),
}


@pytest.mark.parametrize("kind", ACCEPTED)
def test_the_program_is_what_a_person_takes(kind: str) -> None:
    reply, source = ACCEPTED[kind]
    program = parse_reply(reply)
    assert program.source == source
    assert program.syntax_error is None


NO_CODE = {
    "nothing": "",
    "white space": " \n\t\n",
    "one word": "Sorry",
    "one word in a block": "```\nSorry\n```",
    "a number in a block": "```\n0.93\n```",
    "words on lines": "yes\nno\nmaybe\n",
    "JSON": '{"plan": "none",\n "score": 0.5}\n',
    "JSON block": '```json\n{"a": 1}\n```',
    "shell only": "```bash\npip install pandas\npython main.py\n```",
    "transcript only": "```python\n>>> print(1)\n1\n```",
    "output only": "```\naccuracy = 0.9\nloss = 0.1\n```",
    "annotated output": "```\nEpoch: 1\nLoss: 0.1\n```",
    "comments only": "```python\n# your code here\n```",
    "one line of code": "print(1)",
    "diff only": "```diff\n-print(1)\n+print(2)\n```",
    "diff that says Python": "```python\n--- a/main.py\n+++ b/main.py\n@@ -1 +1 @@\n-x\n+y\n```",
    "program in the thinking only": f"<think>\n{FENCED}</think>\nI cannot do it.",
    "program in thinking that never ends": f"<think>\nimport os\n{FENCED}",
    "bare code in thinking that never ends": f"<think>\n{OK}",
    "draft before only the closing tag": f"```python\n{DRAFT}```\n</think>\nI cannot do it.",
    "open draft before only the closing tag": "```python\nimport os\nfor (\n</think>\nI cannot do it.",
    "unending thinking that names its tag": f"<think>\nre.sub('</think>', '')\n```python\n{DRAFT}```\nHm.",
    "text that shows another block": f"~~~text\n~~~bash\n{OK}~~~\n",
    "text with shorter fences": f"````text\n```\n{OK}```\n````\n",
    "thinking with an attribute that never ends": f'<think time="3">\n{FENCED}',
    "thinking in square brackets that never ends": f"[THINK]\n{FENCED}",
    "thinking in triangles that never ends": f"\u25c1think\u25b7\n{FENCED}",
    "thought in tokens that never ends": f"<|begin_of_thought|>\n{FENCED}",
    "a channel of analysis alone": f"<|channel|>analysis<|message|>Hm.\n{FENCED}",
    "thinking alone in JSON": json.dumps({"content": f"<think>\n{FENCED}"}),
    "JSON of prose": json.dumps({"plan": "First load.\nThen fit.\nimport what you need"}),
    "imports in prose": "Write:\n\nimport pandas as pd\nimport numpy as np\n\nThen fit a model.\n",
    "bare code that breaks off and goes on": "import os\nx = os.name\nfor x in y\n    print(x)\nprint(os)\n",
    "text that is code but writes nothing": f"```text\n{OK}```",
    "search and replace": "<<<<<<< SEARCH\nprint(1)\n=======\nprint(2)\n>>>>>>> REPLACE\n",
    "notebook without code": json.dumps(
        {"cells": [{"cell_type": "markdown", "source": ["import os\n", "x = os.name"]}]}
    ),
    "table": "| a | b |\n|---|---|\n| 1 | 2 |\n",
    "CSV block": "```\nid,target\n1,0.5\n2,0.7\n```",
}


@pytest.mark.parametrize("kind", NO_CODE)
def test_what_is_no_program_is_no_code(kind: str) -> None:
    with pytest.raises(ReplyError) as caught:
        parse_reply(NO_CODE[kind])
    assert caught.value.code == "no_code"


CUT = {
    "in the only block": "Plan.\n```python\nimport os\nprint(os.environ[",
    "in the only block, before any import": "Plan.\n```python\nframe = load(",
    "right after the fence": "Plan.\n```python\n",
    "in the final block, after an older one": f"Old:\n```python\n{DRAFT}```\nFinal:\n```python\nimport os\nprint(os.en",
    "in an untagged block": "Plan.\n```\nimport os\nprint(os.environ[",
}


@pytest.mark.parametrize("kind", CUT)
def test_a_reply_that_ends_within_its_program_is_truncated(kind: str) -> None:
    for truncated in (False, True):
        with pytest.raises(ReplyError) as caught:
            parse_reply(CUT[kind], truncated=truncated)
        assert caught.value.code == "truncated_reply"


@pytest.mark.parametrize(
    "reply",
    [
        "Plan: first I",
        "<think>hm",
        OK,
        f"Plan.\n```python\n{OK}",
        f"{FENCED}Better:\n```python\n{OK}",
        "```\nimport os",
    ],
)
def test_at_the_token_limit_nothing_that_is_open_counts(reply: str) -> None:
    with pytest.raises(ReplyError) as caught:
        parse_reply(reply, truncated=True)
    assert caught.value.code == "truncated_reply"


@pytest.mark.parametrize(
    "rest", ["It trains a mod", "```bash\npython ma", "```\nOK_M", "<think>\n```python\nimport os", "```text\nimport x"]
)
def test_a_complete_program_survives_what_is_cut_after_it(rest: str) -> None:
    assert parse_reply(f"{FENCED}{rest}", truncated=True).source == OK


def test_a_block_quote_that_ends_closes_its_block() -> None:
    assert parse_reply("> ```python\n" + indented(OK, "> ") + "\nDone.", truncated=True).source == OK


def test_an_open_example_after_a_complete_program_changes_nothing() -> None:
    assert parse_reply(f"{FENCED}For instance:\n```python\npd.read_csv(").source == OK


def test_a_block_that_does_not_parse_is_kept_with_its_error() -> None:
    program = parse_reply("Plan.\n```python\nimport os\nprint(\n```\nDone.")
    assert program.source == "import os\nprint(\n"
    assert program.syntax_error == "line 2: '(' was never closed"


def test_a_reply_that_is_all_code_is_kept_when_it_does_not_parse() -> None:
    source = SCRIPT.replace("> 1:", "> 1")
    program = parse_reply(source)
    assert program.source == source
    assert program.syntax_error == "line 3: expected ':'"


def test_the_last_block_is_final_even_when_it_does_not_parse() -> None:
    program = parse_reply(f"Old:\n```python\n{DRAFT}```\nFinal:\n```python\nimport os\nprint(os\n```")
    assert program.source == "import os\nprint(os\n"
    assert program.syntax_error is not None


def test_a_broken_program_with_a_fence_in_its_docstring_is_kept_whole() -> None:
    source = f"{NESTED}print(1))\n"
    assert parse_reply(f"```python\n{source}```").source == source


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("x = 'a\0b'\nprint(x)\n", "null bytes"),
        ("x = " + "-" * 50_000 + "1\n", "Error"),
        ("x = a" + ".a" * 50_000 + "\n", "RecursionError"),
        ("x = " + "1" * 5000 + "\n", "line 1: Exceeds the limit"),
    ],
)
def test_source_that_breaks_the_parser_has_a_syntax_error(source: str, words: str) -> None:
    program = parse_reply(f"```python\n{source}```")
    assert program.source == source
    assert words in (program.syntax_error or "")


def test_the_plan_is_the_prose_without_thinking_and_without_code() -> None:
    reply = f"Secret.</think><think>secret</think>\nFirst load.\n\n```python\n{OK}```\n\nThen:\n```bash\nrun\n```\n<answer>\nDone.\n</answer>"
    plan = parse_reply(reply).plan
    assert plan.split() == ["First", "load.", "Then:", "Done."]


def test_the_plan_of_bare_code_is_what_stands_before_it() -> None:
    assert parse_reply(f"Here is the program:\n\n{OK}") == Program(source=OK, plan="Here is the program:")


def test_a_program_is_named_by_the_hash_of_its_source() -> None:
    program = parse_reply(FENCED)
    assert program.program_id == hashlib.sha256(OK.encode()).hexdigest()[:16] == program_id(OK)
    assert program_id("x") == "2d711642b726b044"


def test_blank_lines_around_a_program_do_not_change_its_identity() -> None:
    assert parse_reply(f"```python\n\n  \n{OK}\n\n```").program_id == program_id(OK)


HOSTILE = {
    "backticks": "`" * 1_000_000,
    "lines of backticks": "```\n" * 75_000,
    "opening fences": "```python\n" * 30_000,
    "shrinking fences": "".join("`" * n + "python\n</think>\n" for n in range(770, 3, -1)),
    "shrinking bare fences": "".join("`" * n + "\n" for n in range(770, 3, -1)),
    "open strings": '```python\n"""\n```\n' * 18_000,
    "escaped open strings": "```python\n\\'''\n```\n" * 16_500,
    "thinking": "<think>" * 42_000,
    "thinking in a line of prose": "a " + "<think>" * 42_000,
    "closed thinking": "<think></think>" * 19_800,
    "closing tags": "</think>" * 37_500,
    "quotes": "'" * 300_000,
    "quoted tags": "`<think>` " * 30_000,
    "block quote marks": ">" * 300_000 + "```",
    "deep block quotes": "".join(">" * n + " ```\n" for n in range(1, 770)),
    "spaces": " " * 300_000 + "```",
    "dots in an info string": "```" + "." * 300_000,
    "elements": "<code>" * 48_000,
    "blank lines": "```python\n" + "\n" * 300_000 + "\n```",
    "list marks": "- " * 150_000 + "```",
    "backslash-n": "\\n" * 150_000,
    "brackets": "(" * 300_000,
    "tildes and backticks": "~~~python\n```python\n" * 15_000,
    "JSON": json.dumps({"a": ["x\ny"] * 50_000}),
    "open JSON": '{"a":\n' * 50_000,
    "nested JSON": "[\n[" * 80_000,
    "broken bare code": "import os\n" + "x = os.name\ny z\n" * 20_000,
    "end tokens": "</s>" * 75_000,
    "numbered lines": "".join(f"{n}: (\n" for n in range(40_000)),
    "magics": "```python\n" + "!ls (\n" * 40_000,
    "unclosed shell": "```bash\n</think>\n" * 18_000,
}


def read(reply: str, *, truncated: bool = False) -> Program | None:
    try:
        return parse_reply(reply, truncated=truncated)
    except ReplyError:
        return None


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_reply_is_read_quickly(kind: str) -> None:
    started = time.process_time()
    read(HOSTILE[kind])
    assert time.process_time() - started < 30, "a linear reading takes a second, a quadratic one minutes"


@given(st.text(alphabet="`~>-# \n\t\r\\'\"\ufeff\u00a0<>/thinkpyo:=()1.\0\ud800", max_size=300), st.booleans())
@settings(deadline=None, max_examples=200)
def test_no_text_raises_anything_but_a_reply_error(text: str, truncated: bool) -> None:
    program = read(text, truncated=truncated)
    assert program is None or program.source.strip()


@given(
    st.lists(
        st.sampled_from(
            [
                "```",
                "```python",
                "~~~",
                "<think>",
                "</think>",
                '"""',
                "'''",
                "import os",
                "print(os)",
                "> ```py",
                "x = (",
                "",
            ]
        ),
        max_size=14,
    )
)
@settings(deadline=None, max_examples=200)
def test_no_order_of_pieces_raises_anything_but_a_reply_error(pieces: list[str]) -> None:
    read("\n".join(pieces))


LINES = st.sampled_from(
    [
        "x = 1",
        "print('```')",
        "y = '<think>' + \"</think>\"",
        "# a comment with ``` and <think> and </think>",
        "if x:\n    print(x)",
        "def f(a):\n    '''Doc.\n\n    ```python\n    f(1)\n    ```\n    '''\n    return a",
        'TEXT = """\n```\nfenced\n```\n~~~\n> quoted\n"""',
        "TAGS = '''\n<think>\nno\n</think>\n'''",
        'path = r"C:\\dir"',
        "z = f'{x}\\n'",
        "",
        "    # an indented comment",
        "é = 'ü\u00a0\u200b'",
    ]
)
PROGRAMS = st.lists(LINES, min_size=1, max_size=8).map(
    lambda lines: "\n".join(["import os", *lines, "print(os.name)"]) + "\n"
)


def fenced(source: str, fence: str, tag: str) -> str:
    return f"{fence}{tag}\n{source}{fence}\n"


def quoted(text: str) -> str:
    return "".join(f"> {line}\n" for line in text.splitlines())


WRAPPINGS = {
    "backticks": lambda source: fenced(source, "```", "python"),
    "untagged": lambda source: fenced(source, "```", ""),
    "long": lambda source: fenced(source, "`````", "py"),
    "tildes": lambda source: fenced(source, "~~~~~", "Python3"),
    "list": lambda source: (
        "1. Run:\n" + "".join(f"   {line}\n" for line in fenced(source, "```", "python").splitlines())
    ),
    "quote": lambda source: quoted(fenced(source, "```", "python")),
    "thinking": lambda source: f"<think>\n{fenced('print(0)', '```', 'python')}</think>\n{fenced(source, '```', 'py')}",
    "lone closing tag": lambda source: f"hm\n</think>\n{fenced(source, '```', '{python}')}",
    "draft first": lambda source: f"{fenced('print(0)', '```', 'python')}\nFinal:\n{fenced(source, '```', 'python')}",
    "shell after": lambda source: f"{fenced(source, '```', 'python')}\n{fenced('ls', '```', 'sh')}",
    "carriage returns": lambda source: fenced(source, "```", "python").replace("\n", "\r\n"),
    "unclosed": lambda source: f"```python\n{source}",
    "bare": lambda source: source,
    "answer": lambda source: f"<answer>\n{fenced(source, '```', 'python')}</answer>",
}


@given(PROGRAMS, st.sampled_from(sorted(WRAPPINGS)))
@settings(deadline=None, max_examples=200)
def test_a_program_comes_back_exactly_from_every_wrapping(source: str, wrapping: str) -> None:
    reply = WRAPPINGS[wrapping](source)
    if wrapping not in ("bare",):
        reply = f"My plan is simple.\n\n{reply}"
    assert parse_reply(reply).source == source
