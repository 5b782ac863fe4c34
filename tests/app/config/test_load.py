"""The configuration file: its defaults, and one line for every mistake."""

import subprocess
import sys
from pathlib import Path

import pytest

from springtide.app.config.load import Config, load_config
from springtide.app.errors import UserError
from springtide.embeddings.config import FeaturePolicy
from springtide_client.keys import MISSING_ID
from springtide_client.schema import Schema

ROOT = Path(__file__).parents[3]
SMALLEST = 'name = "tiny"\n[schema]\nlabel = "click"\ncategorical = ["user_id", "item_id"]\n'


def load(tmp_path: Path, text: str) -> Config:
    path = tmp_path / "springtide.toml"
    path.write_text(text)
    return load_config(path)


def assert_refused(tmp_path: Path, text: str, words: list[str]) -> None:
    """Loading fails with one line that has these words."""
    with pytest.raises(UserError) as caught:
        load(tmp_path, text)
    assert "\n" not in str(caught.value)
    for word in words:
        assert word in str(caught.value)


def test_name_label_and_one_feature_suffice_and_other_keys_have_their_defaults(tmp_path: Path) -> None:
    config = load(tmp_path, SMALLEST)
    source, table, train, log, serve = config.source, config.table, config.train, config.log, config.serve
    assert (source.bootstrap_servers, source.topic, source.format) == (None, "clicks", "json")
    assert (source.fetch_wait_ms, source.on_reset, source.max_message_bytes) == (5, "fail", 1 << 20)
    assert source.max_future_seconds == 60
    assert (table.dim, table.device_bytes, table.host_bytes) in ((16, 1 << 30, 0), (16, "1GiB", 0))
    assert table.disk_path == "var/tiny/spill"
    assert (table.eviction, dict(table.admission)) == ("lru", {"min_count": 1})
    assert dict(table.optimizer) == {"name": "rowwise-adagrad", "lr": 0.05}
    assert (config.model.name, dict(config.model.options)) == ("dlrm", {})
    assert (train.device, train.batch_size, train.max_wait_seconds) == ("auto", 4096, "auto")
    assert dict(train.optimizer) == {"name": "adam", "lr": 0.001}
    assert (train.window_samples, train.seed) == (20_000, 0)
    assert log.path == Path("var/tiny/log")
    assert (log.publish_seconds, log.durable_seconds, log.base_minutes, log.keep_bases) == (0.5, 1.0, 10, 2)
    assert log.log_bytes == 20 << 30
    assert (serve.host, serve.port, serve.workers, serve.cache_bytes) == ("127.0.0.1", 8000, 1, 2 << 30)


def test_every_documented_key_is_accepted(tmp_path: Path) -> None:
    config = load(
        tmp_path,
        """
name = "movielens"
[source]
bootstrap_servers = "localhost:9092"
topic = "clicks"
format = "json"
fetch_wait_ms = 5
on_reset = "fail"
max_message_bytes = "1MiB"
[schema]
label = "click"
timestamp = "ts"
weight = "w"
categorical = ["user_id", "item_id"]
multi_value = ["genres"]
sequence = ["last_items"]
dense = ["age"]
share = { last_items = "item_id" }
[features.item_id]
ttl_seconds = 604800
[features.genres]
max_length = 3
[table]
dim = 16
device_bytes = "1GiB"
host_bytes = "0B"
disk_bytes = "100GiB"
disk_path = "var/movielens/spill"
eviction = "lru"
admission = { min_count = 1 }
optimizer = { name = "rowwise-adagrad", lr = 0.05 }
[model]
name = "dlrm"
options = {}
[train]
device = "auto"
batch_size = 4096
max_wait_seconds = inf
optimizer = { name = "adam", lr = 0.001 }
window_samples = 20000
seed = 0
[log]
path = "var/movielens/log"
publish_seconds = 0.5
durable_seconds = 1.0
base_minutes = 10
keep_bases = 2
log_bytes = "20GiB"
[serve]
host = "127.0.0.1"
port = 8000
workers = 1
cache_bytes = "2GiB"
""",
    )
    assert config.schema.labels == ("click",)
    assert config.schema.share == {"last_items": "item_id"}
    assert config.schema.length_limit("genres") == 3
    assert config.source.bootstrap_servers == "localhost:9092"
    assert config.table.features == {1: FeaturePolicy(ttl_seconds=604800)}
    assert config.table.dtype == "float32"
    assert config.table.score is None


