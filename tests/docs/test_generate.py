"""The generated pages of the documentation are current, and every key and metric is described."""

import subprocess
import sys
from pathlib import Path

import pytest

from springtide.app.config.load import SECTIONS
from springtide.app.serving.metrics.registry import MetricsRegistry
from springtide.app.serving.metrics.server_metrics import declare_metrics
from springtide_client.system.settings import keys

ROOT = Path(__file__).parents[2]


def test_the_generated_pages_are_current() -> None:
    command = [sys.executable, str(ROOT / "deploy" / "docs" / "generate.py"), "--check"]
    paths = f"{ROOT / 'deploy' / 'package'}:{ROOT / 'deploy' / 'client'}"
    done = subprocess.run(command, env={"PYTHONPATH": paths}, capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}run python deploy/docs/generate.py"


@pytest.mark.parametrize("section", SECTIONS)
def test_every_key_of_a_section_is_described(section: str) -> None:
    settings_classes = [SECTIONS[section]]
    settings_classes += [key.table for key in keys(SECTIONS[section]).values() if key.table is not None]
    for settings_class in settings_classes:
        bare = [name for name, key in keys(settings_class).items() if not (key.is_internal or key.description)]
        assert bare == []


def test_every_metric_is_described() -> None:
    assert [name for name, family in declare_metrics(MetricsRegistry()).families.items() if not family.help] == []
