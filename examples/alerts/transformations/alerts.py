"""Each order above a limit is a request to a web hook.

The address of the hook is in `SHOP_HOOK`, for example `https://hooks.example/orders`.
"""

import os

import headrace as hr

hr.create_sink("alerts", "http", {"url": os.environ["SHOP_HOOK"], "sign_with": os.environ["SHOP_SECRET"]})


@hr.append_flow(target="alerts")
def alert():
    orders = hr.read_kafka("orders", format="json", schema="id LONG, customer STRING, amount DECIMAL(10, 2)")
    return orders.where("amount > 1000").select("id", "customer", "amount")
