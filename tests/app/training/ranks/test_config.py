"""Settings of ranks that cannot work are refused with a line that says so."""

import pytest

from springtide.app.config.load import load_config
from springtide.app.errors import UserError


def test_a_timeout_below_five_seconds_is_refused(tmp_path):
    path = tmp_path / "springtide.toml"
    path.write_text('name = "x"\n[schema]\nlabel = "y"\ncategorical = ["u"]\n[cluster]\ntimeout_seconds = 4.9\n')
    with pytest.raises(UserError, match=r"\[cluster\] timeout_seconds.*5"):
        load_config(path)
