from hypothesis import given
from hypothesis import strategies as st

from scheduler.ordering import OrderedDelivery


@given(st.permutations(range(8)))
def test_deliveries_happen_in_the_order_expected_whatever_finishes_first(finished):
    delivery, seen = OrderedDelivery(), []
    for ticket in range(8):
        delivery.expect(ticket)
    for ticket in finished:
        delivery.deliver(ticket, lambda ticket=ticket: seen.append(ticket))
    assert seen == list(range(8))