def test_the_log_takes_at_most_half_of_disk_bytes(tmp_path: Path) -> None:
    assert load(tmp_path, SMALLEST + "[table]\ndisk_bytes = '1GiB'\n").log.log_bytes == 1 << 29


LISTS = 'multi_value = ["genres"]\nsequence = ["last"]\ndense = ["age"]\nshare = { last = "item_id" }\n'


def test_row_settings_of_features_become_table_policies_by_feature_number(tmp_path: Path) -> None:
    more = '[features.item_id]\nttl_seconds = 60\nquota_bytes = "1MiB"\nadmission = { min_count = 3 }\n'
    config = load(tmp_path, SMALLEST + LISTS + more + "[features.user_id]\n[features.genres]\nmax_length = 2\n")
    assert config.table.features == {1: FeaturePolicy(ttl_seconds=60.0, quota_bytes=1 << 20, min_count=3)}


def test_pooling_is_part_of_the_schema_and_mean_is_its_default(tmp_path: Path) -> None:
    plain = load(tmp_path, SMALLEST + LISTS).schema
    mean = load(tmp_path, SMALLEST + LISTS + '[features.genres]\npooling = "mean"\n').schema
    longest = load(tmp_path, SMALLEST + LISTS + '[features.genres]\npooling = "max"\n').schema
    assert mean == plain
    assert b"pooling" not in plain.to_json()
    assert longest.pooling_of("genres") == "max"
    assert longest.fingerprint() != plain.fingerprint()
    assert Schema.from_json(longest.to_json()) == longest


def test_custom_eviction_takes_a_score_field(tmp_path: Path) -> None:
    config = load(tmp_path, SMALLEST + LISTS + '[table]\neviction = "custom"\nscore = "age"\n')
    assert (config.table.eviction, config.table.score) == ("custom", "age")


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ("[features.last]\nttl_seconds = 3", ["[features.last] ttl_seconds", "shares", "[features.item_id]"]),
        ("[features.last]\nadmission = { min_count = 2 }", ["[features.last] admission", "[features.item_id]"]),
        ("[features.user_id]\nttl_seconds = 0", ["[features.user_id] ttl_seconds", "above 0"]),
        ("[features.user_id]\nquota_bytes = 0", ["[features.user_id] quota_bytes", "at least 1", "0"]),
        ("[features.user_id]\nadmission = { min_cont = 2 }", ["[features.user_id] admission", "min_count"]),
        (
            "[features.user_id]\nadmission = { min_count = 300 }",
            ["[features.user_id] admission min_count", "from 1 to 255", "300"],
        ),
        (
            '[features.user_id]\nadmission = { min_count = "2" }',
            ["[features.user_id] admission min_count", "a whole number", '"2"'],
        ),
        ('[features.user_id]\npooling = "sum"', ["pooling", "user_id", "multi_value"]),
        ('[features.genres]\npooling = "sun"', ["[features.genres] pooling", '"max", "mean", "sum"', "sun"]),
        ('[table]\neviction = "lur"', ["[table] eviction", '"l2-norm", "lfu", "lru"', '"lur"']),
        ('[table]\neviction = "custom"', ["needs score", "(age)"]),
        ('[table]\neviction = "custom"\nscore = "user_id"', ["score", "(age)", "user_id"]),
        ('[table]\nscore = "age"', ["score", 'eviction = "custom"', "lru"]),
        ("[table]\nadmission = { min_count = 2, sketch_byte = 3 }", ["[table] admission", "sketch_bytes?"]),
        ('[table]\noptimizer = { name = "adam", lr = "x" }', ["[table] optimizer lr", "a finite number", '"x"']),
        ('[table]\ndtype = "float16"', ["[table] dtype", '"bfloat16", "float32"', 'did you mean "bfloat16"?']),
    ],
)
def test_a_mistake_about_rows_is_one_line(tmp_path: Path, more: str, words: list[str]) -> None:
    assert_refused(tmp_path, SMALLEST + LISTS + more + "\n", words)


