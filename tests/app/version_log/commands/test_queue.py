"""Commands are executed once, whichever process dies, and kept until the version that carries them is durable."""

import json

from springtide.app.version_log.commands.queue import CommandQueue, submit_command


def names(tmp_path) -> list[str]:
    return sorted(path.name for path in (tmp_path / "commands").iterdir())


def test_a_submitted_command_is_a_whole_file_named_for_its_id(tmp_path) -> None:
    ids = [submit_command(tmp_path, "forget", {"keys": [{"feature": "user_id", "id": number}]}) for number in range(3)]
    assert names(tmp_path) == sorted(f"{command_id}.json" for command_id in ids)
    command = json.loads((tmp_path / "commands" / f"{ids[1]}.json").read_text())
    assert (command["id"], command["kind"], command["keys"]) == (ids[1], "forget", [{"feature": "user_id", "id": 1}])


def test_a_log_without_a_commands_folder_has_no_commands(tmp_path) -> None:
    assert CommandQueue(tmp_path, 1, {}).claim() == []


def test_a_command_is_claimed_by_renaming_and_returned_once(tmp_path) -> None:
    command_id = submit_command(tmp_path, "forget", {"keys": [{"feature": "user_id", "id": 1}]})
    queue = CommandQueue(tmp_path, 3, {})
    (command,) = queue.claim()
    assert (command.id, command.kind, command.body["keys"][0]["id"]) == (command_id, "forget", 1)
    assert names(tmp_path) == [f"{command_id}.3"]
    assert queue.claim() == []


def test_commands_are_claimed_in_the_order_of_their_ids(tmp_path) -> None:
    ids = sorted(submit_command(tmp_path, "forget", {}) for _ in range(5))
    assert [command.id for command in CommandQueue(tmp_path, 1, {}).claim()] == ids


def test_the_next_trainer_claims_what_was_not_executed(tmp_path) -> None:
    done, undone = sorted(submit_command(tmp_path, "forget", {}) for _ in range(2))
    dead = CommandQueue(tmp_path, 1, {})
    assert len(dead.claim()) == 2
    dead.mark_executed(done, 50)
    alive = CommandQueue(tmp_path, 2, {done: 50})  # as recorded in the log
    assert [command.id for command in alive.claim()] == [undone]
    alive.acknowledge(49)
    assert len(names(tmp_path)) == 2
    alive.acknowledge(50)
    assert names(tmp_path) == [f"{undone}.2"]
    assert dead.claim() == []


def test_a_replaced_trainer_claims_no_command_of_its_successor(tmp_path) -> None:
    submit_command(tmp_path, "forget", {})
    assert len(CommandQueue(tmp_path, 2, {}).claim()) == 1
    assert CommandQueue(tmp_path, 1, {}).claim() == []


def test_a_command_file_is_deleted_only_when_its_version_is_durable(tmp_path) -> None:
    command_id = submit_command(tmp_path, "forget", {})
    queue = CommandQueue(tmp_path, 1, {})
    queue.claim()
    queue.mark_executed(command_id, 100)
    queue.acknowledge(99)
    assert names(tmp_path) == [f"{command_id}.1"]
    queue.acknowledge(100)
    assert names(tmp_path) == []


def test_an_unreadable_command_is_claimed_without_a_kind(tmp_path) -> None:
    (tmp_path / "commands").mkdir()
    (tmp_path / "commands" / "x.json").write_text("[")
    (tmp_path / "commands" / ".draft.tmp").write_text("{}")
    (command,) = CommandQueue(tmp_path, 1, {}).claim()
    assert (command.id, command.kind) == ("x", "")


def test_a_folder_among_the_command_files_is_claimed_without_a_kind(tmp_path) -> None:
    (tmp_path / "commands" / "1.json").mkdir(parents=True)
    queue = CommandQueue(tmp_path, 1, {})
    (command,) = queue.claim()
    assert (command.id, command.kind) == ("1", "")
    queue.mark_executed("1", 5)
    queue.acknowledge(5)
    assert not queue.has_pending()
