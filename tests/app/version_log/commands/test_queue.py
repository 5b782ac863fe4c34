"""Orders: executed once, whoever dies, and kept until the version that carries them is durable."""

import json

from app.version_log.commands.queue import CommandQueue, submit_command


def names(tmp_path) -> list[str]:
    return sorted(path.name for path in (tmp_path / "commands").iterdir())


def test_a_submitted_command_is_a_whole_file_named_for_its_id(tmp_path) -> None:
    ids = [submit_command(tmp_path, "forget", {"keys": [{"feature": "user_id", "id": number}]}) for number in range(3)]
    assert names(tmp_path) == sorted(f"{command_id}.json" for command_id in ids)
    command = json.loads((tmp_path / "commands" / f"{ids[1]}.json").read_text())
    assert (command["id"], command["kind"], command["keys"]) == (ids[1], "forget", [{"feature": "user_id", "id": 1}])


def test_without_a_folder_there_are_no_orders(tmp_path) -> None:
    assert CommandQueue(tmp_path, 1, {}).claim() == []


def test_an_order_is_claimed_by_renaming_and_handed_out_once(tmp_path) -> None:
    order_id = submit_command(tmp_path, "forget", {"keys": [{"feature": "user_id", "id": 1}]})
    orders = CommandQueue(tmp_path, 3, {})
    (order,) = orders.claim()
    assert (order.id, order.kind, order.body["keys"][0]["id"]) == (order_id, "forget", 1)
    assert names(tmp_path) == [f"{order_id}.3"]
    assert orders.claim() == []


def test_orders_come_in_the_order_of_their_ids(tmp_path) -> None:
    ids = sorted(submit_command(tmp_path, "forget", {}) for _ in range(5))
    assert [order.id for order in CommandQueue(tmp_path, 1, {}).claim()] == ids


def test_the_next_trainer_takes_over_what_was_not_executed(tmp_path) -> None:
    done, undone = sorted(submit_command(tmp_path, "forget", {}) for _ in range(2))
    dead = CommandQueue(tmp_path, 1, {})
    assert len(dead.claim()) == 2
    dead.mark_executed(done, 50)
    alive = CommandQueue(tmp_path, 2, {done: 50})  # as the log says
    assert [order.id for order in alive.claim()] == [undone]
    alive.acknowledge(49)
    assert len(names(tmp_path)) == 2
    alive.acknowledge(50)
    assert names(tmp_path) == [f"{undone}.2"]
    assert dead.claim() == []


def test_a_replaced_trainer_claims_nothing_of_its_successor(tmp_path) -> None:
    submit_command(tmp_path, "forget", {})
    assert len(CommandQueue(tmp_path, 2, {}).claim()) == 1
    assert CommandQueue(tmp_path, 1, {}).claim() == []


def test_an_order_is_unlinked_only_when_its_version_is_durable(tmp_path) -> None:
    order_id = submit_command(tmp_path, "forget", {})
    orders = CommandQueue(tmp_path, 1, {})
    orders.claim()
    orders.mark_executed(order_id, 100)
    orders.acknowledge(99)
    assert names(tmp_path) == [f"{order_id}.1"]
    orders.acknowledge(100)
    assert names(tmp_path) == []


def test_an_unreadable_order_is_handed_out_without_a_kind(tmp_path) -> None:
    (tmp_path / "commands").mkdir()
    (tmp_path / "commands" / "x.json").write_text("[")
    (tmp_path / "commands" / ".draft.tmp").write_text("{}")
    (order,) = CommandQueue(tmp_path, 1, {}).claim()
    assert (order.id, order.kind) == ("x", "")


def test_a_folder_among_the_orders_is_unreadable_and_harms_nobody(tmp_path) -> None:
    (tmp_path / "commands" / "1.json").mkdir(parents=True)
    orders = CommandQueue(tmp_path, 1, {})
    (order,) = orders.claim()
    assert (order.id, order.kind) == ("1", "")
    orders.mark_executed("1", 5)
    orders.acknowledge(5)
    assert not orders.has_pending()
