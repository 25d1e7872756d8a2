"""No spreadsheet runs a name that looks like a formula."""

import csv
import io

import pytest
from django.test import Client

from apps.quotas.models import User
from gpucloud.spreadsheets import escape_formula
from tests.cast import Cast, ask, give_plenty

FORMULAS = [
    "=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "\n=1", " =1", "\u3000=1", "\xa0=1", "\ufeff=1", "\u200b=1",
    "\uff1d1", "\uff0b1", "\uff0d1", "\uff20SUM(A1)", " \t\u200b =cmd|' /C calc'!A0",
]  # fmt: skip


@pytest.mark.parametrize("text", FORMULAS)
def test_a_formula_is_text(text: str) -> None:
    assert escape_formula(text) == f"'{text}"


@pytest.mark.parametrize("value", ["train-7", "a=b", "", "7", -1, 1.5, None, True, "'=1", "工作=1"])
def test_other_values_stay_as_they_are(value: object) -> None:
    assert escape_formula(value) == value


def test_no_cell_of_a_file_of_claims_is_a_formula(cast: Cast) -> None:
    give_plenty(cast.acme)
    names = [name for name in FORMULAS if "\r" not in name and "\n" not in name]
    for name in names:
        ask(cast, name=name)
    client = Client()
    client.force_login(User.objects.get(username="anna"))
    text = client.get("/claims/?format=csv").content.decode()
    rows = list(csv.reader(io.StringIO(text)))
    assert len(rows) == 1 + len(names)
    assert {cell for row in rows for cell in row if cell in names} == set()
    assert {f"'{name}" for name in names} <= {cell for row in rows for cell in row}