def test_several_labels_are_several_tasks(tmp_path: Path) -> None:
    config = load(tmp_path, SMALLEST.replace('label = "click"', 'labels = ["click", "order"]'))
    assert config.schema.labels == ("click", "order")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (('name = "tiny"', ""), ["needs name"]),
        (('name = "tiny"', 'name = "a/b"'), ["name", '"a/b"']),
        (('label = "click"', ""), ["[schema]", "label"]),
        (('label = "click"', 'label = "click"\nlabels = ["x"]'), ["label and labels"]),
        (('label = "click"', "label = 3"), ["[schema] label", "quotes"]),
        (("categorical", "categorial"), ["[schema]", "categorial", "did you mean categorical?"]),
        (('["user_id", "item_id"]', '"user_id"'), ["[schema] categorical", "a list"]),
        (('["user_id", "item_id"]', "[]"), ["at least one feature"]),
        (("[schema]", "[sorce]\n[schema]"), ["sorce", "did you mean source?"]),
        (("[schema]", "batch_size = 3\n[schema]"), ["'batch_size' outside of a section", "it belongs to [train]"]),
        (("[schema]", "[serve]\nclient_seconds = 3\n[schema]"), ["[serve]", "did you mean request_timeout_seconds?"]),
        (("[schema]", "[train]\ncapture = true\n[schema]"), ["[train]", "did you mean cuda_graphs?"]),
        (("[schema]", "[train]\nbatchsize = 3\n[schema]"), ["[train]", "did you mean batch_size?"]),
        (("[schema]", "[train]\nlr = 0.1\n[schema]"), ["[train]", "'lr'", "write optimizer = { lr = ... }"]),
        (("[schema]", "[train]\nbatch_growth = 0\n[schema]"), ["[train]", "batch_growth", "at least 1", "0"]),
        (("[schema]", "[train]\nmin_batch_size = -1\n[schema]"), ["[train] min_batch_size", "at least 0", "-1"]),
        (("[schema]", "[train]\nby_request = true\n[schema]"), ["[train] by_request", "[schema] request"]),
        (("[schema]", '[scores]\ngroup = "click"\n[schema]'), ["[scores] group 'click'", "must be an id"]),
        (("[schema]", '[schema]\nrequest = "click"'), ["[schema] request 'click'", "must be an id"]),
        (("[schema]", '[schema]\npropensity = "p"'), ["[schema] propensity and [policies.*] go together"]),
        (("[schema]", '[policies.a]\nprobability = "x"\n[schema]'), ["[schema] propensity and [policies.*]"]),
        (
            ("[schema]", '[policies.a]\nprobability = "click"\n[schema]\npropensity = "p"'),
            ["[policies.a]", "'click' has another role"],
        ),
        (
            ("[schema]", '[policies.a]\nprobability = "x"\nvalue = "v"\n[schema]\npropensity = "p"'),
            ["[policies.a] predicted and value go together"],
        ),
        (("[schema]", "[policies.a]\ncap = 3\n[schema]"), ["[policies.a]", "probability"]),
        (("[schema]", '[schema]\nrequest = ""'), ["[schema] request must name a field"]),
        (("[schema]", "[scores]\nrequest_seconds = 1e20\n[schema]"), ["[scores] request_seconds", "31536000"]),
        (("[schema]", "[scores]\nat = [5, 5]\n[schema]"), ["[scores] at names a number twice"]),
        (("[schema]", "[scores]\nat = [0]\n[schema]"), ["[scores] at", "from 1 to 1000", "0"]),
        (("[schema]", '[model]\nname = "dlmr"\n[schema]'), ["dlmr", "dlrm"]),
        (("[schema]", '[table]\ndevice_bytes = "1Gb2"\n[schema]'), ["device_bytes", "1Gb2"]),
        (("[schema]", '[source]\nlog_path = "x"\n[schema]'), ["unknown key 'log_path'"]),
        (("[schema]", '[source]\nbootstrap_servers = "nowhere"\n[schema]'), ["nowhere", "host:port"]),
        (("[schema]", "[serve]\nport = 99999\n[schema]"), ["port", "65535"]),
        (("[schema]", '[serve.explore]\npolicy = "thompson"\n[schema]'), ["[serve] explore policy", '"softmax"']),
        (("[schema]", "[serve.explore]\ntemperature = 0\n[schema]"), ["explore temperature", "at least 1e-06, not 0"]),
        (("[schema]", '[serve.explore]\nlabel = "buy"\n[schema]'), ["[serve.explore] label", "one of click"]),
        (("[schema]", "[serve]\nepsilon = 0.1\n[schema]"), ["[serve]", "write explore = { epsilon = ... }"]),
        (("[schema]", "[features.itm_id]\n[schema]"), ["itm_id", "did you mean item_id?"]),
        (("[schema]", "[features]\nitem_id = 3\n[schema]"), ["[features.item_id] must be a table"]),
        (("[schema]", "[schema"), ["is not valid TOML"]),
        (('label = "click"', "label = click"), ["is not valid TOML", "line 3", "write text in quotes"]),
    ],
)
def test_a_mistake_is_one_line(tmp_path: Path, change: tuple[str, str], words: list[str]) -> None:
    assert_refused(tmp_path, SMALLEST.replace(*change), words)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is a folder: name the configuration file in it"):
        load_config(tmp_path)
    with pytest.raises(UserError, match=r"there is no .*absent\.toml.*--config"):
        load_config(tmp_path / "absent.toml")


