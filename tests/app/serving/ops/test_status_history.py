from app.serving.ops.status_history import MAX_SAMPLES, StatusHistory, summarize


def test_a_status_of_any_shape_can_be_summarized():
    assert summarize({})["lag"] is None
    full = {
        "scores": {"window": {"auc": 0.7}, "whole": {"auc": None}},
        "positions": {"a/0": {"lag": 3}, "a/1": {"lag": None}, "a/2": {"lag": 4}},
        "table": {"rows": {"device": 3}},
    }
    sample = summarize(full)
    assert (sample["auc_window"], sample["lag"], sample["rows"]) == (0.7, 7, {"device": 3})


def test_the_oldest_samples_are_dropped():
    history = StatusHistory()
    for version in range(MAX_SAMPLES + 5):
        history.add({"version": version})
    assert [sample["version"] for sample in history.samples()] == list(range(5, MAX_SAMPLES + 5))
