"""Couriers that take a moment, so that a process can be killed in their midst."""

import time

from evenhand.environments.couriers import CourierEnvironment, CourierSuite


class SlowEnvironment(CourierEnvironment):
    def call(self, call, *, stale=False):
        time.sleep(0.002)
        return super().call(call, stale=stale)


class Slow(CourierSuite):
    def make(self):
        return SlowEnvironment()


class BrokenEnvironment(CourierEnvironment):
    def call(self, call, *, stale=False):
        raise ConnectionError("the line is down")


class Broken(CourierSuite):
    def make(self):
        return BrokenEnvironment()