@pytest.mark.parametrize("path", sorted(Path("deploy/examples").glob("*.toml")), ids=lambda path: path.stem)
def test_the_examples_load(path: Path) -> None:
    assert load_config(path).path == path


def test_overrides_replace_values_of_the_file_and_are_checked(tmp_path: Path) -> None:
    path = tmp_path / "springtide.toml"
    path.write_text(SMALLEST + "[serve]\nport = 1\nworkers = 3\n")
    config = load_config(path, overrides={"serve": {"port": 2, "workers": None}})
    assert (config.serve.port, config.serve.workers) == (2, 3)
    with pytest.raises(UserError, match=r"^\[serve\] port must be a whole number from 0 to 65535, not 70000$"):
        load_config(path, overrides={"serve": {"port": 70_000}})


def test_loading_a_configuration_imports_no_heavy_library() -> None:
    heavy = ("torch", "numba", "kafka", "fastapi", "pyarrow", "rocksdbpy")
    code = f"import sys, springtide.app.config.load; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_bias_fields_and_what_is_served_in_their_place(tmp_path: Path) -> None:
    biased = SMALLEST + 'bias = ["position", "layout"]\n'
    config = load(tmp_path, biased)
    assert (config.schema.bias, config.schema.served_bias) == (("position", "layout"), (MISSING_ID, MISSING_ID))
    assert (config.source.bias_fields, config.source.bias_drop) == (("position", "layout"), 0.1)
    config = load(tmp_path, biased + "[bias]\nserve = { position = 1 }\ndrop = 0.25\n")
    assert (config.schema.served_bias, config.source.bias_drop) == ((1, MISSING_ID), 0.25)
    assert not config.schema.serves_sent_bias
    assert load(tmp_path, biased + '[bias]\nserve = "request"\n').schema.serves_sent_bias
    assert load(tmp_path, SMALLEST).schema.bias == ()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[bias]\ndrop = 0.2\n", ["[bias]", "[schema] bias"]),
        ('bias = ["position"]\n[model]\nwide = false\n', ["[schema] bias", "wide part"]),
        ('bias = ["position"]\n[bias]\nserve = { place = 1 }\n', ["'place'", "[schema] bias"]),
        ('bias = ["position"]\n[bias]\nserve = { position = 1.5 }\n', ["[bias]", "serve"]),
        ('bias = ["position"]\n[bias]\nserve = "first"\n', ["[bias]", "serve"]),
        ('bias = ["position"]\n[bias]\ndrop = 1.0\n', ["[bias]", "drop"]),
        ('bias = ["item_id"]\n', ["'item_id'", "one role"]),
        ('bias = ["position"]\n[features.position]\nttl_seconds = 3\n', ["position"]),
    ],
)
def test_bias_that_cannot_be_learned_or_served_is_refused(tmp_path: Path, text: str, words: list[str]) -> None:
    assert_refused(tmp_path, SMALLEST + text, words)
