from springtide.stream.flow.watermark import WatermarkClock
from springtide.stream.positions import Partition

A, B = Partition("clicks", 0), Partition("clicks", 1)


def test_the_clock_follows_the_slowest_partition():
    clock = WatermarkClock()
    assert clock.observe({A: 100}) == 100
    assert clock.observe({A: 300, B: 200}) == 200
    assert clock.observe({B: 250}) == 250


def test_the_clock_never_goes_back():
    clock = WatermarkClock()
    clock.observe({A: 100})
    assert clock.observe({A: 50}) == 100
    assert clock.observe({B: 20}) == 100


def test_an_idle_partition_does_not_hold_the_others_back():
    clock = WatermarkClock()
    clock.observe({A: 100, B: 100})
    assert clock.observe({A: 500}) == 100
    assert clock.mark_idle({B}) == 500
    assert clock.observe({A: 600}) == 600
    assert clock.observe({B: 200}) == 600


def test_an_idle_partition_counts_again_from_its_next_record_on():
    clock = WatermarkClock()
    clock.observe({A: 100, B: 100})
    clock.mark_idle({B})
    clock.observe({A: 500})
    clock.observe({B: 550})
    assert clock.observe({A: 900}) == 550


def test_the_clock_stops_while_all_partitions_are_idle_and_keeps_its_limit():
    clock = WatermarkClock()
    clock.observe({A: 100, B: 700})
    assert clock.mark_idle({B}) == 100
    assert clock.mark_idle({A}) == 100
    other = WatermarkClock()
    other.observe({A: 100, B: 700})
    assert other.mark_idle({A}, limit_ms=650) == 650


def test_a_partition_without_records_is_not_counted_as_idle():
    clock = WatermarkClock()
    clock.observe({A: 100})
    clock.mark_idle({B})
    assert clock.idle == set()


def test_the_clock_stays_below_its_limit():
    clock = WatermarkClock()
    assert clock.observe({A: 10_000}, limit_ms=9_000) == 9_000


def test_the_clock_resumes_from_its_saved_state():
    clock = WatermarkClock()
    clock.observe({A: 300, B: 200})
    again = WatermarkClock(clock.now_ms, clock.watermarks)
    assert again.observe({B: 400}) == clock.observe({B: 400}) == 300
    clock.mark_idle({A})
    again = WatermarkClock(clock.now_ms, clock.watermarks, clock.idle)
    assert again.observe({B: 500}) == clock.observe({B: 500}) == 500
