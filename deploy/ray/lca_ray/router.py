"""Ray's choice among the replicas of `Lca`, by rendezvous hashing of the request's key."""

import random

from ray.serve.request_router import RequestRouter

from .routing import rank


class RendezvousRouter(RequestRouter):
    """The first in rank that has room; without a key a random one. Those to avoid come last, where nothing else is
    left: such a replica answers that it is the one to avoid."""

    # Seconds that a busy replica has to say how many requests it holds. Another one has not the request's cache.
    queue_len_response_deadline_s = 2
    max_queue_len_response_deadline_s = 10

    async def choose_replicas(self, candidate_replicas, pending_request=None):
        if not candidate_replicas:
            return []
        if pending_request is None:
            return [list(candidate_replicas)]
        pending_request.routing_context.should_backoff = True
        args = pending_request.args
        key, avoid = (args[1], args[2]) if len(args) == 3 else (None, ())
        by_name = {one.replica_id.unique_id: one for one in candidate_replicas}
        names = list(by_name)
        random.shuffle(names)
        if key is not None:
            names = rank(key, names)
        names.sort(key=lambda name: name in avoid)  # stable: the rank stays
        return [[by_name[name]] for name in names]
