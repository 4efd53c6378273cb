"""The arithmetic of an etcd watch: what is told, whatever happens to connection and store."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from dynamo.runtime.discovery.etcd.messages import EtcdHeader, Event, KeyValue, RangeAnswer
from dynamo.runtime.discovery.etcd.watch import WatchState

Told = list[tuple[bytes, bytes | None]]


class Store:
    """etcd as far as a watch sees it."""

    def __init__(self) -> None:
        self.revision = 1
        self.kvs: dict[bytes, KeyValue] = {}
        self.history: list[Event] = []

    def put(self, key: bytes, value: bytes) -> Event:
        self.revision += 1
        self.kvs[key] = KeyValue(key, value, self.revision)
        return Event("PUT", self.kvs[key])

    def delete(self, key: bytes) -> Event:
        self.revision += 1
        self.kvs.pop(key, None)
        return Event("DELETE", KeyValue(key, b"", self.revision))

    def answer(self, cluster: str = "c") -> RangeAnswer:
        return RangeAnswer(EtcdHeader(cluster, self.revision), tuple(self.kvs.values()), len(self.kvs))


def stored(store: Store) -> dict[bytes, bytes]:
    return {kv.key: kv.value for kv in store.kvs.values()}


def apply(view: dict[bytes, bytes], told: Iterable[tuple[bytes, bytes | None]]) -> None:
    for key, value in told:
        if value is None:
            assert key in view, "only what was told can leave"
            del view[key]
        else:
            assert view.get(key) != value, "nothing is told twice"
            view[key] = value


_STEP = st.tuples(
    st.sampled_from(["put", "delete", "break", "blind put", "blind delete", "wipe", "outage"]),
    st.sampled_from([b"a", b"b", b"c"]),
    st.sampled_from([b"1", b"2"]),
)


@given(st.lists(_STEP, max_size=40))
def test_after_a_reading_and_the_grace_the_view_is_the_store(steps: list[tuple[str, bytes, bytes]]) -> None:
    store, followed, view, now = Store(), WatchState(grace=10), dict[bytes, bytes](), 0.0
    apply(view, followed.read(store.answer(), now, cut_off=False))
    for what, key, value in steps:
        now += 1
        match what:
            case "put":
                apply(view, followed.read(store.answer(), now, cut_off=False))
                apply(view, followed.apply(store.put(key, value), now, recently_down=False))
                assert view[key] == value
            case "delete":
                apply(view, followed.read(store.answer(), now, cut_off=False))
                apply(view, followed.apply(store.delete(key), now, recently_down=False))
                assert key not in view
            case "blind put":
                store.put(key, value)
            case "blind delete":
                store.delete(key)
            case "break":
                apply(view, followed.read(store.answer(), now, cut_off=False))
            case "outage":
                apply(view, followed.read(store.answer(), now, cut_off=True))
            case "wipe":
                store = Store()
        apply(view, followed.overdue(now))
    apply(view, followed.read(store.answer(), now, cut_off=False))
    assert view.items() >= stored(store).items()
    apply(view, followed.overdue(now + 10))
    assert view == stored(store)
    assert followed.next_deadline is None
    assert followed.count == len(view)


def read(followed: WatchState, store: Store, now: float = 0.0, cut_off: bool = False, cluster: str = "c") -> Told:
    return list(followed.read(store.answer(cluster), now, cut_off))


def followed_store() -> tuple[Store, WatchState]:
    store, followed = Store(), WatchState(grace=10)
    for key in (b"a", b"b"):
        store.put(key, b"1")
    assert read(followed, store) == [(b"a", b"1"), (b"b", b"1")]
    return store, followed


def test_what_was_deleted_during_a_short_break_is_told_at_once() -> None:
    store, followed = followed_store()
    store.delete(b"a")
    assert read(followed, store) == [(b"a", None)]


def test_what_expired_during_a_long_break_is_kept_for_the_grace() -> None:
    store, followed = followed_store()
    store.delete(b"a")
    store.delete(b"b")
    assert read(followed, store, now=5, cut_off=True) == []
    store.put(b"b", b"1")
    assert read(followed, store, now=6) == []
    assert followed.next_deadline == 16
    assert list(followed.overdue(15.9)) == []
    assert list(followed.overdue(16)) == [(b"a", None)]


def test_an_emptied_store_keeps_what_was_told_for_the_grace() -> None:
    _, followed = followed_store()
    assert read(followed, Store(), now=5) == []
    assert list(followed.overdue(15)) == [(b"a", None), (b"b", None)]


def test_another_cluster_keeps_what_was_told_for_the_grace() -> None:
    store, followed = followed_store()
    store.delete(b"a")
    assert read(followed, store, cluster="another") == []


def test_an_emptied_store_is_known_even_when_its_revision_has_caught_up() -> None:
    _, followed = followed_store()
    new = Store()
    for key in (b"x", b"y", b"b"):
        new.put(key, b"1")
    assert read(followed, new) == [(b"x", b"1"), (b"y", b"1")]
    assert list(followed.overdue(10)) == [(b"a", None)]


def test_a_missing_key_that_is_deleted_leaves_at_once() -> None:
    store, followed = followed_store()
    new = Store()
    assert read(followed, new) == []
    assert list(followed.apply(new.put(b"a", b"1"), 0, recently_down=False)) == []
    assert list(followed.apply(new.delete(b"a"), 0, recently_down=False)) == [(b"a", None)]
    assert list(followed.apply(new.put(b"b", b"2"), 0, recently_down=False)) == [(b"b", b"2")]
    assert followed.next_deadline is None
    assert store.revision == 3


def test_a_deletion_just_after_an_outage_waits_for_its_owner() -> None:
    store, followed = followed_store()
    for key in (b"a", b"b"):
        assert list(followed.apply(store.delete(key), now=1, recently_down=True)) == []
    assert list(followed.apply(store.put(b"a", b"1"), now=2, recently_down=True)) == []
    assert list(followed.overdue(11)) == [(b"b", None)]
