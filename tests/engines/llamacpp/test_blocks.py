"""The block map against the plainest model of llama.cpp's memory: lists of cells."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dynamo.engines.llamacpp.blocks import BlockMap, Held
from dynamo.kv.hashing import prompt_hashes
from dynamo.kv.messages import Cleared, KvChange, Removed, Stored


class Cells:
    """Each sequence is a list of its cells; a cell lives while a sequence has it."""

    def __init__(self) -> None:
        self.sequences: dict[int, list[int]] = {}
        self._next = 0

    def share(self, source: int, target: int, count: int) -> None:
        assert not self.sequences.get(target)
        assert len(self.sequences[source]) >= count
        self.sequences[target] = self.sequences[source][:count]

    def truncate(self, sequence: int, count: int) -> None:
        del self.sequences.setdefault(sequence, [])[count:]

    def compute(self, sequence: int, count: int) -> None:
        self.sequences.setdefault(sequence, []).extend(range(self._next, self._next + count))
        self._next += count

    @property
    def used(self) -> int:
        return len({cell for cells in self.sequences.values() for cell in cells})


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
        self.blocks = BlockMap(self.memory, cells, sequences, size)
        self.known: dict[int, list[int]] = {}
        self.running: list[Sequence] = []
        self.replayed: set[int] = set()

    @precondition(lambda self: len(self.running) < self.sequence_count - 2)
    @rule(tokens=TOKENS)
    def begin(self, tokens: list[int]) -> None:
        hashes = prompt_hashes(tokens, self.size)[: (len(tokens) - 1) // self.size]
        expected = max((n for n in range(len(hashes) + 1) if self._somewhere(tokens[: n * self.size])), default=0)
        promised = sum(len(each.tokens) - each.computed for each in self.running)
        held = self.blocks.begin(hashes, len(tokens), promised)
        if held is None:
            assert self.running, "a request that fits alone is never refused"
            return
        computed = len(held.blocks) * self.size
        assert computed == expected * self.size
        assert self.blocks.cells - self.blocks.used >= len(tokens) - computed + promised
        self.known[held.number] = tokens[:computed]
        self.running.append(Sequence(held, tokens, computed))

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
        hashes, before = prompt_hashes(each.tokens, self.size), each.computed // self.size
        each.computed += count
        self.known[each.held.number] = each.tokens[: each.computed]
        full = hashes[before : each.computed // self.size]
        self.blocks.grow(each.held, count, full, hashes[before - 1] if before else None)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        each = data.draw(st.sampled_from(self.running))
        self.running.remove(each)
        self.blocks.end(each.held)

    @rule()
    def clear(self) -> None:
        assert self.blocks.clear() is not bool(self.running)
        if not self.running:
            assert self.memory.used == 0

    @invariant()
    def agree(self) -> None:
        self.blocks.check()
        assert self.blocks.used == self.memory.used
        replay(self.replayed, self.blocks.take_events())
        assert self.replayed == self.blocks.hashes() == self._hashes()

    def _held_tokens(self) -> list[list[int]]:
        """What the memory holds of each sequence."""
        return [self.known[number][: len(cells)] for number, cells in self.memory.sequences.items() if cells]

    def _hashes(self) -> set[int]:
        return {hash for tokens in self._held_tokens() for hash in prompt_hashes(tokens, self.size)}

    def _somewhere(self, prefix: list[int]) -> bool:
        return any(tokens[: len(prefix)] == prefix for tokens in self._held_tokens()) or not prefix


TestBlockMap = BlockMapMachine.TestCase
TestBlockMap.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


def test_a_finished_sequence_replaces_those_that_it_begins_with() -> None:
    memory = Cells()
    blocks = BlockMap(memory, 100, 4, 2)
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
    assert [number for number, cells in memory.sequences.items() if cells] == [second.number]
    assert blocks.hashes() == {1, 2, 3, 4}


def test_the_least_recently_used_prefix_gives_way_block_by_block() -> None:
    memory = Cells()
    blocks = BlockMap(memory, 8, 5, 2)
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
    blocks = BlockMap(memory, 24, 4, 2)
    cached = blocks.begin((), 12)
    assert cached is not None
    memory.compute(cached.number, 12)
    blocks.grow(cached, 12, list(range(6)), None)
    blocks.end(cached)
    assert blocks.begin((), 8, promised=10) is not None
    assert blocks.cells - blocks.used >= 18
