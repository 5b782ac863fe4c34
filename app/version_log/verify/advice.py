"""Advice about a damaged base: none is given up while its rows may be in no other file."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from springtide.app.errors import UserError
from springtide.app.version_log.read.index import LogIndex
from springtide_client.errors import LogError
from springtide_client.format.records import version_name
from springtide_client.log.base import EXPORTS, ONNX
from springtide_client.log.directory import LogDirectory
from springtide_client.log.listing import base_name


@dataclass(frozen=True)
class BaseProblem:
    """One thing that is wrong with a base."""

    number: int  # of the base
    file: str  # in the log's folder
    what: str
    offset: int | None = None
    opens: bool = True  # the base opens all the same, so followers do not notice

    @property
    def file_name(self) -> str:
        """The name of the file in the base's folder."""
        return self.file.rpartition("/")[2]

    @property
    def is_of_export(self) -> bool:
        """True if only an exported form of the net is wrong, which holds no row and can be exported again."""
        return self.file_name in EXPORTS


class BaseAdvice:
    """Advice about the problems of a log's bases, once all bases were checked."""

    def __init__(self, directory: LogDirectory, numbers: Sequence[int], problems: Sequence[BaseProblem]) -> None:
        """`numbers`: of all bases of the log, oldest first."""
        self._directory, self._numbers = directory, numbers
        wrong = {problem.number for problem in problems}
        damaged = {problem.number for problem in problems if not problem.is_of_export}
        self._sound = [number for number in numbers if number not in wrong]
        self._with_rows = [number for number in numbers if number not in damaged]

    @property
    def is_all_lost(self) -> bool:
        """True if no base is left whose rows, parameters and states are sound."""
        return not self._with_rows

    def of(self, problem: BaseProblem) -> str:
        """Return what readers of the log do about a problem, and what to do."""
        return self._of_export(problem) if problem.is_of_export else self._of_contents(problem)

    def _of_export(self, problem: BaseProblem) -> str:
        keep = f"it holds no row, so keep {base_name(problem.number)}"
        if self._sound and self._sound[-1] == self._numbers[-1]:
            return f"{keep}: followers start at base {version_name(self._sound[-1])}"
        if problem.file_name == ONNX:
            return f"{keep}: the next base gets a new one"
        start = self._start_before(problem.number, self._sound)
        if start is None:
            return f"{keep}: restart the trainer, which replaces it; until then new followers may not start"
        return f"{keep}: restart the trainer, which replaces it; base {version_name(start)} is sound"

    def _of_contents(self, problem: BaseProblem) -> str:
        number, name = problem.number, base_name(problem.number)
        newer = [base for base in self._sound if base > number]
        start = self._start_before(number, self._with_rows)
        if newer:
            do = f"remove {name}"
            if start is None:
                do = f"restore it from a copy, or remove {name} with what is before base {version_name(newer[0])}"
            if newer[-1] == self._numbers[-1]:
                return f"followers start at base {version_name(newer[-1])} and do not read it: {do}"
            return f"base {version_name(newer[-1])} after it is sound: {do}"
        if start is not None:
            who = "they start" if start in self._sound else "a trainer starts"
            at = f"{who} at base {version_name(start)}"
            if number != self._numbers[-1]:
                return f"the log goes on from base {version_name(start)}: remove {name}"
            does = f"new followers use it: remove {name}, and {at}"
            if not problem.opens:
                does = f"new followers skip it, {at}: remove {name}"
            return f"{does}; the next compaction does so"
        if self._numbers == [number]:
            return "it is the only base: keep it until it is restored from a copy, or start a new log"
        if self._with_rows:
            others = " or ".join(version_name(base) for base in self._with_rows)
            return f"keep {name}, for the log does not lead from base {others} to it: restore it from a copy"
        return f"no base is sound: keep {name} until one is restored from a copy, or start a new log"

    def _start_before(self, number: int, bases: Sequence[int]) -> int | None:
        """Return the newest of some bases before a base from which the log can be read up to that base."""
        return next((base for base in reversed(bases) if base < number and self._leads(base, number)), None)

    def _leads(self, older: int, newer: int) -> bool:
        index = self._index
        if index is None or not index.runs.are_connected(older, newer):
            return False
        try:
            for entry in index.entries_between(older, newer):
                entry.read()
        except LogError:
            return False
        return True

    @cached_property
    def _index(self) -> LogIndex | None:
        try:
            return LogIndex(self._directory)
        except (LogError, UserError):
            return None
