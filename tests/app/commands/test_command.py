"""A report is printed as JSON for programs, and line by line for people."""

import json

import pytest

from springtide.app.commands.command import Report, print_report


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_report_is_lines_or_json_that_is_one_line_unless_somebody_watches(capsys, monkeypatch, is_terminal) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: is_terminal, raising=False)
    report = Report({"version": 3, "pins": ["good"]}, ["version 3", "pinned as good"], exit_code=1)
    assert print_report(report, as_json=False) == 1
    assert capsys.readouterr().out == "version 3\npinned as good\n"
    assert print_report(report, as_json=True) == 1
    out = capsys.readouterr().out
    assert json.loads(out) == report.document
    assert (out.count("\n") > 1) == is_terminal
