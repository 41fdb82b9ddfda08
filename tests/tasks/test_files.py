"""The user's own data and verifier: every format, splits by content, and errors that name file, line and key."""

import json
import re
import textwrap
from pathlib import Path

import polars as pl
import pytest

from scalerl.errors import InputError, VerifierError
from scalerl.tasks import Guard, build_task
from scalerl.tasks.files import FileTask
from scalerl.tasks.rows import rows, value
from scalerl.types import Prompt


class Characters:
    """A tokenizer of characters, with or without a chat template."""

    eos_token_id = 0

    def __init__(self, chat_template: str | None = None, ends: bool = False) -> None:
        self.chat_template, self.ends = chat_template, ends

    def __call__(self, text, *, add_special_tokens):
        end = [0] if self.ends and add_special_tokens else []
        return {"input_ids": [[ord(c) for c in t] + end for t in text]}

    def apply_chat_template(self, conversation, *, tokenize, add_generation_prompt):
        assert add_generation_prompt
        assert not tokenize
        return "".join(f"[{m['role']}]{m['content']}" for m in conversation) + self.chat_template

    def decode(self, token_ids, *, skip_special_tokens):
        return "".join(chr(t) for t in token_ids if t)


ROWS = [{"prompt": f"{i} + {i}?", "answer": 2 * i} for i in range(100)]
PLAIN = Characters()


def written(path: Path, found: list[dict]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in found))
    return path


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return written(tmp_path / "sums.jsonl", ROWS)


def every_prompt(task: FileTask) -> list[Prompt]:
    return [*task.prompts("train"), *task.prompts("held-out")]


def test_a_file_becomes_prompts_in_two_splits(data: Path) -> None:
    task = build_task({"name": "file", "path": "sums.jsonl", "verifier": "numeric"}, PLAIN, data.parent)
    train, held = task.prompts("train"), task.prompts("held-out")
    assert len(train) + len(held) == 100
    assert len(held) == 10
    assert not {p.prompt_id for p in train} & {p.prompt_id for p in held}
    first = train[0]
    assert (first.task, first.answer, first.text) == ("sums", int(first.text.split()[0]) * 2, first.text)
    assert PLAIN.decode(first.token_ids, skip_special_tokens=True) == first.text
    assert task.verify(first, f"<think>hm 999</think>It is {first.answer}.") == 1.0
    assert task.verify(first, f"<think>It is {first.answer}.") == 0.0


def held(path: Path, **options) -> set[str]:
    return {p.text for p in FileTask(str(path), tokenizer=PLAIN, **options).prompts("held-out")}


@pytest.mark.parametrize(("count", "share", "expected"), [(100, 0.1, 10), (10, 0.2, 2), (3, 0.01, 1), (4, 0.99, 3)])
def test_the_held_out_share_is_exact(tmp_path: Path, count: int, share: float, expected: int) -> None:
    assert len(held(written(tmp_path / "d.jsonl", ROWS[:count]), held_out=share)) == expected


def test_order_moves_nothing_between_the_splits_and_rows_added_only_what_is_at_the_border(data: Path) -> None:
    before = held(data)
    assert held(written(data, ROWS[::-1])) == before
    more = held(written(data, [{"prompt": f"new {i}", "answer": i} for i in range(100)] + ROWS))
    assert len(more) == 20
    old = {row["prompt"] for row in ROWS} & more
    assert old <= before or before <= old  # a threshold has moved, nothing was drawn anew


def test_one_question_with_two_answers_stays_on_one_side(tmp_path: Path) -> None:
    twice = [row | {"answer": row["answer"] + k} for row in ROWS for k in (0, 1)]
    task = FileTask(str(written(tmp_path / "d.jsonl", twice)), tokenizer=PLAIN)
    assert not {p.text for p in task.prompts("train")} & {p.text for p in task.prompts("held-out")}
    assert len(every_prompt(task)) == 200


def test_repeated_and_overlong_rows_are_left_out_and_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = written(tmp_path / "d.jsonl", [*ROWS, *ROWS[:7], {"prompt": "x" * 50, "answer": 1}])
    assert len(every_prompt(FileTask(str(path), tokenizer=PLAIN, max_prompt_tokens=20))) == 100
    assert "of 108 rows, 1 have more than 20 prompt tokens and 7 repeat another" in caplog.text


