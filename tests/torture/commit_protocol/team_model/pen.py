"""One writer's files."""

from dataclasses import replace

from tests.torture.commit_protocol.schedules import Violation
from tests.torture.commit_protocol.team_model.records import Segment


class Pen:
    """One writer's files seg-<epoch>-<who>-<n>: rank numbers write shard records, MAIN the version records."""

    def __init__(self, world, epoch, who, host):
        self.world, self.epoch, self.who, self.host, self.files = world, epoch, who, host, 0
        self.newest = self.noted = 0  # numbers: written; written when the last fsync began
        self.new_file()

    def new_file(self):
        self.name = (self.epoch, self.who, self.files)
        self.files += 1
        self.segment = Segment(self.host)  # kept open: a zombie's may be unlinked under it
        if self.name in self.world.disk:
            raise Violation(f"C7: two writers of file {self.name}")
        self.world.disk[self.name] = self.segment

    def append(self, record, shown):
        self.world.note_number(record, self.who)
        self.segment.records.append(record)
        self.newest = record.num
        if shown:
            self.show()

    def show(self):
        self.segment.shown = len(self.segment.records)

    def tear(self, record):
        """An append fails half way."""
        self.world.say(f"file {self.name} gets half of {record.num}")
        self.segment.records.append(replace(record, torn=True))
        self.show()
        if "new-file-after-torn" not in self.world.off:
            self.roll()

    def sync(self):
        self.noted = self.newest
        self.segment.synced = self.segment.shown = len(self.segment.records)
        self.segment.entry = self.segment.entry or "folder-fsync" not in self.world.off

    def roll(self):
        if "fsync-in-order" not in self.world.off:
            noted = self.noted
            self.sync()
            self.noted = noted  # nobody asked
        self.new_file()
