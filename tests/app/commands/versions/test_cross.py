"""`springtide versions show --cross` on a log that a trainer has written."""

import json
from pathlib import Path

import numpy as np
import pytest

from springtide.app.cli import main
from springtide.app.config.load import load_config
from springtide.app.version_log.inspection.crosses import find_cross
from springtide.app.version_log.read.index import LogIndex
from springtide.app.version_log.read.row_image import RowImage
from springtide_client.keys import CROSSES
from springtide_client.log.directory import LogDirectory
from tests.app.training.random_clicks import make_batch
from tests.app.training.test_changed_settings import CONFIG, learn


def test_every_cross_of_a_batch_that_has_a_row_is_found_by_its_ids(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("springtide.toml").write_text(CONFIG.replace("wide = false", "wide = true"))
    config = load_config(Path("springtide.toml"))
    learn(config)
    index = LogIndex(LogDirectory(config.log.path))
    image = RowImage(index, index.numbers[-1])
    stored = {int(row_id) for rows in image.rows(CROSSES, with_values=False) for row_id in rows.id}
    batch = make_batch(3)  # the newest
    genres, found = batch.features.lists[0], []
    for sample, user in enumerate(batch.features.categorical_NC[:, 0].tolist()):
        if len(found) == 3:
            break
        for genre in genres.ids_M[genres.offsets[sample] : genres.offsets[sample + 1]].tolist()[:1]:
            cross = find_cross(image, [("user_id", str(user)), ("genres", str(genre))])
            assert (cross.id in stored) == bool(cross.weights), cross
            found += [(user, genre, cross)] * bool(cross.weights)
    assert found
    user, genre, cross = found[0]
    assert np.isfinite(cross.weights[0].weight)
    assert cross.weights[0].information > 0
    assert main(["versions", "show", "--cross", f"user_id={user}", f"genres={genre}", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["id"] == cross.id
    assert main(["versions", "show"]) == 0
    assert "user_id x genres (" in capsys.readouterr().out
