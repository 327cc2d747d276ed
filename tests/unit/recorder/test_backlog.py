"""`Backlog`: what is poured from one queue into another, and the count of what found no room in either."""

from trimtab.recorder.backlog import Backlog, Drops
from trimtab.values import Event


def event(step: int) -> Event:
    return Event("note", step, 0.0, {})


def test_what_waits_is_poured_in_its_order_and_what_was_dropped_is_still_counted() -> None:
    # given one that has dropped its steps 3 and 4, and one that has dropped its step 12
    early, late = Backlog(2, ring_at=9), Backlog(2, ring_at=9)
    for step in (1, 2, 3, 4):
        early.put(event(step))
    for step in (10, 11, 12):
        late.put(event(step))
    taken = late.take(2, max_micros=9, max_bytes=1 << 20)

    early.pour_into(late)

    assert [item.step for item in taken.items if isinstance(item, Event)] == [10, 11]
    assert len(early) == 0
    assert late.take(2, max_micros=9, max_bytes=1 << 20).items == [event(1), event(2)]
    assert late.num_dropped == 3
    assert late.drops == Drops(num_events=3, last_step=12)


def test_what_finds_no_room_where_it_is_poured_is_dropped_there() -> None:
    early, late = Backlog(3, ring_at=9), Backlog(1, ring_at=9)
    for step in (1, 2, 3, 4):
        early.put(event(step))

    early.pour_into(late)

    assert (len(early), len(late), late.num_dropped) == (0, 1, 3)
