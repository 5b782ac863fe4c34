"""A view with a wide part scores as the plain oracle does, bit by bit, whatever layers and tables its rows are in."""

import numpy as np
import pytest

from springtide.kernels.cpu.serving.layer_search import LayerSearchCache
from springtide.kernels.cpu.serving.wide_steps import compiled_steps
from springtide_client.encode import encode_instances
from springtide_client.errors import LogError
from springtide_client.follow.views import MemoryLimit
from springtide_client.keys import SHARED_ROW_OFFSET
from springtide_client.log.directory import LogDirectory
from springtide_client.model.inputs import assemble, lookup_keys
from springtide_client.model.view import FORGOTTEN, NOT_ADMITTED, UNKNOWN, View, sigmoid
from springtide_client.wide.layout import wide_width
from tests.support.toy_model import TOY_SCHEMA
from tests.support.wide_log import WideLog


def assert_scores_as_oracle(view: View, log: WideLog, instances: list[dict]) -> None:
    features = encode_instances(view.schema, instances)
    inputs = assemble(view.schema, features, view.rows_for_model(*lookup_keys(view.schema, features))[0])
    net_NL = view.model.logits(view.parameters, inputs).astype(float)
    logits_NL = view.predict_wide(features).logits_NL
    expected = [log.logits(instance, net) for instance, net in zip(instances, net_NL.tolist(), strict=True)]
    assert logits_NL.tolist() == expected
    np.testing.assert_array_equal(view.predict(features), sigmoid(logits_NL).astype(np.float32))


@pytest.mark.parametrize("crosses_table", [False, True])
def test_every_version_scores_as_the_oracle_does(tmp_path, crosses_table) -> None:
    log = WideLog(tmp_path / "log", crosses_table=crosses_table)
    base = LogDirectory(log.log.path).newest_base()
    plain = moved = View.open(base)
    compiled = View.open(base, plain, LayerSearchCache(), compiled_steps())
    for number in range(6):
        log.learn(8)
        log.publish()
        if number == 5:
            log.forget((0, 3))
        for record in LogDirectory(log.log.path).records(plain.head):
            plain, compiled = plain.apply(record), compiled.apply(record).merged()
            moved = moved.apply(record)
            if number % 2:
                moved = MemoryLimit(memory_bytes=moved.fixed_bytes, folder=tmp_path).apply(moved)
        instances = [log.instance() for _ in range(4)] + [{"user_id": 3, "item_id": 1, "genres": [1, 99]}]
        for view in (plain, moved, compiled):
            assert_scores_as_oracle(view, log, instances)
    assert len(log.oracle.cross_rows) > 20
    features = encode_instances(TOY_SCHEMA, [{"user_id": 3, "item_id": 77}])
    assert plain.predict_with_status(features)[1].tolist() == [FORGOTTEN, UNKNOWN]
    log.log.write_base()
    newest = LogDirectory(log.log.path).newest_base()
    for view in (View.open(newest, plain), View.open(newest, plain, LayerSearchCache(), compiled_steps())):
        assert_scores_as_oracle(view, log, instances)
        np.testing.assert_array_equal(
            view.predict(encode_instances(TOY_SCHEMA, instances)),
            plain.predict(encode_instances(TOY_SCHEMA, instances)),
        )


def test_ids_that_are_not_admitted_are_scored_and_crossed_by_the_row_that_they_share(tmp_path) -> None:
    log = WideLog(tmp_path / "log", crosses_table=True)
    log.log.admission, log.shared_users = {"0": 4}, {2, 4}
    log.learn(40)
    log.publish(seen={(0, 2): 2, (0, 4): 1})
    view = View.open(LogDirectory(log.log.path).newest_base())
    for record in LogDirectory(log.log.path).records(view.head):
        view = view.apply(record)
    instances = [{"user_id": user, "item_id": 1, "genres": [1]} for user in (2, 4, 5)]
    assert_scores_as_oracle(view, log, instances)
    _, status = view.predict_with_status(encode_instances(TOY_SCHEMA, instances[:1]))
    assert status[0] == NOT_ADMITTED
    assert log.oracle.rows[SHARED_ROW_OFFSET, 0].born


def test_rows_keep_only_the_numbers_that_serving_needs(tmp_path) -> None:
    log = WideLog(tmp_path / "log", crosses_table=True)
    log.learn(3)
    log.publish()
    view = View.open(LogDirectory(log.log.path).newest_base())
    (record,) = LogDirectory(log.log.path).records(view.head)
    after = view.apply(record)
    (layer,) = after.tables[""].layers
    assert layer.state.shape[1] == wide_width(2)
    assert after.tables["crosses"].layers[0].state.shape[1] == 0
    assert after.wide is not view.wide
    assert not any(np.shares_memory(after.wide.gates_LTB, array) for array in record.tensors().values())


def test_arrays_of_other_fields_are_refused(tmp_path) -> None:
    log = WideLog(tmp_path / "log", crosses_table=False)
    log.log.dense["wide.numbers_F"] = np.array([0, 1, 2, 9])
    log.log.append()
    path = log.log.write_base()
    with pytest.raises(LogError, match="other features"):
        View.open(path)
    log.log.dense.pop("wide.bias_L")
    log.log.append()
    with pytest.raises(LogError, match="bias_L"):
        View.open(log.log.write_base())
