from springtide.app.serving.metrics.registry import MetricsRegistry
from springtide.app.serving.model.replica import NO_VERSION_YET, Replica
from springtide.app.serving.service import declare_metrics


def test_the_reason_tells_loading_from_a_missing_version(tmp_path):
    reasons = []

    class Loading:
        view = error = None
        has_base = False

        def poll(self):
            self.has_base = True
            reasons.append(replica.reason)
            replica.stop()

        def close(self):
            pass

    replica = Replica(lambda *_: Loading(), poll_interval_seconds=0.01, metrics=declare_metrics(MetricsRegistry()))
    assert replica.reason == NO_VERSION_YET
    replica._run()
    assert reasons == ["the first version is being loaded"]
