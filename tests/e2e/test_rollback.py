"""Rollback by command line and over HTTP, with and without a running trainer."""

import json

import pytest

from springtide_client.log.directory import LogDirectory
from tests.e2e.clicks import make_clicks
from tests.e2e.workspace import Workspace
from tests.support.scale import IS_LONG
from tests.support.waiting import wait_until


@pytest.mark.skipif(not IS_LONG, reason="seven processes: `make torture` runs it")
def test_rollback_over_http_and_from_the_command_line(workspace: Workspace) -> None:
    values = make_clicks(3_000)
    workspace.start_broker()
    workspace.produce(values[:2_000])
    assert workspace.train_until_end()["samples_trained"] == 2_000
    target = list(LogDirectory(workspace.log).records(None))[-1].number
    workspace.produce(values[2_000:])
    assert workspace.train_until_end()["samples_trained"] == 3_000

    # no trainer runs: the command writes the version itself
    done = workspace.run("versions", "rollback", str(target))
    assert done.returncode == 0, done.stderr
    assert "executed in version 3.1" in done.stdout
    newest = list(LogDirectory(workspace.log).records(None))[-1]
    assert (newest.meta.restores, newest.meta.samples_trained) == (target, 2_000)
    user = json.loads(values[0])["user_id"]
    done = workspace.run("forget", "--key", f"user_id={user}")
    assert done.returncode == 0, done.stderr
    assert f"user_id={user}: erased since version 4.1; the oldest file that still holds it is seg-" in done.stdout

    trainer = workspace.start("train")
    workspace.start_server()
    wait_until(lambda: workspace.status().get("samples_trained") == 3_000, "learning again")
    command = workspace.submit("POST", "/v1/rollback", {"version": target, "skip": True})
    wait_until(lambda: workspace.request("GET", command)[1].get("state") == "durable", "a durable command")
    assert workspace.request("GET", command)[1]["result"]["skipped"] == 1_000
    wait_until(lambda: workspace.status().get("dead_letters", {}).get("gate") == 1_000, "dead letters")
    done = workspace.run("versions", "rollback", str(target), "--wait", "300")
    assert done.returncode == 0, done.stderr
    assert "the running trainer will execute it" in done.stderr
    assert "executed in version" in done.stdout
    wait_until(lambda: workspace.status().get("samples_trained") == 3_000, "learning the same samples again")
    workspace.stop(trainer)
    assert workspace.run("versions", "verify", "--deep").returncode == 0
    refused = workspace.run("versions", "rollback", "9.9")
    assert (refused.returncode, "not in the log" in refused.stderr) == (2, True)
