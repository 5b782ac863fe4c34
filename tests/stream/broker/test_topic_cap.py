import threading

from springtide.stream.broker.topic_cap import TopicCap
from springtide.stream.kafka.admin import Admin
from springtide.stream.kafka.producer import Producer
from springtide.stream.positions import Position


def test_a_full_topic_is_re_created_once_it_is_learned_and_nothing_is_lost(testbed):
    testbed.create()
    source = testbed.source()
    learned = {}
    seen = []

    def learn():
        for columns in source.poll(0.05):
            seen.extend(testbed.users([columns]))
            for partition, offset in columns.end_offsets.items():
                learned[partition] = Position(columns.topic_ids[partition], offset)

    done = threading.Event()

    def learn_all():
        while not done.is_set() or len(seen) < 30_000:
            learn()

    thread = threading.Thread(target=learn_all)
    thread.start()
    with Producer(testbed.kafka) as producer:
        cap = TopicCap(testbed.kafka, testbed.name, max_bytes=400_000, learned=lambda: dict(learned))
        for n in range(30_000):
            if n % 100 == 0 and cap.is_full(producer):
                assert cap.recreate_topic(producer, timeout_seconds=300)
            producer.send(testbed.name, testbed.click(n))
        producer.flush()
        done.set()
    thread.join(300)
    assert seen == list(range(30_000))
    assert cap.num_recreated >= 3
    assert source.status.num_resets == cap.num_recreated


def test_a_topic_that_is_not_learned_is_left_alone(testbed):
    topic = testbed.fill(range(10))
    positions = {testbed.partition: Position(topic.id, 9)}
    with Producer(testbed.kafka) as producer:
        for learned in (None, {}, positions, {testbed.partition: Position("another", 10)}):
            cap = TopicCap(testbed.kafka, testbed.name, max_bytes=1, learned=lambda learned=learned: learned)
            assert not cap.recreate_topic(producer, timeout_seconds=0.05)
    assert len(testbed.read(testbed.source(), 10)) >= 1
    with Admin(testbed.kafka) as admin:
        assert admin.topic(testbed.name) == topic


def test_re_creating_a_topic_frees_the_brokers_memory(testbed, own_broker):
    own_broker.start()
    testbed.broker = own_broker
    topic = testbed.create()
    before = own_broker.memory_bytes()
    with Producer(testbed.kafka) as producer:
        for _ in range(40):
            producer.send(testbed.name, b"x" * (1 << 20))
        producer.flush()
        learned = {testbed.partition: Position(topic.id, 40)}
        cap = TopicCap(
            testbed.kafka,
            testbed.name,
            max_bytes=30 << 20,
            learned=lambda: learned,
            memory_bytes=own_broker.memory_bytes,
        )
        assert cap.is_full(producer)
        assert cap.recreate_topic(producer, timeout_seconds=300)
        assert not cap.is_full(producer)
    assert own_broker.memory_bytes() < before + (30 << 20)