def test_held_out_prompts_of_their_own_are_kept_out_of_training(data: Path) -> None:
    other = written(data.parent / "test.jsonl", ROWS[:10])
    task = FileTask(str(data), tokenizer=PLAIN, held_out_path=str(other))
    assert [p.text for p in task.prompts("held-out")] == [r["prompt"] for r in ROWS[:10]]
    assert [p.text for p in task.prompts("train")] == [r["prompt"] for r in ROWS[10:]]


def test_every_format_holds_the_same_rows(tmp_path: Path) -> None:
    table = pl.DataFrame(ROWS)
    table.write_parquet(tmp_path / "d.parquet")
    saved = tmp_path / "saved"  # as `Dataset.save_to_disk` leaves it: two shards in the streaming format
    saved.mkdir()
    table[:60].write_ipc_stream(saved / "data-00000-of-00002.arrow")
    table[60:].write_ipc_stream(saved / "data-00001-of-00002.arrow")
    shards = [{"filename": f"data-0000{i}-of-00002.arrow"} for i in (0, 1)]
    (saved / "state.json").write_text(json.dumps({"_data_files": shards}))
    both = tmp_path / "both"
    both.mkdir()
    (both / "dataset_dict.json").write_text(json.dumps({"splits": ["train", "test"]}))
    saved.rename(both / "train")
    hub = tmp_path / "hub" / "data"
    hub.mkdir(parents=True)
    table.write_parquet(hub / "train-00000-of-00001.parquet")
    table[:5].write_parquet(hub / "test-00000-of-00001.parquet")
    for path in (tmp_path / "d.parquet", both, both / "train", tmp_path / "hub"):
        assert [dict(row) for _, row in rows(path)] == ROWS, path
    assert len(list(rows(tmp_path / "hub", "test"))) == 5
    with pytest.raises(InputError, match='no split "tset": did you mean "test"'):
        list(rows(both, "tset"))


def test_nested_columns_chat_messages_and_templates(tmp_path: Path) -> None:
    row = {
        "prompt": [{"role": "user", "content": "1+1?"}],
        "reward_model": {"ground_truth": "2"},
    }
    asked = [{"role": "user", "content": f"{i}+1?"} for i in range(60)]
    path = written(tmp_path / "d.jsonl", [row | {"prompt": [message]} for message in asked])
    task = FileTask(
        str(path), tokenizer=Characters("[assistant]<think>\n"), answer="reward_model.ground_truth", system="Be brief."
    )
    prompt = next(p for p in every_prompt(task) if p.text == "1+1?")
    assert "".join(map(chr, prompt.token_ids)) == "[system]Be brief.[user]1+1?[assistant]<think>\n"
    assert task.verify(prompt, "so</think>2") == 1.0
    assert task.verify(prompt, "2") == 0.0  # the template opened the thought
    plain = FileTask(
        str(written(tmp_path / "e.jsonl", ROWS)), tokenizer=Characters(ends=True), template="Q: {question}\nA:"
    )
    first = plain.prompts("train")[0]
    assert "".join(map(chr, first.token_ids)) == f"Q: {first.text}\nA:"  # and no end token behind it


VERIFIER = '''
"""Twenty lines of the user's."""
import os, time

calls = 0

def close_enough(prompt, completion, answer):
    global calls
    calls += 1
    if "hang" in completion:
        time.sleep(60)
    if "raise" in completion:
        raise KeyError("mine")
    if "nothing" in completion:
        return None
    if "text" in completion:
        return "1.0"
    if "nan" in completion:
        return float("nan")
    if "exit" in completion:
        raise SystemExit(1)
    return 1.0 / (1 + abs(int(completion) - answer)) if prompt.endswith("?") else 0

def two(prompt, completion):
    return 0
'''


