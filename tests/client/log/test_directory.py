"""A wait for changes of a folder ends with the change, and lasts its time where nothing tells of one."""

import os
import select
import subprocess
import threading
from types import SimpleNamespace

import springtide_client.log.directory as directory_news
from springtide_client.log.directory import DirectoryWatcher

LONG = 60.0  # no wait of these tests lasts so long


def after(news, change):
    """Whether a wait that has begun ends by the change."""
    waiting = threading.Thread(target=news.wait, args=(LONG,), daemon=True)
    waiting.start()
    change()
    waiting.join(LONG / 2)
    return not waiting.is_alive()


def test_a_file_that_grows_ends_the_wait(tmp_path):
    (tmp_path / "seg").write_bytes(b"a")
    news = DirectoryWatcher(tmp_path)
    news.wait(0)
    with (tmp_path / "seg").open("ab", buffering=0) as file:
        assert after(news, lambda: file.write(b"b"))


def test_a_file_that_is_moved_in_ends_the_wait(tmp_path):
    (tmp_path / "log").mkdir()
    (tmp_path / "new").write_bytes(b"a")
    news = DirectoryWatcher(tmp_path / "log")
    news.wait(0)
    assert after(news, lambda: os.replace(tmp_path / "new", tmp_path / "log/manifest"))


def test_a_folder_created_later_is_watched_from_then_on(tmp_path):
    news = DirectoryWatcher(tmp_path / "log")
    news.wait(0)
    (tmp_path / "log").mkdir()
    news.wait(0)
    assert after(news, lambda: (tmp_path / "log/seg").write_bytes(b"a"))


def test_without_inotify_a_wait_lasts_its_time(tmp_path, monkeypatch):
    slept = []
    monkeypatch.setattr(directory_news, "_inotify", lambda: None)
    monkeypatch.setattr(directory_news.time, "sleep", slept.append)
    DirectoryWatcher(tmp_path).wait(0.5)
    assert slept == [0.5]


def test_waits_are_longer_where_no_other_host_can_write(tmp_path, monkeypatch):
    asked = []

    class Poll:
        def register(self, *_):
            pass

        def poll(self, milliseconds):
            asked.append(milliseconds)
            return []

    # not the module's own function: threads of other tests may wait with it
    monkeypatch.setattr(directory_news, "select", SimpleNamespace(poll=Poll, POLLIN=select.POLLIN))
    ext4, nfs = 0xEF53, 0x6969
    for file_system, seconds in ((ext4, 0.005), (ext4, 0.2), (ext4, 0), (nfs, 0.005), (None, 0.005)):
        monkeypatch.setattr(directory_news, "_file_system", lambda _, found=file_system: found)
        DirectoryWatcher(tmp_path).wait(seconds)
    assert asked == [50.0, 200.0, 0.0, 5.0, 5.0]


def test_the_type_of_a_file_system_is_the_systems_own(tmp_path):
    command = ["stat", "--file-system", "--format=%t", str(tmp_path)]
    known = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert directory_news._file_system(os.fsencode(tmp_path)) == int(known, 16)
