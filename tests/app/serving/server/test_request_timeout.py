from springtide.app.serving.server.request_timeout import ClientTimeouts

IDLE = {"reads_paused": False, "num_unsent_bytes": 0}


def test_a_request_that_does_not_complete_expires():
    timeouts = ClientTimeouts()
    assert timeouts.expired(100.0, 5.0, **IDLE) is None  # no request has begun
    timeouts.waiting_since = 100.0
    assert timeouts.expired(105.0, 5.0, **IDLE) is None
    assert timeouts.expired(105.1, 5.0, **IDLE) == "request"


def test_time_in_which_the_server_does_not_read_does_not_count():
    timeouts = ClientTimeouts()
    timeouts.waiting_since = 0.0
    assert timeouts.expired(10.0, 5.0, reads_paused=True, num_unsent_bytes=0) is None
    assert timeouts.expired(14.0, 5.0, **IDLE) is None
    assert timeouts.expired(15.1, 5.0, **IDLE) == "request"


def test_a_response_expires_only_if_no_byte_of_it_is_read():
    timeouts = ClientTimeouts()
    for now, unsent in ((0.0, 900), (4.0, 900), (5.0, 800), (9.0, 800)):
        assert timeouts.expired(now, 5.0, reads_paused=False, num_unsent_bytes=unsent) is None
    assert timeouts.expired(10.1, 5.0, reads_paused=False, num_unsent_bytes=800) == "response"
    assert timeouts.expired(10.2, 5.0, **IDLE) is None