@pytest.mark.parametrize("target", ["my_verifier_{}:close_enough", "my_verifier_{}.py:close_enough"])
@pytest.mark.parametrize("isolated", [True, False])
def test_the_users_verifier_by_import_path(
    data: Path, target: str, isolated: bool, caplog: pytest.LogCaptureFixture
) -> None:
    module = f"{isolated}{target.count('py')}"
    (data.parent / f"my_verifier_{module}.py").write_text(textwrap.dedent(VERIFIER))
    options = {"isolated": isolated, "seconds": 0.5}
    settings = {"name": "file", "path": str(data), "verifier": target.format(module), "verifier_options": options}
    task = build_task(settings, PLAIN)
    guard = Guard(task)
    prompt = task.prompts("train")[0]
    assert guard.verify(prompt, f"<think>no</think>{prompt.answer}") == 1.0
    assert guard.verify(prompt, f"{prompt.answer + 1}") == 0.5
    bad = ["raise", "nothing", "text", "nan", "exit", "no number", *(["hang"] if isolated else [])]
    assert [guard.verify(prompt, text) for text in bad] == [None] * len(bad)
    counts = guard.counts()
    assert counts["verified/sums"] == 2
    assert counts["excluded/sums"] == len(bad)
    assert "excluded and counted" in caplog.text
    assert re.search(rf"task sums, verifier {target.format(module)}, \S+sums.jsonl, line \d+, on prompt '", caplog.text)
    assert "it returned None" in caplog.text
    task.close()


@pytest.mark.parametrize(
    ("verifier", "reason"),
    [
        ("mine:close_enuf", 'mine has no function close_enuf: did you mean "close_enough"'),
        ("mine:xyz", "has no function xyz: known: close_enough, two"),  # neither __doc__ nor os
        ("mine:two", "TypeError: too many positional arguments"),
        ("main.py:close_enough", "no file main.py in "),
        ("mein:close_enough", "No module named 'mein'"),
        ("mine:calls", "calls is no function"),
    ],
)
def test_a_verifier_that_cannot_be_used_is_refused(data: Path, verifier: str, reason: str) -> None:
    (data.parent / "mine.py").write_text(VERIFIER)
    with pytest.raises(InputError, match=reason):
        FileTask(str(data), tokenizer=PLAIN, verifier=verifier)


@pytest.mark.parametrize(
    ("line", "options", "message"),
    [
        ("{oops", {}, r"d.jsonl, line 3: not JSON .*mend or remove the line"),
        ("[1]", {}, "line 3: a list; every line must be an object"),
        ('{"prompt": "x", "anwser": 1}', {}, 'line 3: no key "answer": did you mean "anwser"'),
        ('{"prompt": 5, "answer": 1}', {}, 'line 3, key "prompt": .5. is neither text nor a list of messages'),
        ('{"prompt": " ", "answer": 1}', {}, 'line 3, key "prompt": the prompt is empty; write one'),
        ('{"prompt": [], "answer": 1}', {}, 'line 3, key "prompt": the prompt is empty; write one'),
        ('{"prompt": [{"role": "user"}], "answer": 1}', {}, 'line 3, key "prompt"'),
        ('{"prompt": "\\ud800", "answer": 1}', {}, 'line 3, key "prompt": half of a surrogate pair'),
        ('{"prompt": "x", "answer": null}', {}, 'line 3, key "answer": .None. is empty'),
        ('{"prompt": "x", "answer": "many"}', {"verifier": "numeric"}, 'line 3, key "answer": .many.* is no number'),
        ('{"prompt": "x", "answer": "AB"}', {"verifier": "choice"}, 'key "answer": .* is no single letter'),
    ],
)
def test_errors_name_file_line_and_key(tmp_path: Path, line: str, options: dict, message: str) -> None:
    path = tmp_path / "d.jsonl"
    good = (
        '{"prompt": "a", "answer": "1"}\n'
        if options.get("verifier") != "choice"
        else '{"prompt": "a", "answer": "A"}\n'
    )
    path.write_text(f"{good}\n{line}\n")
    with pytest.raises(InputError, match=message):
        FileTask(str(path), tokenizer=PLAIN, **options)


@pytest.mark.parametrize(
    ("row", "options", "message"),
    [
        ({"prompt": "what is 2+3?"}, {}, "line 2, key \"prompt\": .* has no 'w' 'h' 'a' 't' 'i' 's' '\\?' and"),
        ({"prompt": "2\n3"}, {}, "has no '\\\\n' and would read <unk>; the small model's has only '0123456789"),
        ({"prompt": [{"role": "user", "content": "2×3="}]}, {}, "line 2.* has no '×' and"),
        ({"answer": "5.0"}, {}, "line 2, key \"answer\": .* has no '.' and"),
        ({}, {"template": "{question}?"}, "line 1, .* has no '\\?' and"),
    ],
)
def test_characters_that_the_tokenizer_lacks_are_named(tmp_path: Path, row: dict, options: dict, message: str) -> None:
    pytest.importorskip("transformers")
    from scalerl.tasks.tokenizer import small_tokenizer

    known = {"prompt": "(2)*3-1 = ", "answer": 5}
    path = written(tmp_path / "d.jsonl", [known, {"prompt": "2+3=", "answer": "5"} | row])
    with pytest.raises(InputError, match=message):
        FileTask(str(path), tokenizer=small_tokenizer(), **options)


