"""The quick form of `quality.online` on simulated clicks, without peers; its figures mean nothing."""

import gzip
import json
import zipfile
from pathlib import Path

import numpy as np
import pytest

from tests.bench.quality import online
from tests.bench.quality.contenders import every, every_ms, save_for_peers, vw_settings
from tests.bench.quality.one_pass import RunConfig, learn_and_serve, learn_once, share_rows
from tests.bench.quality.packaged_logs import PACKAGED, PHISHING, SOURCES, VENV, read_csv, write_csv
from tests.bench.quality.simulated_log import simulate_log, simulated_schema


def test_the_quick_form_scores_every_contender(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "online.json"
    arguments = ["--quick", "--logs", "simulated", "--parts", "wide,ablations", "--out", str(out)]
    monkeypatch.setattr("sys.argv", ["quality.online", *arguments])
    online.main()
    found = json.loads(out.read_text())
    cases = {case["contender"]: case for case in found["cases"]}
    assert cases["Springtide"]["auc_minus_ours"] == 0
    assert cases["the true probabilities"]["auc_minus_ours"] > 0
    assert {
        "batches of 16",
        "wide = false",
        "8 % of the ids share a row",
        "rows for 10 % of the ids, no spill",
    } <= cases.keys()
    assert all(0 < case["auc_error"] < 0.1 and case["logloss"] > 0 for case in cases.values())
    assert found["quick"]
    assert found["best_of_vw"] == {}


def test_a_log_that_is_not_there_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--logs", "movielens-100k", "--parts", "", "--data", str(tmp_path)]
    monkeypatch.setattr("sys.argv", ["quality.online", *arguments])
    online.main()
    assert f"skipped: movielens-100k, {tmp_path} does not have it" in capsys.readouterr().out


def test_samples_are_scored_by_the_newest_published_version() -> None:
    samples, _ = simulate_log(800)
    config = RunConfig(schema=simulated_schema()).with_train(bfloat16=False)
    trained = learn_once(config, samples).logits_N
    served = learn_and_serve(config, samples, [600]).logits_N  # published before the batch from 608 on
    # the trainer has counted a batch's numbers before it scores the batch
    np.testing.assert_allclose(served[608:624], trained[608:624], atol=0.01)
    assert np.abs(served[592:608] - trained[592:608]).max() > 0.1
    assert np.abs(served[624:] - trained[624:]).max() > 0.1


def test_ids_that_share_rows_are_about_one_in_twelve() -> None:
    samples, _ = simulate_log(2000)
    before, after = samples.features.categorical_NC[:, 0], share_rows(samples).features.categorical_NC[:, 0]
    num_before, num_after = len(np.unique(before)), len(np.unique(after))
    assert 0.02 < 1 - num_after / num_before < 0.06  # of two ids that share a row, one is lost
    assert len(np.unique(np.stack([before, after], axis=1), axis=0)) == num_before


def test_schedules_are_in_samples_or_in_event_time() -> None:
    assert every(256, 1000).tolist() == [256, 512, 768]
    assert every_ms(1000, np.array([0, 999, 1000, 1001, 3000])).tolist() == [2, 4]


def test_peers_get_every_feature_as_an_id(tmp_path: Path) -> None:
    samples, _ = simulate_log(100)
    log = online.Log("simulated", RunConfig(schema=simulated_schema()), samples, {})
    folder = Path(save_for_peers(log, tmp_path / "log"))
    ids_NE, present_NE, fields_E = (np.load(folder / f"{name}.npy") for name in ("ids_NE", "present_NE", "fields_E"))
    features = samples.features
    num_categorical = features.categorical_NC.shape[1]
    assert fields_E.max() + 1 == num_categorical + len(features.lists) + features.dense_NF.shape[1]
    np.testing.assert_array_equal(ids_NE[:, :num_categorical], features.categorical_NC)
    tags_NE = fields_E == num_categorical
    np.testing.assert_array_equal(ids_NE[:, tags_NE][present_NE[:, tags_NE]], features.lists[0].ids_M)


def test_vw_learns_with_factorized_crosses_of_all_pairs_of_fields() -> None:
    settings = dict(vw_settings(3, quick=False))
    assert len(settings) == 30
    assert settings["VW lrq 7 0.5"] == "--lrq ab7 --lrq ac7 --lrq bc7 --l2 1e-6 -l 0.5"
    assert settings["VW lrq 14 dropout 2"] == "--lrq ab14 --lrq ac14 --lrq bc14 --lrqdropout -l 2.0"
    assert len(vw_settings(3, quick=True)) == 10


def test_logs_of_packages_are_written_as_csv(tmp_path: Path) -> None:
    packages = tmp_path / VENV / "lib" / "python3" / "site-packages"
    flights, phishing = (packages / inside for inside, _ in SOURCES.values())
    flights.parent.mkdir(parents=True)
    phishing.parent.mkdir(parents=True)
    names = "arr_delay,carrier,flight,tailnum,origin,dest,distance,month,day,hour,minute,time_hour"
    lines = [
        "16,UA,1,N1,EWR,IAH,1400,1,1,6,5,2013-01-01T11:00:00Z",
        ",UA,2,N2,EWR,IAH,1400,1,1,5,15,2013-01-01T10:00:00Z",  # not flown
        "15,AA,3,N3,JFK,MIA,1089,1,1,5,40,2013-01-01T10:00:00Z",
    ]
    with zipfile.ZipFile(flights, "w") as archive:
        archive.writestr("flights.csv", "\n".join([names, *lines]))
    phishing.write_bytes(gzip.compress(f"{','.join(PHISHING)},is_phishing\n{'0.5,' * 9}1\n".encode()))
    for name, clicks in {"nyc-flights": [0, 1], "phishing": [1]}.items():
        path = write_csv(name, tmp_path, tmp_path)
        assert path is not None
        samples = read_csv(path, PACKAGED[name].schema)
        assert samples.labels_NL[:, 0].tolist() == clicks
        assert samples.features.categorical_NC.shape[1] == len(PACKAGED[name].categorical)
    assert write_csv("phishing", tmp_path / "elsewhere", tmp_path) is None
