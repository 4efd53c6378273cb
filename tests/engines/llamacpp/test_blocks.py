"""The block map against the plainest model of llama.cpp's memory: lists of cells."""

from __future__ import annotations

from ast import literal_eval

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dynamo.engines.llamacpp.blocks import BlockMap, Held
from dynamo.kv.hashing import prompt_hashes
from dynamo.kv.messages import Cleared, KvChange, Removed, Stored


class Cells:
    """The cells of each sequence by their positions; a cell lives while a sequence has it."""

    def __init__(self) -> None:
        self.sequences: dict[int, dict[int, int]] = {}
        self.full = False
        """Nothing can be put back."""
        self.broken = False
        """Nothing can be copied."""
        self._next = 0
        self._copied_from: dict[int, int] = {}
        """The cell that a copied one has the content of."""

    def share(self, source: int, target: int, count: int, start: int = 0) -> None:
        cells = self.sequences[source]
        assert self.sequences.setdefault(target, {}).keys().isdisjoint(range(start, count))
        self.sequences[target].update((at, cells[at]) for at in range(start, count))

    def copy(self, sequence: int, start: int, end: int) -> bytes:
        contents = self.contents(sequence)
        return b"" if self.broken else repr({at: contents[at] for at in range(start, end)}).encode()

    def put(self, state: bytes, target: int, start: int, end: int) -> bool:
        contents = literal_eval(state.decode())
        assert start < end
        if self.full:
            return False
        cells = self.sequences.setdefault(target, {})
        for at in range(start, end):
            assert at not in cells
            cells[at] = self._next
            self._copied_from[self._next] = contents[at]
            self._next += 1
        return True

    def contents(self, sequence: int) -> dict[int, int]:
        """By position; cells that hold the same have the same number here."""
        return {at: self._copied_from.get(cell, cell) for at, cell in self.sequences.get(sequence, {}).items()}

    def truncate(self, sequence: int, count: int) -> None:
        cells = self.sequences.get(sequence, {})
        self.sequences[sequence] = {at: cell for at, cell in cells.items() if at < count}

    def compute(self, sequence: int, count: int) -> None:
        cells = self.sequences.setdefault(sequence, {})
        for _ in range(count):
            cells[len(cells)] = self._next
            self._next += 1

    @property
    def used(self) -> int:
        return len({cell for cells in self.sequences.values() for cell in cells.values()})


def replay(held: set[int], events: list[KvChange]) -> None:
    """Apply events strictly: nothing is stored twice, or removed while it is not there."""
    for event in events:
        match event:
            case Stored(hashes, parent):
                assert parent is None or parent in held
                assert held.isdisjoint(hashes)
                held.update(hashes)
            case Removed(hashes):
                assert held.issuperset(hashes)
                held.difference_update(hashes)
            case Cleared():
                held.clear()


class Sequence:
    def __init__(self, held: Held, tokens: list[int], computed: int) -> None:
        self.held, self.tokens, self.computed = held, tokens, computed


TOKENS = st.lists(st.integers(0, 1), min_size=4, max_size=24)


