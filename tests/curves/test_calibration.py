"""Conformal multipliers: closed forms, and no curve calibrating itself."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from scalerl.curves.calibrate import BankCurve, calibrate
from scalerl.curves.calibration import (
    NO_CALIBRATION,
    REACHES,
    conformal_multipliers,
    fingerprint,
    load,
    save,
    shipped,
)
from scalerl.curves.synthetic import simulate
from scalerl.errors import InputError
from scalerl.runs import Curve


def test_the_quantile_is_the_conformal_one_where_all_reaches_are_equal() -> None:
    z = np.random.default_rng(0).permutation(np.arange(1, 20) / 10)  # 19 misses: .1 .. 1.9
    found = conformal_multipliers([(2.0, float(v)) for v in z], 0.9, (2.0,))
    assert found[0] == pytest.approx(1.8)  # ceil(.9 * (19 + 1)) = the 18th


def test_misses_far_away_in_reach_do_not_count() -> None:
    misses = [(1.5, 0.5)] * 50 + [(6.0, 3.0)] * 50
    near, far = conformal_multipliers(misses, 0.9, (1.5, 6.0))
    assert (near, far) == (0.5, 3.0)


def test_nothing_to_learn_from_is_an_error() -> None:
    with pytest.raises(InputError, match="at least 12 points"):
        conformal_multipliers([], 0.9)


@pytest.fixture(scope="module")
def bank() -> list[BankCurve]:
    rng = np.random.default_rng(5)
    return [BankCurve(f"lab {i % 3}", simulate("iid", rng, points=30).curve) for i in range(9)]


def test_a_bank_curve_gets_the_table_learnt_without_its_source(bank: list[BankCurve], tmp_path: Path) -> None:
    wild = Curve(np.arange(1.0, 31.0), np.where(np.arange(30) < 10, 0.2, 0.9) + 0.001 * np.arange(30))
    table = calibrate([*bank, BankCurve("wild", wild)])
    assert table.without["wild"].max() <= table.multipliers.max()
    assert table.source_of(wild.upto(12)) == "wild"
    factor = table.multiplier(wild.upto(15), np.array([30.0]))[0]
    assert factor == pytest.approx(table.without["wild"][REACHES.index(2.0)])
    save(table, tmp_path / "table.json")
    again = load(tmp_path / "table.json")
    assert np.allclose(again.multipliers, table.multipliers, atol=5e-4)
    assert again.fingerprints == table.fingerprints


def test_one_source_alone_is_refused(bank: list[BankCurve]) -> None:
    with pytest.raises(InputError, match="at least 2 sources"):
        calibrate([replace(entry, source="one") for entry in bank])


def test_the_same_run_twice_counts_once(bank: list[BankCurve]) -> None:
    assert calibrate([*bank, *bank]).provenance["curves"] == len(bank)


def test_the_fingerprint_knows_a_run_in_other_units_and_cut_short() -> None:
    curve = simulate("iid", np.random.default_rng(1)).curve
    other = Curve(curve.compute * 8.0, curve.score, unit="gpu-hour")
    assert fingerprint(curve) == fingerprint(other) == fingerprint(curve.upto(curve.compute[9]))


def test_a_file_that_is_no_table_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('{"multipliers": []}')
    with pytest.raises(InputError, match=r"x\.json: not a calibration table"):
        load(tmp_path / "x.json")


def test_the_shipped_table_is_measured_and_never_narrows() -> None:
    table = shipped()
    assert table.provenance["curves"] >= 50
    assert len(table.provenance["sources"]) >= 15
    assert (table.multipliers >= 1).all()
    assert all(0.85 <= table.measured[f"{r:g}"]["coverage"] <= 0.98 for r in REACHES)
    assert NO_CALIBRATION.multiplier(simulate("iid", np.random.default_rng(1)).curve, np.array([1e9])) == 1
