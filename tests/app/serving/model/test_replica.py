from app.serving.model.replica import WAITING, Replica
from app.serving.ops.registry import Metrics
from app.serving.service import declare


def test_a_version_that_is_being_loaded_is_not_one_that_is_missing(tmp_path):
    reasons = []

    class Loading:
        view = error = None
        has_begun = False

        def poll(self):
            self.has_begun = True
            reasons.append(replica.reason)
            replica.stop()

        def close(self):
            pass

    replica = Replica(lambda *_: Loading(), poll_seconds=0.01, metrics=declare(Metrics()))
    assert replica.reason == WAITING
    replica._run()
    assert reasons == ["the first version is being loaded"]