class BlockMapMachine(RuleBasedStateMachine):
    @initialize(size=st.integers(1, 5), cells=st.integers(24, 32), sequences=st.integers(3, 6))
    def build(self, size: int, cells: int, sequences: int) -> None:
        self.size, self.sequence_count = size, sequences
        self.memory = Cells()
        self.blocks = BlockMap(self.memory, cells, sequences, size, prefixes=4)
        self.running: list[Sequence] = []
        self.contents: dict[tuple[int, ...], set[int]] = {}
        """What was computed for the last token of each prefix."""
        self.replayed: set[int] = set()

    @precondition(lambda self: len(self.running) < self.sequence_count - 2)
    @rule(tokens=TOKENS)
    def begin(self, tokens: list[int]) -> None:
        hashes = prompt_hashes(tokens, self.size)[: (len(tokens) - 1) // self.size]
        expected = next((n for n, hash in enumerate(hashes) if hash not in self.replayed), len(hashes))
        promised = sum(len(each.tokens) - each.computed for each in self.running)
        held = self.blocks.begin(hashes, len(tokens), promised)
        if held is None:
            assert self.running, "a request that fits alone is never refused"
            return
        computed = len(held.blocks) * self.size
        assert computed == expected * self.size or self.memory.full
        assert self.blocks.cells - self.blocks.used >= len(tokens) - computed + promised or self.memory.full
        self.running.append(Sequence(held, tokens, computed))
        self._agree(self.running[-1])

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def compute(self, data: st.DataObject) -> None:
        each = data.draw(st.sampled_from(self.running))
        if each.computed == len(each.tokens):
            each.tokens = [*each.tokens, data.draw(st.integers(0, 1))]
        count = data.draw(st.integers(1, len(each.tokens) - each.computed))
        if len(each.tokens) > 24 or not self.blocks.reserve(count):
            return
        self.memory.compute(each.held.number, count)
        contents = self.memory.contents(each.held.number)
        for at in range(each.computed, each.computed + count):
            self.contents.setdefault(tuple(each.tokens[: at + 1]), set()).add(contents[at])
        hashes, before = prompt_hashes(each.tokens, self.size), each.computed // self.size
        each.computed += count
        full = hashes[before : each.computed // self.size]
        self.blocks.grow(each.held, count, full, hashes[before - 1] if before else None)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        each = data.draw(st.sampled_from(self.running))
        self.running.remove(each)
        self.blocks.end(each.held)
        assert not self.memory.sequences[each.held.number]

    @rule(full=st.booleans(), broken=st.booleans())
    def fail(self, full: bool, broken: bool) -> None:
        self.memory.full, self.memory.broken = full, broken

    @precondition(lambda self: len(self.running) < self.sequence_count)
    @rule(tokens=TOKENS, data=st.data())
    def state(self, tokens: list[int], data: st.DataObject) -> None:
        hashes = prompt_hashes(tokens, self.size)
        if not hashes:
            return
        end = data.draw(st.integers(1, len(hashes)))
        first = data.draw(st.integers(0, end - 1))
        state = self.blocks.state(hashes, first, end)
        if state:
            contents = literal_eval(state.decode())
            assert list(contents) == list(range(first * self.size, end * self.size))
            for at, content in contents.items():
                assert content in self.contents[tuple(tokens[: at + 1])]
        else:
            assert self.memory.full or self.memory.broken or not self.replayed.issuperset(hashes[:end])

    @rule()
    def clear(self) -> None:
        assert self.blocks.clear() is not bool(self.running)
        if not self.running:
            assert self.memory.used == 0

    @invariant()
    def agree(self) -> None:
        self.blocks.check()
        blocks = {block for each in self.running for block in each.held.blocks}
        assert self.memory.used == len(blocks) * self.size + sum(each.held.tail for each in self.running)
        assert self.memory.used <= self.blocks.used
        replay(self.replayed, self.blocks.take_events())
        assert self.replayed == self.blocks.hashes()
        for each in self.running:
            self._agree(each)

    def _agree(self, each: Sequence) -> None:
        """Its cells hold what was computed for its tokens."""
        contents = self.memory.contents(each.held.number)
        assert sorted(contents) == list(range(each.computed))
        for at, content in contents.items():
            assert content in self.contents[tuple(each.tokens[: at + 1])]


TestBlockMap = BlockMapMachine.TestCase
TestBlockMap.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


def test_a_finished_sequence_replaces_those_that_it_begins_with() -> None:
    memory = Cells()
    blocks = BlockMap(memory, 100, 4, 2, prefixes=4)
    first = blocks.begin((), 4)
    assert first is not None
    memory.compute(first.number, 4)
    blocks.grow(first, 4, [1, 2], None)
    blocks.end(first)
    second = blocks.begin([1, 2, 3], 8)
    assert second is not None
    memory.compute(second.number, 4)
    blocks.grow(second, 4, [3, 4], 2)
    blocks.end(second)
    assert memory.used == 0
    assert blocks.used == 8
    assert blocks.hashes() == {1, 2, 3, 4}


def test_blocks_leave_the_cells_when_no_request_holds_them_and_come_back() -> None:
    memory = Cells()
    blocks = BlockMap(memory, 100, 4, 2, prefixes=4)
    first = blocks.begin((), 6)
    assert first is not None
    memory.compute(first.number, 6)
    blocks.grow(first, 6, [1, 2, 3], None)
    contents = memory.contents(first.number)
    second = blocks.begin([1, 2], 5)
    assert second is not None
    blocks.end(first)
    assert memory.used == 4
    third = blocks.begin([1, 2, 3], 7)
    assert third is not None
    assert memory.contents(third.number) == contents
    assert memory.used == 6
    blocks.end(second)
    blocks.end(third)
    assert memory.used == 0
    blocks.check()


def test_a_prefix_that_cannot_be_copied_is_forgotten() -> None:
    memory = Cells()
    blocks = BlockMap(memory, 100, 4, 2, prefixes=4)
    first = blocks.begin((), 4)
    assert first is not None
    memory.compute(first.number, 4)
    blocks.grow(first, 4, [1, 2], None)
    second = blocks.begin([1], 3)
    assert second is not None
    blocks.end(first)
    memory.broken = True
    blocks.end(second)
    blocks.check()
    assert blocks.hashes() == set()
    assert blocks.used == memory.used == 0


def test_the_least_recently_used_prefix_gives_way_block_by_block() -> None:
    memory = Cells()
    blocks = BlockMap(memory, 8, 5, 2, prefixes=4)
    for at in (0, 10):
        held = blocks.begin((), 4)
        assert held is not None
        memory.compute(held.number, 4)
        blocks.grow(held, 4, [at, at + 1], None)
        blocks.end(held)
    assert blocks.begin([0, 1], 5) is not None
    assert blocks.hashes() == {0, 1, 10}


def test_room_that_was_promised_to_others_is_made_before_a_sequence_begins() -> None:
    memory = Cells()
    blocks = BlockMap(memory, 24, 4, 2, prefixes=4)
    cached = blocks.begin((), 12)
    assert cached is not None
    memory.compute(cached.number, 12)
    blocks.grow(cached, 12, list(range(6)), None)
    blocks.end(cached)
    assert blocks.begin((), 8, promised=10) is not None
    assert blocks.cells - blocks.used >= 18
