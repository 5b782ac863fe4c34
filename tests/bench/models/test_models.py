"""The quick form of the benchmark `models` on simulated clicks; its figures mean nothing."""

import json
from pathlib import Path

import pytest

from tests.bench.models import models


def test_the_quick_form_makes_a_table_of_nets_with_and_without_the_wide_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "models.json"
    monkeypatch.setattr("sys.argv", ["models", "--quick", "--logs", "simulated", "--out", str(out)])
    models.main()
    cases = json.loads(out.read_text())["cases"]
    assert {(case["net"], case["wide"]) for case in cases} == {(n, w) for n in ("dlrm", "ffm") for w in (False, True)}
    assert all(0.3 < case["auc"] < 1 and case["logloss"] > 0 and case["samples"] == 300 for case in cases)
    printed = capsys.readouterr().out
    assert "left out: esmm on simulated" in printed
    assert len([line for line in printed.splitlines() if line.startswith(("| dlrm |", "| ffm |"))]) == 2
