from __future__ import annotations

from typing import cast

from dynamo.llm.bookings import EXPIRY, ProgramBookings
from dynamo.router import Placement


class Booked:
    def __init__(self) -> None:
        self.told: list[str] = []

    def first_token(self) -> None:
        self.told.append("first token")

    def release(self) -> None:
        self.told.append("released")


def test_a_booking_is_given_back_when_nothing_was_said_of_it_for_long() -> None:
    bookings = ProgramBookings()
    one, two, three = Booked(), Booked(), Booked()
    for name, booked in (("one", one), ("two", two), ("three", three)):
        bookings.add(name, cast(Placement, booked), 0)
    bookings.first_token("one", 1)
    bookings.free("three")
    bookings.expire(EXPIRY - 1)
    assert two.told == []
    bookings.expire(EXPIRY)
    assert (one.told, two.told, three.told) == (["first token"], ["released"], ["released"])
    assert "one" in bookings
    bookings.expire(EXPIRY + 1)
    assert one.told == ["first token", "released"]