def test_what_a_verifier_of_ones_own_compares_with_need_not_be_spelt(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    from scalerl.tasks.tokenizer import small_tokenizer

    path = written(tmp_path / "d.jsonl", [{"prompt": f"{i}+3=", "answer": "odd"} for i in range(10)])
    (tmp_path / "parity.py").write_text("def verify(prompt, completion, answer):\n    return 1.0\n")
    assert FileTask(str(path), tokenizer=small_tokenizer(), verifier="parity.py:verify").prompts("train")
    with pytest.raises(InputError, match="has no 'o' 'd' and"):
        FileTask(str(path), tokenizer=small_tokenizer())


def test_unusable_files_and_settings(tmp_path: Path, data: Path) -> None:
    (tmp_path / "d.txt").write_text("x")
    (tmp_path / "broken.parquet").write_text("PAR1 but no more")
    (tmp_path / "latin.jsonl").write_bytes(b'{"prompt": "\xe9"}\n')
    (tmp_path / "empty").mkdir()
    for name, message in {
        "sum.jsonl": 'no such file or folder; did you mean "sums.jsonl"',
        "d.txt": "a task's data is JSON Lines",
        "broken.parquet": "cannot be read as parquet",
        "latin.jsonl": "line 1: not UTF-8",
        "empty": "holds no data",
    }.items():
        with pytest.raises(InputError, match=message):
            FileTask(str(tmp_path / name), tokenizer=PLAIN)
    with pytest.raises(InputError, match=r"held_out 1\.5 is no share"):
        FileTask(str(data), tokenizer=PLAIN, held_out=1.5)
    one = str(written(tmp_path / "one.jsonl", [{"prompt": "seven", "answer": 1}]))
    for options, message in (
        ({}, "no train prompts among 1 that can be used; add rows, or give held_out_path"),
        ({"max_prompt_tokens": 4}, "no held-out prompts .*1 have more than 4 tokens: raise recipe.prompt_tokens"),
        ({"held_out_path": one}, "no train prompts among 1 that can be used: all of them are held out too"),
    ):
        with pytest.raises(InputError, match=message):
            FileTask(one, tokenizer=PLAIN, **options)
    with pytest.raises(InputError, match="no held-out prompts in it; add rows"):
        FileTask(str(written(tmp_path / "none.jsonl", [])), tokenizer=PLAIN)
    with pytest.raises(InputError, match=r'"{question}": put it where'):
        FileTask(str(data), tokenizer=PLAIN, template="Q:")
    with pytest.raises(InputError, match="no chat template"):
        FileTask(str(data), tokenizer=PLAIN, system="x")


def test_a_byte_order_mark_and_windows_line_ends_are_read(tmp_path: Path) -> None:
    path = tmp_path / "d.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"prompt": "a", "answer": 1}\r\n\r\n{"prompt": "b", "answer": 2}\r\n')
    assert [value(row, "answer") for row in rows(path)] == [1, 2]
    assert [place.rpartition(", ")[2] for place, _ in rows(path)] == ["line 1", "line 3"]


def test_maths_from_a_file(data: Path) -> None:
    pytest.importorskip("math_verify")
    task = build_task({"name": "maths", "path": str(data), "label": "sums", "answer": "answer"}, PLAIN)
    prompt = task.prompts("train")[1]
    assert task.verify(prompt, rf"\boxed{{\frac{{{2 * prompt.answer}}}{{2}}}}") == 1.0
    assert task.verify(prompt, rf"<think>\boxed{{{prompt.answer}}}") == 0.0
    with pytest.raises(VerifierError, match=r"^even the reference"):
        task.verify(Prompt((), "x", "sums", "no idea at all"), "1")
    task.close()
