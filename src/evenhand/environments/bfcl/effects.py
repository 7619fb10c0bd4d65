"""What the tools do to the full state: private attributes, current folder and generators included.

The package tags nothing, so effects are declared here, by reading its code; what is not named below
writes. Three traps: `cd` changes only a private attribute, and the price a later call remembers is
one, too; messages, bookings and thermometers advance a private generator. `check-environment` and
the state experiment (docs/results/state) hold these declarations against the full state.
"""

from __future__ import annotations

from evenhand.tools import Effect, Latency

_PURE = """
    absolute_value add divide imperial_si_conversion logarithm max_value mean min_value multiply
    percentage power round_number si_unit_conversion square_root standard_deviation subtract
    sum_values gallon_to_liter liter_to_gallon estimate_distance get_zipcode_based_on_city
    display_log find_nearest_tire_shop get_current_time get_budget_fiscal_year
    get_outside_temperature_from_weather_com list_all_airports get_nearest_airport_by_city
    get_symbol_by_name compute_exchange_rate
"""
_READS = """
    cat diff du find grep ls pwd sort tail wc get_message_stats get_user_id list_users
    message_get_login_status search_messages view_messages_sent get_tweet get_tweet_comments
    get_user_stats get_user_tweets list_all_following posting_get_login_status search_tweets
    get_ticket get_user_tickets ticket_get_login_status filter_stocks_by_price get_account_info
    get_available_stocks get_order_details get_order_history get_stock_info
    get_transaction_history get_watchlist notify_price_change trading_get_login_status
    get_all_credit_cards get_booking_history get_credit_card_balance retrieve_invoice
    travel_get_login_status contact_customer_support check_tire_pressure displayCarStatus
    estimate_drive_feasibility_by_mileage
"""
PURE, READS = frozenset(_PURE.split()), frozenset(_READS.split())
VOLATILE = frozenset({"verify_traveler_information"})
"""Compares a birthday with the machine's date."""

# Seconds that the services these classes stand for would take; declared, not measured.
LATENCY = {
    "GorillaFileSystem": Latency(0.02, 0.4),
    "MathAPI": Latency(0.005, 0.2),
    "MessageAPI": Latency(0.2, 0.5),
    "TwitterAPI": Latency(0.3, 0.6),
    "TicketAPI": Latency(0.25, 0.5),
    "TradingBot": Latency(0.3, 0.6),
    "TravelAPI": Latency(0.8, 0.8),
    "VehicleControlAPI": Latency(0.1, 0.4),
}


def effect_of(name: str) -> Effect:
    """The declared effect of a tool."""
    if name in PURE:
        return Effect.PURE
    if name in READS:
        return Effect.READS
    return Effect.VOLATILE if name in VOLATILE else Effect.WRITES
