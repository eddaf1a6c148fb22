"""``fugu judge``: figures equal to counting by hand, a table, JSON, and wrong calls."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from fugu.cli.main import main
from fugu.coding import builtin
from fugu.coding.sandbox import Outcome, Sandbox, SandboxConfig
from fugu.coding.task import write_tasks
from fugu.errors import SandboxError

RIGHT = {"one": "    return x + 1\n", "two": "    return sorted(x)\n", "three": "    return x or None\n"}
WRONG = ["    return x\n", "    return 1 / 0\n", "    retrun x\n", "    while True: pass\n"]
CHECKS = {
    "one": "    assert candidate(1) == 2\n    assert candidate(-1) == 0\n",
    "two": "    for n in range(3):\n        assert candidate([2, n]) == [min(2, n), max(2, n)]\n    assert candidate([]) == []\n",
    "three": "    assert candidate('') is None\n    assert candidate('a') == 'a'\n    assert candidate('b') == 'b'\n",
}
HAND = {"one": [1, 0, 1, 0, 0, 1], "two": [0, 0, 0, 0, 0, 0], "three": [1, 1, 1, 1, 1, 0]}
"""which completion of which task is right"""


@pytest.fixture(scope="module")
def isolation() -> list[str]:
    """Options with which this machine can run programs."""
    try:
        Sandbox(SandboxConfig(workers=1)).close()
        return []
    except SandboxError:
        return ["--backend", "subprocess", "--min-level", "0"]


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    """In the format of HumanEval."""
    tasks = [
        {
            "task_id": name,
            "prompt": f'def {name}_f(x):\n    """{name}"""\n',
            "entry_point": f"{name}_f",
            "test": f"def check(candidate):\n{check}",
        }
        for name, check in CHECKS.items()
    ]
    wrong = itertools.cycle(WRONG[:3])
    lines = [
        {"task_id": name, "completion": RIGHT[name] if right else next(wrong)}
        for column in zip(*HAND.values(), strict=True)
        for name, right in zip(HAND, column, strict=True)
    ]
    return _written(tmp_path / "tasks.jsonl", tasks), _written(tmp_path / "completions.jsonl", lines)


def _written(path: Path, lines: list[dict]) -> str:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


def by_hand(k: int) -> float:
    """Over all ways to draw k completions of a task: the share with a right one; the mean over tasks."""
    shares = []
    for right in HAND.values():
        draws = list(itertools.combinations(right, k))
        shares.append(sum(map(any, draws)) / len(draws))
    return sum(shares) / len(shares)


def test_pass_at_k_is_that_of_counting_by_hand(
    files: tuple[str, str], isolation: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.json"
    assert main(["judge", *files, "--k", "1,2,5", "--workers", "2", "--json", str(out), *isolation]) == 0
    text = capsys.readouterr().out
    report = json.loads(out.read_text())
    assert report["pass_at"] == pytest.approx({str(k): by_hand(k) for k in (1, 2, 5)})
    for k in (1, 2, 5):
        assert f"pass@{k}          {by_hand(k):.4f}" in text
    for name, right in HAND.items():
        of = report["results"][name]
        assert [each["status"] == "ok" for each in of["completions"]] == [bool(each) for each in right]
        assert (of["tries"], of["passed"], of["unscored"]) == (6, sum(right), 0)
        assert f"{sum(right)}/6" in text
    assert report["statuses"]["ok"] == 8 and sum(report["statuses"].values()) == 18
    assert "one" in text and "SyntaxError" in json.dumps(report)
    lines = [each["line"] for each in report["results"]["two"]["completions"]]
    assert lines == [2, 5, 8, 11, 14, 17]


def test_our_own_tasks_and_json_on_standard_output(
    isolation: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tasks = builtin.make_many(50, 2)
    write_tasks(tmp_path / "tasks.jsonl", tasks)
    lines = [{"task_id": task.id, "completion": task.solution} for task in tasks]
    files = [str(tmp_path / "tasks.jsonl"), _written(tmp_path / "c.jsonl", lines)]
    assert main(["judge", *files, "--share-process", "--json", "-", *isolation]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["pass_at"] == {"1": 1.0} and report["statuses"] == {"ok": 50}
    assert main(["judge", *files, "--share-process", *isolation]) == 0
    text = capsys.readouterr().out
    assert "--json FILE writes the results of all 50 tasks" in text and tasks[0].id not in text


def test_completions_that_the_sandbox_failed_on_are_in_no_figure(
    files: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Failing:
        """Fails every third time, and says that everything else is right."""

        def __init__(self, config: SandboxConfig) -> None:
            self.open: list[int] = []
            self.count = 0

        def __enter__(self) -> Failing:
            return self

        def __exit__(self, *error: object) -> None:
            pass

        def submit(self, program: object) -> int:
            self.count += 1
            self.open.append(self.count)
            return self.count

        def collect(self, timeout: float | None) -> list[tuple[int, Outcome]]:
            done, self.open = self.open, []
            return [
                (k, Outcome(status="internal_error", detail="it broke") if k in self.broken else Outcome(status="ok"))
                for k in done
            ]

        broken = range(3, 99, 3)

    monkeypatch.setattr("fugu.cli.judge.Sandbox", Failing)
    tasks = _written(
        tmp_path / "t.jsonl",
        [{"id": f"t{k}", "prompt": "", "hidden": [{"style": "stdio", "stdin": "", "stdout": ""}]} for k in range(3)],
    )
    completions = _written(tmp_path / "c.jsonl", [{"task_id": f"t{k}", "completion": ""} for k in range(3)] * 2)
    assert main(["judge", tasks, completions, "--k", "1,2", "--json", "-"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["pass_at"] == {"1": 1.0, "2": 1.0} and report["left_out"] == {"1": 1, "2": 1}
    assert report["results"]["t2"]["unscored"] == 2 and report["statuses"] == {"ok": 4, "internal_error": 2}
    assert main(["judge", tasks, completions]) == 0
    assert "2 completions are not scored" in capsys.readouterr().out
    Failing.broken = range(99)
    assert main(["judge", tasks, completions]) == 1
    assert "no completion could be scored: hidden test 0: it broke" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["--k", "7"], 2, "pass@7 needs at least 7 completions of every task; 'one' has 6"),
        (["--k", "0"], 2, "--k 0 must be whole numbers from 1 on"),
        (["--k", "1,x"], 2, "must be whole numbers"),
        (["--format", "mbpp"], 1, "tasks.jsonl, line 1: needs the field 'test_list'"),
        (["--backend", "bubblewrp"], 2, ""),
        (["--allow", "seccmp"], 2, "Did you mean 'seccomp'"),
        (["--workers", "0"], 2, "workers=0 must be from 1 to 1024"),
    ],
)
def test_wrong_calls_say_what_is_wrong(
    files: tuple[str, str], arguments: list[str], code: int, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["judge", *files, *arguments]) == code
    assert says in capsys.readouterr().err.replace("\n", " ")


def test_wrong_files_are_named_with_their_line(
    files: tuple[str, str], tmp_path: Path, isolation: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    tasks, completions = files
    text = Path(completions).read_text()
    for content, code, says in [
        ('{"task_id": "ones", "completion": ""}\n', 1, "line 1: there is no task 'ones'. Did you mean 'one'"),
        (text + "{", 1, "line 19: not JSON"),
        ("", 1, "has no completions"),
        ('{"task_id": "one", "completion": ""}\n', 2, "has no completion for 2 of 3 tasks, the first is 'two'; --partial"),
    ]:
        Path(completions).write_text(content)
        assert main(["judge", tasks, completions]) == code
        assert says in capsys.readouterr().err.replace("\n", " ")
    Path(completions).write_text(json.dumps({"task_id": "one", "completion": RIGHT["one"]}))
    assert main(["judge", tasks, completions, "--partial", *isolation]) == 0
    assert "pass@1          1.0000" in capsys.readouterr().out
    assert main(["judge", tasks, str(tmp_path / "none.jsonl")]) == 1
    assert "cannot be read: No such file" in capsys.readouterr().err.replace("\n", " ")
    assert main(["judge", tasks, completions, "--partial", "--json", str(tmp_path / "no" / "out.json"), *isolation]) == 1
    assert "cannot be written" in capsys.readouterr().err


def test_new_tasks_are_written_with_completions_that_solve_them(
    tmp_path: Path, isolation: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["new", "tasks", "t.jsonl", "--count", "8", "--level", "3", "--held-out", "--completions", "c.jsonl"]) == 0
    out = capsys.readouterr().out
    assert "8 tasks of level 3 in t.jsonl" in out and "next: fugu judge t.jsonl c.jsonl" in out
    assert [json.loads(line)["id"] for line in Path("t.jsonl").read_text().splitlines()] == [
        task.id for task in builtin.make_many(8, 3, held_out=True)
    ]
    assert main(["judge", "t.jsonl", "c.jsonl", *isolation]) == 0
    assert "pass@1          1.0000" in capsys.readouterr().out
    for arguments, code, says in [
        (["t.jsonl"], 1, "t.jsonl exists; --force replaces it"),
        (["x.jsonl", "--level", "9"], 2, "level=9 must be one of 1, 2, 3"),
        (["x.jsonl", "--count", "0"], 2, "--count 0 must be at least 1"),
        (["x.jsonl", "--completions", "./x.jsonl"], 2, "--completions ./x.jsonl is where the tasks go; choose another file"),
        (["", "--completions", "x.jsonl"], 2, "FILE must be the name of a file; try tasks.jsonl"),
        (["no/x.jsonl"], 1, "cannot be written"),
    ]:
        assert main(["new", "tasks", *arguments]) == code
        assert says in capsys.readouterr().err.replace("\n", " ")
    assert not Path("x.jsonl").exists() and main(["new", "tasks", "t.jsonl", "--count", "1", "--force"]) == 0
