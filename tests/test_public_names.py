"""`scalerl.NAME` is the function or class of that name, whatever was imported before."""

from types import ModuleType

import pytest

import scalerl
import scalerl.curves.backtest
import scalerl.curves.compare
import scalerl.curves.fit
import scalerl.curves.forecast
import scalerl.curves.transfer


@pytest.mark.parametrize("name", scalerl.__all__)
def test_public_names_are_no_modules(name: str) -> None:
    assert not isinstance(getattr(scalerl, name), ModuleType)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'forcast'"):
        scalerl.forcast  # noqa: B018
