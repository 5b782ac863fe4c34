"""The installed wheel in a user's folder whose own packages have the names of ours: nothing takes another's place."""

import csv
import json
import subprocess
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.clicks import make_clicks
from tests.e2e.workspace import SETTINGS, Workspace
from tests.support.config import CLICKS, write_config
from tests.support.kafka import create_topic, produce
from tests.support.processes import ROOT
from tests.support.waiting import wait_until
from tests.support.wheels import build_wheel, clean_environment, install_wheel

NUM_CLICKS = 1_000
# every module of the user's own says that it was imported
NOTE = """
import pathlib

with (pathlib.Path({folder!r}) / "imported").open("a") as note:
    note.write(__name__ + "\\n")
"""
NET = """
import torch


class Net(torch.nn.Module):
    def __init__(self, spec):
        super().__init__()
        self.linear = torch.nn.Linear(spec.num_categorical * spec.dim, len(spec.labels))

    def forward(self, categorical, pooled, sequence, sequence_length, dense):
        return self.linear(categorical.flatten(1))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def commands(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install_wheel(wheel, tmp_path_factory.mktemp("environment"))


class UserFolder(Workspace):
    """A project with packages of the names of ours; the commands that run in it are the installed ones."""

    def __init__(self, folder: Path, commands: Path) -> None:
        super().__init__(folder, process_pool=None)
        self.commands = commands
        for name in ("app", "stream", "embeddings", "kernels", "tests"):
            (folder / name).mkdir()
            (folder / name / "__init__.py").write_text(NOTE.format(folder=str(folder)))
        (folder / "app" / "nets.py").write_text(NOTE.format(folder=str(folder)) + NET)
        for name in ("springtide.py", "springtide_client.py", "torch.py"):
            (folder / name).write_text(NOTE.format(folder=str(folder)))

    def start(self, *command: str) -> "subprocess.Popen[bytes]":
        """Start the installed console script; its output goes to files as that of the checkout's commands does."""
        out, err = self._outputs(command[0])
        with out.open("wb") as output, err.open("wb") as errors:
            words = [str(self.commands / "springtide"), *command]
            self.processes.append(
                subprocess.Popen(words, cwd=self.folder, env=clean_environment(), stdout=output, stderr=errors)
            )
        return self.processes[-1]

    def num_evaluated(self) -> int:
        done = self.run("evaluate", "--json", "clicks.csv")
        assert done.returncode == 0, done.stderr[-3000:]
        return json.loads(done.stdout)["samples"]

    def imported(self) -> set[str]:
        """Return which modules of the user's own were imported."""
        note = self.folder / "imported"
        return set(note.read_text().split()) if note.exists() else set()


@pytest.fixture
def user(tmp_path: Path, commands: Path) -> Iterator[UserFolder]:
    made = UserFolder(tmp_path, commands)
    yield made
    made.close()


def test_the_wheel_has_two_packages_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as files:
        names = files.namelist()
    assert {name.partition("/")[0] for name in names} == {
        "springtide",
        "springtide_client",
        f"{wheel.name.partition('-py3')[0]}.dist-info",
    }
    inside = {name.split("/")[1] for name in names if name.startswith("springtide/")}
    assert inside == {"__init__.py", "__main__.py", "py.typed", "app", "stream", "embeddings", "kernels"}


def test_what_is_installed_is_what_is_imported(commands: Path) -> None:
    code = (
        "import springtide, springtide_client, springtide.app, springtide.kernels as k\n"
        "print(*(m.__file__ for m in (springtide, springtide_client, springtide.app, k)), sep='\\n')"
    )
    done = subprocess.run(
        [str(commands / "python"), "-P", "-c", code], capture_output=True, text=True, env=clean_environment()
    )
    assert done.returncode == 0, done.stderr
    assert all(Path(path).is_relative_to(commands.parent) for path in done.stdout.split()), done.stdout


def test_packages_of_the_users_own_with_the_names_of_ours_are_left_alone(user: UserFolder) -> None:
    """run, serve, train with two ranks, evaluate; then a net of the user's own, from his package `app`."""
    clicks = make_clicks(NUM_CLICKS)
    item = json.loads(clicks[0])["item_id"]

    running = user.start("run")
    address = wait_until(user.broker_address, "the broker's address")
    user.produce(clicks)
    wait_until(lambda: user.get(f"/v1/embeddings/item_id/{item}"), "the item's row")

    # ranks that read another topic of the same broker, into a log of their own
    create_topic(address, "more", num_partitions=2)
    for n in range(2):
        produce(address, "more", clicks[n::2], partition=n)
    ranks = {"name": "ranks", "source": {"topic": "more", "bootstrap_servers": address}}
    write_config(user.folder / "ranks.toml", CLICKS, SETTINGS, ranks)
    assert user.train_until_end("--config", "ranks.toml", "--ranks", "2")["samples_trained"] == NUM_CLICKS
    assert user.stop(running) == 0

    user.start_server()
    assert user.get(f"/v1/embeddings/item_id/{item}")["status"] == "known"

    with (user.folder / "clicks.csv").open("w", newline="") as rows:
        writer = csv.DictWriter(rows, ["user_id", "item_id", "ts", "click"], extrasaction="ignore")
        writer.writeheader()
        writer.writerows(map(json.loads, clicks))
    assert user.num_evaluated() == NUM_CLICKS
    assert user.imported() == set()

    user.configure({"model": {"name": "app.nets:Net"}})
    assert user.num_evaluated() == NUM_CLICKS
    assert user.imported() == {"app", "app.nets"}
