from tests.support.journeys import count_journeys


def test_each_journey_crosses_files_and_functions_of_ours(tmp_path) -> None:
    found = count_journeys(tmp_path, wide=False, num_clicks=10)
    assert len(found) > 10
    for name, trace in found.items():
        assert len(trace.functions) >= len(trace.files) > 3, name
        assert trace.calls > trace.moves > 0, name
