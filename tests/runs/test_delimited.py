"""CSV and its relatives: TRAPS 32 and 33, wide and long layouts, files as Excel and PowerShell leave them."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from log_samples import close, run_of, said, save

from scalerl.errors import InputError
from scalerl.runs import read_curve, read_run


def table(*rows: str) -> str:
    return "\n".join(rows) + "\n"


PLAIN = table("step,accuracy", *(f"{10 * i},{0.1 + i / 20:.3f}" for i in range(10)))


@pytest.mark.parametrize("delimiter", [",", "\t", ";", "|"])
def test_delimiters(tmp_path: Path, delimiter: str) -> None:
    curve = read_curve(save(tmp_path, PLAIN.replace(",", delimiter)))
    assert close(curve.compute, [10 * i for i in range(10)])
    assert close(curve.score, [0.1 + i / 20 for i in range(10)])
    assert curve.score_name == "accuracy"


def test_blanks_between_columns(tmp_path: Path) -> None:
    assert len(read_curve(save(tmp_path, PLAIN.replace(",", "   ")))) == 10


def test_trap_33_bom_and_crlf(tmp_path: Path) -> None:
    curve = read_curve(save(tmp_path, ("\ufeff" + PLAIN).replace("\n", "\r\n")))
    assert close(curve.compute[:2], [0, 10])


def test_utf16_as_powershell_writes_it(tmp_path: Path) -> None:
    for encoding in ("utf-16", "utf-16-le", "utf-16-be", "utf-32"):
        curve = read_curve(save(tmp_path, PLAIN.encode(encoding)))
        assert len(curve) == 10
        assert said(curve.notes, "UTF-", "converted")


def test_european_decimals(tmp_path: Path) -> None:
    curve = read_curve(save(tmp_path, table("step;accuracy", "0;0,25", "1;0,5", "2;0,75")))
    assert close(curve.score, [0.25, 0.5, 0.75])
    assert said(curve.notes, "decimal comma")


def test_percent_signs(tmp_path: Path) -> None:
    curve = read_curve(save(tmp_path, table("step,accuracy", "0,25%", "1,50 %", "2,0.75%")))
    assert close(curve.score, [0.25, 0.5, 0.0075])
    assert said(curve.notes, "percent sign")


def test_thousands_and_quotes(tmp_path: Path) -> None:
    curve = read_curve(save(tmp_path, table('"step","accuracy"', '"1,000","0.5"', '"2,000","0.6"')))
    assert close(curve.compute, [1000, 2000])


def test_comments_and_blank_lines(tmp_path: Path) -> None:
    assert len(read_curve(save(tmp_path, "# made by a script\n\n" + PLAIN.replace("\n", "\n\n")))) == 10


def test_no_header(tmp_path: Path) -> None:
    curve = read_curve(save(tmp_path, "1,0.2\n2,0.3\n3,0.4\n"))
    assert close(curve.compute, [1, 2, 3])
    assert said(curve.notes, "No header")


def test_trap_33_cut_in_the_middle_of_a_number(tmp_path: Path) -> None:
    for cut in ("100,0.6", "100,0.", "100,", "100"):
        curve = read_curve(save(tmp_path, PLAIN + cut))
        assert len(curve) == 10, cut
        assert said(curve.notes, "cut off"), cut


def test_whole_file_without_a_last_line_end(tmp_path: Path) -> None:
    curve = read_curve(save(tmp_path, PLAIN.rstrip("\n")))
    assert len(curve) == 10
    assert not said(curve.notes, "cut off")


def test_trap_33_nan_infinity_and_empty_cells(tmp_path: Path) -> None:
    curve = read_curve(save(tmp_path, table("step,acc", "1,0.2", "2,NaN", "3,", "4,inf", "5,N/A", "6,0.4")))
    assert close(curve.compute, [1, 6])
    assert said(curve.notes, "1 infinite value")
    assert said(curve.notes, "3 of 6 rows hold 'acc'") or said(curve.notes, "2 of 6 rows hold 'acc'")


def test_ragged_lines_cost_one_line_each(tmp_path: Path) -> None:
    curve = read_curve(save(tmp_path, table("step,acc,len", "1,0.2,9", "2,0.3", "3,0.4,9,8", "4,0.5,9", "5,0.6,9")))
    assert close(curve.compute, [1, 2, 3, 4, 5])
    assert said(curve.notes, "1 line", "too few")
    assert said(curve.notes, "1 line", "more cells")


def test_header_again_after_a_restart(tmp_path: Path) -> None:
    text = table("step,acc", "1,0.2", "2,0.3", "step,len,acc", "3,9,0.4", "4,9,0.5")
    curve = read_curve(save(tmp_path, text))
    assert close(curve.score, [0.2, 0.3, 0.4, 0.5])
    assert said(curve.notes, "further header")


def test_long_csv_of_many_runs_lists_them(tmp_path: Path) -> None:
    rows = [
        f"{name},{step},{step / 40 + shift}"
        for name, shift in (("dapo", 0.0), ("scalerl", 0.1))
        for step in range(0, 20, 2)
    ]
    path = save(tmp_path, table("condition,step,accuracy", *rows))
    with pytest.raises(InputError, match=r"holds 2 runs; choose one with --run: dapo, scalerl$"):
        read_curve(path)
    curve = read_curve(path, run="scalerl")
    assert curve.name == "scalerl"
    assert close(curve.score[0], 0.1)
    assert read_run(path).runs == ["dapo", "scalerl"]
    assert len(read_run(path, run="dapo").curve()) == 10


def test_unknown_run_names_the_nearest(tmp_path: Path) -> None:
    path = save(tmp_path, table("run,step,acc", "alpha,1,0.1", "alpha,2,0.2", "beta,1,0.1", "beta,2,0.2"))
    with pytest.raises(InputError, match=r"no run 'alpa'; did you mean 'alpha'\?; runs: alpha, beta"):
        read_curve(path, run="alpa")


def test_run_column_by_name_and_by_number(tmp_path: Path) -> None:
    text = table("lr,step,acc", "0.1,1,0.1", "0.1,2,0.2", "0.2,1,0.3", "0.2,2,0.4")
    path = save(tmp_path, text)
    assert read_run(path).runs == []
    assert read_run(path, run_column="lr").runs == ["0.1", "0.2"]
    assert close(read_curve(path, run="0.2", run_column="lr").score, [0.3, 0.4])
    with pytest.raises(InputError, match="no column 'rl' for --run-column"):
        read_run(path, run_column="rl")


def test_runs_by_two_columns(tmp_path: Path) -> None:
    rows = [f"{m},{s},{n},{n / 10}" for m in "ab" for s in (1, 2) for n in range(4)]
    assert run_of(tmp_path, table("model,seed,step,acc", *rows)).runs == ["a / 1", "a / 2", "b / 1", "b / 2"]


def test_a_resumed_run_with_two_ids_is_one_run(tmp_path: Path) -> None:
    rows = [f"{'x' if n < 5 else 'y'},{n},{n / 10}" for n in range(10)]
    assert len(read_curve(save(tmp_path, table("run_id,step,acc", *rows)))) == 10


WANDB = table(
    '"Step","run a - eval/acc","run a - eval/acc__MIN",'
    '"run a - eval/acc__MAX","b - x - eval/acc","b - x - eval/acc__MIN"',
    *(f'"{n}","{n / 50 if n % 2 else ""}","{n / 50 if n % 2 else ""}","","{n / 40}","{n / 40}"' for n in range(20)),
)


def test_trap_32_wide_wandb_export(tmp_path: Path) -> None:
    path = save(tmp_path, WANDB)
    with pytest.raises(InputError, match="run a, b - x"):
        read_curve(path)
    curve = read_curve(path, run="run a")
    assert (len(curve), curve.name, curve.score_name) == (10, "run a", "eval/acc")
    assert close(read_curve(path, run="b - x").score, [n / 40 for n in range(20)])


def test_trap_32_step_of_a_wandb_export_is_doubted(tmp_path: Path) -> None:
    assert said(read_curve(save(tmp_path, WANDB), run="run a").notes, "log calls")
    better = WANDB.replace('"Step"', '"train/global_step"')
    assert not said(read_curve(save(tmp_path, better), run="run a").notes, "log calls")


def test_wide_csv_of_runs_under_their_own_names(tmp_path: Path) -> None:
    path = save(tmp_path, table("step,baseline,ours", *(f"{n},{n / 40},{n / 30}" for n in range(20))))
    with pytest.raises(InputError, match="holds 2 runs; choose one with --run: baseline, ours"):
        read_curve(path)
    assert close(read_curve(path, run="ours").score[-1], 19 / 30)
    assert close(read_run(path, run="ours").curve().score[-1], 19 / 30)
    assert close(read_curve(path, y="baseline").score[-1], 19 / 40)


def test_a_row_a_value(tmp_path: Path) -> None:
    rows = [f"{n},{m},{v}" for n in range(5) for m, v in (("eval/acc", n / 10), ("loss", 1))]
    assert close(read_curve(save(tmp_path, table("step,metric,value", *rows))).score, [n / 10 for n in range(5)])


def test_tensorboard_csv_download(tmp_path: Path) -> None:
    curve = read_curve(save(tmp_path, table("Wall time,Step,Value", *(f"{1.7e9 + n},{n},{n / 50}" for n in range(20)))))
    assert (curve.unit, curve.score_name, len(curve)) == ("step", "Value", 20)


def test_split_column_prefers_held_out(tmp_path: Path) -> None:
    rows = [f"{s},{n},{n / d}" for n in range(8) for s, d in (("train", 10), ("val", 20))]
    curve = read_curve(save(tmp_path, table("split,step,accuracy", *rows)))
    assert curve.score_name == "val/accuracy"
    assert close(curve.score, [n / 20 for n in range(8)])


def test_markdown_table(tmp_path: Path) -> None:
    rows = [f"| {n} | 0.01 | {n / 40:.3f} |" for n in range(1, 20)]
    curve = read_curve(save(tmp_path, table("| Step | Training Loss | reward |", "|------|:---:|---|", *rows)))
    assert close(curve.compute, range(1, 20))
    assert curve.score_name == "reward"


def test_names_in_a_comment(tmp_path: Path) -> None:
    curve = read_curve(save(tmp_path, "# iteration pass_rate\n1 0.2\n2 0.3\n3 0.5\n"))
    assert curve.score_name == "pass_rate"


def test_steps_within_text(tmp_path: Path) -> None:
    for cell in ("checkpoint-{n}", "step_{n}", "{n}/500", "ckpts/step-{n}"):
        rows = [cell.format(n=n) + f",{n / 500}" for n in range(100, 500, 100)]
        curve = read_curve(save(tmp_path, table("checkpoint,accuracy", *rows)))
        assert close(curve.compute, [100, 200, 300, 400]), cell
        assert curve.unit == "step"


def test_names_only(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="column names but no rows"):
        read_run(save(tmp_path, "step,acc\n"))


def test_names_that_stand_twice(tmp_path: Path) -> None:
    log = run_of(tmp_path, table("step,acc,acc", "1,0.1,0.2", "2,0.2,0.3"))
    assert list(log.columns) == ["step", "acc", "acc.2"]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("columns", [4_000, 40_000])
def test_a_header_longer_than_the_head_is_read(tmp_path: Path, columns: int, end: str) -> None:
    names = [f"actor/layer_{i}/grad_norm" for i in range(columns)]
    rows = [f"{s},{s / 100}," + ",".join(["1"] * columns) for s in range(1, 4)]
    curve = read_curve(save(tmp_path, end.join(["step,val/acc," + ",".join(names), *rows, ""])))
    assert close(curve.score, [0.01, 0.02, 0.03])


def test_a_cell_longer_than_the_head_is_read(tmp_path: Path) -> None:
    long = "word " * 40_000
    curve = read_curve(save(tmp_path, "step,text,acc\n" + "".join(f'{n},"{long}",0.{n}\n' for n in range(1, 6))))
    assert close(curve.score, [0.1, 0.2, 0.3, 0.4, 0.5])


@pytest.mark.parametrize("name", ["actor/layer_{}/grad", "eval/task_{}/acc", "seed {}", "run-{} - acc"])
def test_thousands_of_columns_take_linear_time(tmp_path: Path, name: str) -> None:
    names = ",".join(name.format(i) for i in range(4_000))
    rows = "".join(f"{s}" + ",0.5" * 4_000 + "\n" for s in range(1, 11))
    path = save(tmp_path, f"step,{names}\n{rows}")
    started = time.process_time()
    read_run(path)
    assert time.process_time() - started < 4.0  # quadratic, it takes 40 s
