from __future__ import annotations

from typing import cast

from dynamo.llm.reservations import EXPIRY, ProgramReservations
from dynamo.router import Placement


class Booked:
    def __init__(self) -> None:
        self.told: list[str] = []

    def first_token(self) -> None:
        self.told.append("first token")

    def release(self) -> None:
        self.told.append("released")


def test_a_booking_is_given_back_when_nothing_was_said_of_it_for_long() -> None:
    reservations = ProgramReservations()
    one, two, three = Booked(), Booked(), Booked()
    for name, reserved in (("one", one), ("two", two), ("three", three)):
        reservations.add(name, cast(Placement, reserved), 0)
    reservations.first_token("one", 1)
    reservations.free("three")
    reservations.expire(EXPIRY - 1)
    assert two.told == []
    reservations.expire(EXPIRY)
    assert (one.told, two.told, three.told) == (["first token"], ["released"], ["released"])
    assert "one" in reservations
    reservations.expire(EXPIRY + 1)
    assert one.told == ["first token", "released"]
