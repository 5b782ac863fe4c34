from springtide.stream.kafka.admin import Admin
from tests.support.waiting import wait_until


def test_end_offsets_count_every_record_of_the_last_batch(testbed):
    topic = testbed.create(2)
    with Admin(testbed.kafka) as admin:
        assert admin.end_offsets(topic) == dict.fromkeys(topic.partitions, 0)
        testbed.produce([b"x"] * 777)
        assert admin.end_offsets(topic) == {topic.partitions[0]: 777, topic.partitions[1]: 0}


def test_waiting_for_a_topic_does_not_create_it(testbed):
    source = testbed.source()
    wait_until(lambda: source.poll(0.05) == [] and "topic" in source.reason)
    with Admin(testbed.kafka) as admin:
        assert testbed.name not in admin.topics()
