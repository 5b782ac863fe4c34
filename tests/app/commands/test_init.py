"""The way of a new user: a file, a proposal, a check, an evaluation. And one line for every mistake."""

import json
import random
import threading
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec import structs

from springtide.app.cli import main
from springtide.app.config.load import load_config
from springtide.app.tools.replay import Replay, ReplayConfig
from springtide.stream.broker.embedded import EmbeddedBroker
from springtide.stream.join.source import JoinSource
from tests.support.scale import IS_LONG
from tests.support.waiting import wait_until

SHARED_DATA = Path(__file__).parents[4] / "shared" / "data"
LOGS = ["movielens-100k", "talkingdata-100k"]  # those with leaks
if IS_LONG:
    LOGS += ["criteo-kaggle-8k", "open-bandit", "simulated-completejourney"]


@pytest.fixture
def springtide(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Run a command in a folder of its own; returns exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str, str]:
        code = main([str(argument) for argument in arguments])
        said = capfd.readouterr()
        return code, said.out, said.err

    return run


def write_csv(path: Path, num: int = 400) -> None:
    draw = random.Random(0)
    lines = ["user_id,city,price,is_mobile,ts,click,clicked_at"]
    for n in range(num):
        click, ts = draw.randrange(2), 1_700_000_000_000 + 60_000 * n
        city = draw.choice(["Zürich", "日本", "", '"a, b"'])
        after = ts + 500 if click else ""
        lines.append(f"u{draw.randrange(30)},{city},{draw.random():.3f},{draw.randrange(2)},{ts},{click},{after}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def test_a_proposal_is_accepted_by_check_and_evaluate(springtide: Callable[..., tuple[int, str, str]]) -> None:
    write_csv(Path("clicks.csv"))
    code, out, err = springtide("init", "clicks.csv", "--write", "app.toml")
    assert (code, out) == (0, "wrote app.toml: 4 features of clicks.csv\n")
    assert err.splitlines() == [
        "warning: clicked_at is null exactly when the label is 0: a leak? It is left out",
        "note: label: click; also 0 or 1: is_mobile (--label NAME chooses)",
    ]
    assert tomllib.loads(Path("app.toml").read_text(encoding="utf-8")) == {
        "name": "clicks",
        "source": {"topic": "clicks"},
        "schema": {
            "label": "click",
            "timestamp": "ts",
            "categorical": ["user_id", "city", "is_mobile"],
            "dense": ["price"],
        },
    }
    code, out, err = springtide("check", "--config", "app.toml")
    assert code == 0, out + err
    code, out, err = springtide("evaluate", "clicks.csv", "--config", "app.toml", "--by", "city", "--json")
    assert code == 0, err
    document = json.loads(out)
    assert (document["samples"], document["dead_letters"]) == (400, {})
    assert document["config"] == "app.toml"
    assert 0 < document["scores"]["whole"]["auc"] < 1
    assert {segment["value"] for segment in document["by"]["segments"]} == {"Zürich", "日本", "(missing)", "a, b"}


def test_evaluate_prints_a_table_and_a_line_per_so_many_samples(
    springtide: Callable[..., tuple[int, str, str]],
) -> None:
    write_csv(Path("clicks.csv"), 1500)
    springtide("init", "clicks.csv", "--write", "springtide.toml")
    code, out, err = springtide(
        "evaluate", "clicks.csv", "--set", "train.min_batch_size=100", "--set", "model.name=deepfm"
    )
    assert code == 0, err
    assert out.startswith("1,500 samples in ")
    assert "all samples" in out
    (line,) = err.splitlines()  # after the batch with the thousandth sample
    assert line.split()[0].startswith("1,0")
    assert "calibration" in line


def test_a_topic_is_looked_at_like_a_file(springtide: Callable[..., tuple[int, str, str]]) -> None:
    write_csv(Path("clicks.csv"))
    springtide("init", "clicks.csv", "--write", "springtide.toml")
    config = load_config("springtide.toml")
    with EmbeddedBroker(config.log.path) as broker:
        Replay(ReplayConfig(path=Path("clicks.csv")), config.source, log_path=config.log.path).run(threading.Event())
        by_config = springtide("init", "--topic", "clicks", "--label", "click")
        by_address = springtide("init", f"kafka://{broker.address}/clicks", "--label", "click", "--rows", "100")
        missing = springtide("init", f"kafka://{broker.address}/clicsk")
    assert (by_config[0], by_address[0]) == (0, 0), by_config[2] + by_address[2]
    assert "the first 100 rows of topic clicks" in by_address[1]
    document = tomllib.loads(by_config[1])
    assert document["source"] == {"bootstrap_servers": broker.address, "topic": "clicks"}
    assert document["schema"]["label"] == "click"
    assert missing[0] == 1
    assert "clicsk" in missing[2]


@pytest.mark.parametrize(
    ("content", "arguments", "words"),
    [
        (None, [], ["no file"]),
        ("", [], ["empty", "name the columns"]),
        ("a,click\n", [], ["no rows"]),
        ("a,click\n1,0,3\n", [], ["line 2", "3 cells"]),
        ("a,b\n1,2\n3,4\n", [], ["--label", "the fields are a, b"]),
        ("click\n0\n1\n", [], ["no field that can be a feature"]),
        ("a,click\n1,0\n2,1\n", ["--label", "clik"], ["did you mean click?"]),
        ("a,click\n1,0\n2,1\n", ["--rows", "0"], ["--rows 0"]),
        ("a,click\n1,0\n2,1\n", ["--write", "nowhere/app.toml"], ["no folder nowhere"]),
        ("a,click\n1,0\n2,1\n", ["--write", "clicks.csv"], ["exists"]),
        ("a,click\n1,0\n2,1\n", ["--topic", "clicks"], ["one thing"]),
        (b"\xff\xfe,click\n1,0\n", [], ["clicks.csv is not UTF-8"]),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    springtide: Callable[..., tuple[int, str, str]], content: str | bytes | None, arguments: list[str], words: list[str]
) -> None:
    if content is not None:
        Path("clicks.csv").write_bytes(content if isinstance(content, bytes) else content.encode())
    code, out, err = springtide("init", "clicks.csv", *arguments)
    assert (code, out, len(err.strip().splitlines())) == (2, "", 1), err
    for word in words:
        assert word in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [([], ["one thing"]), (["--topic", "clicks"], ["which broker?"]), (["kafka://localhost/"], ["names no topic"])],
)
def test_without_a_file_or_a_broker_it_says_what_to_name(
    springtide: Callable[..., tuple[int, str, str]], arguments: list[str], words: list[str]
) -> None:
    code, _, err = springtide("init", *arguments)
    assert (code, len(err.strip().splitlines())) == (2, 1)
    for word in words:
        assert word in err


def test_rows_that_would_be_dead_letters_are_a_warning(springtide: Callable[..., tuple[int, str, str]]) -> None:
    rows = [json.dumps({"user": n % 9, "click": n % 2, "ok": True}) for n in range(50)]
    Path("clicks.jsonl").write_text("\n".join([*rows, "{broken", "[1]", json.dumps({"user": 3})]))
    code, out, err = springtide("init", "clicks.jsonl", "--label", "click")
    assert code == 0
    assert "null in 1 rows" in out
    assert "warning: 1 of 53 rows cannot be learned: missing_label" in err
    assert "warning: 2 of 53 rows cannot be learned: they are not JSON objects" in err


def test_dead_letters_are_counted_by_field_and_the_rest_is_learned(
    springtide: Callable[..., tuple[int, str, str]],
) -> None:
    lines = ["user,price,tags,click", *(f"u{n % 9},{n / 7:.2f},t{n % 3},{n % 2}" for n in range(600))]
    lines[300:302] = ["u1,expensive,t1,0", "u1,2.5,t1,7"]
    lines[400] += ",one cell more"
    Path("clicks.csv").write_text("\n".join(lines))
    code, _, err = springtide("init", "clicks.csv", "--write", "springtide.toml")
    assert code == 0, err
    assert err.splitlines() == [
        "warning: 1 of 600 rows cannot be learned: wrong_type, such as: price: the string 'expensive' is not a number",
        "warning: 1 of 600 rows cannot be learned: label_range, such as: click: a label is between 0 and 1, not 7.0",
        "warning: 1 of 600 rows cannot be learned: they have more cells than columns",
        "note: 2 of 599 rows are unlike the others, and the fields are judged without them: price in 1, click in 1",
        "note: label: click",
    ]
    code, out, err = springtide("evaluate", "clicks.csv", "--json")
    assert (code, json.loads(out)["dead_letters"]) == (0, {"wrong_type": 2, "label_range": 1}), err


def write_join(num: int = 1_200) -> int:
    """Write impressions and clicks apart; return how many of the impressions are clicked within two minutes."""
    draw, shown, clicks, clicked = random.Random(0), [], [], 0
    for n in range(num):
        ms, ids = 1_700_000_000_000 + 1000 * n, {"request": f"r{n // 3}", "item_id": n % 50}
        shown.append({"ts": ms, "user_id": n // 3 % 40, "served_score": round(draw.random(), 4), **ids})
        if draw.random() < 0.3:
            delay_ms = round(draw.expovariate(1 / 60_000))
            clicked += delay_ms <= 120_000
            clicks.append({"ts": ms + delay_ms, "action": "click", **ids})
    clicks.sort(key=lambda click: click["ts"])
    clicks.append({"ts": clicks[-1]["ts"] + 10**6, "action": "end", "request": "end", "item_id": 0})
    for name, rows in (("shown", shown), ("clicks", clicks)):
        Path(f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return clicked


def test_a_join_that_is_proposed_for_two_files_joins_their_topics(
    springtide: Callable[..., tuple[int, str, str]],
) -> None:
    clicked = write_join()
    code, out, err = springtide("init", "shown.jsonl", "--events", "clicks.jsonl", "--write", "springtide.toml")
    assert code == 0, err
    assert out == "wrote springtide.toml: 2 features of shown.jsonl and clicks.jsonl\n"
    assert "served_score is left out" in err
    config = load_config("springtide.toml")
    assert config.join is not None
    assert config.join.config.key == ("request", "item_id")
    assert [(label.topic, label.window_ms) for label in config.join.labels] == [("clicks", 120_000)]
    with EmbeddedBroker(config.log.path) as broker:
        for topic, name in (("impressions", "shown"), ("clicks", "clicks")):
            source = structs.replace(config.source, topic=topic)
            path = Path(f"{name}.jsonl")
            Replay(ReplayConfig(path=path), source, log_path=config.log.path).run(threading.Event())
        with JoinSource(config.source, config.join, config.schema) as joined:
            joined.stop_at_end()
            labels: list[float] = []

            def read_on() -> bool:
                labels.extend(label for part in joined.poll(0.05) for label in part.labels_NL[:, 0].tolist())
                return joined.finished

            wait_until(read_on, lambda: f"the end, not {len(labels)} samples")
        address = f"kafka://{broker.address}"
        by_topic = springtide("init", f"{address}/impressions", "--events", f"{address}/clicks", "--rows", "1000")
        missing = springtide("init", f"{address}/impressions", "--events", f"{address}/clocks")
        elsewhere = springtide("init", f"{address}/impressions", "--events", "clicks.jsonl")
    assert (len(labels), sum(labels)) == (1_200, clicked)
    assert by_topic[0] == 0, by_topic[2]
    num_events = len(Path("clicks.jsonl").read_text().splitlines())
    assert f"the first 1,000 rows of topic impressions and of all {num_events} rows of topic clicks" in by_topic[1]
    assert tomllib.loads(by_topic[1])["labels"]["click"]["topic"] == "clicks"
    assert (missing[0], elsewhere[0]) == (1, 2)
    assert "there is no topic 'clocks'" in missing[2]
    assert "one broker" in elsewhere[2]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--events", "shown.jsonl"], ["shown.jsonl is named twice"]),
        (["--events", "nowhere.jsonl"], ["no file nowhere.jsonl"]),
        (["--events", "clicks.jsonl", "--label", "clik"], ["clik", "did you mean click?"]),
    ],
)
def test_a_mistake_with_two_files_is_one_line(
    springtide: Callable[..., tuple[int, str, str]], arguments: list[str], words: list[str]
) -> None:
    write_join()
    code, out, err = springtide("init", "shown.jsonl", *arguments)
    assert (code, out, len(err.strip().splitlines())) == (2, "", 1), err
    for word in words:
        assert word in err


@pytest.mark.parametrize("log", LOGS)
def test_real_logs_get_a_proposal_that_learns_every_row(
    springtide: Callable[..., tuple[int, str, str]], log: str
) -> None:
    path = SHARED_DATA / f"{log}.parquet"
    if not path.exists():
        pytest.skip(f"{path} is not here: real logs are not included")
    code, _, err = springtide("init", path, "--rows", "8000" if IS_LONG else "4000", "--write", "springtide.toml")
    assert code == 0, err
    schema = load_config("springtide.toml").schema
    assert schema.labels == ("click",)
    assert not {"rating", "attributed_ts", "propensity", "click"} & {*schema.features, *schema.dense}
    assert (schema.timestamp == "ts") == (log != "criteo-kaggle-8k")
    code, out, err = springtide("evaluate", path, "--limit", "3000" if IS_LONG else "1000", "--json")
    assert (code, json.loads(out)["dead_letters"]) == (0, {}), err
