"""
From the reporter to the sinks: one queue and one worker thread for each, none in another's way, and a spool
on disk where a tracker can be away.
"""

from trackperf.delivery.fanout import Delivery

__all__ = ["Delivery"]
