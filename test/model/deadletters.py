# Copyright (c) 2026, the Narad authors
"""Dead letters: each is moved once, by the worker, whenever it comes to it.

The model learns of a move by seeing the message in the dead-letter topic, and
then knows by its headers where it was.  A message is in one place: available,
leased, settled, or here.
"""

import json
import time

from books import PATIENCE, Message, expect


class DeadLetters:

    def dying(self):
        """Is there a message that may be moved?"""
        return self.orphans or any(
            lease.is_dying() for topic in self.topics if topic.limit
            for group in topic.groups.values()
            for lease in group.leases.values())

    def orphan(self, group, where):
        """It may have been moved before the group went elsewhere."""
        name = (group.topic.name, group.name, where)
        self.orphans[name] = self.orphans.get(name, 0) + 1

    def dead_rows(self, since):
        return self.must(self.control, "SELECT partition, msg_offset, headers"
                         " FROM m_dead WHERE msg_offset >= %d"
                         " AND headers IS NOT NULL" % since)

    def learn(self):
        """Looks at what is new in the dead-letter topic."""
        if not self.dying() and not any(
                when is None for topic in self.topics if topic.limit
                for group in topic.groups.values()
                for when in group.maybe.values()):
            return
        stable = self.must(self.control, "SELECT last_stable"
                           " FROM narad.offsets('m_dead')")
        for part, off, headers in self.dead_rows(self.dead_stable):
            if (part, off) not in self.dead.messages:
                self.meet((part, off), headers)
        if stable:
            self.dead_stable = stable[0][0]

    def origin(self, headers):
        """(topic, group, where) of a dead letter."""
        if isinstance(headers, str):
            headers = json.loads(headers)
        expect(headers and "narad-origin-topic" in headers,
               "no dead letter, and nobody produced it: %s", headers)
        topic = [t for t in self.topics
                 if t.name == headers["narad-origin-topic"].split(".")[-1]][0]
        return topic, headers["narad-origin-group"], (
            int(headers["narad-origin-partition"]),
            int(headers["narad-origin-offset"])), headers

    def meet(self, where, headers):
        """A dead letter is seen for the first time."""
        topic, name, origin, headers = self.origin(headers)
        group = topic.groups[name]
        # Or its ack was lost in a crash, after its last delivery.
        lease = group.leases.get(origin) or self.come_again(group, origin)
        if lease is not None and lease.is_dying():
            expect(not lease.known or
                   int(headers["narad-deliveries"]) == lease.deliveries,
                   "a dead letter with %s", headers)
            self.settle(group, lease, True)
            group.moved[group.place(origin)] = time.monotonic()
        else:
            left = self.orphans.get((topic.name, name, origin), 0)
            expect(left > 0, "dead letter: %s %s %s is in m_dead at %s, and %s",
                   topic.name, name, origin, where,
                   lease.state if lease else "settled or fresh")
            self.orphans[(topic.name, name, origin)] -= 1
            if left == 1:
                del self.orphans[(topic.name, name, origin)]
        message = Message(*where)
        message.origin = (group, origin)
        self.serial += 1
        message.serial = self.serial
        self.dead.high[where[0]] = max(self.dead.high[where[0]], where[1])
        self.ncommits += 1
        self.publish(self.dead, message)

    def undo_moves(self):
        """After a crash: the last moves are void, on both sides.

        Not if a commit that was flushed came after them.
        """
        present = {(part, off) for part, off, _ in self.dead_rows(0)}
        for message in list(self.dead.messages.values()):
            if message.origin is None or message.where in present:
                continue
            expect(message.serial > self.durable, "dead letter %s is lost",
                   message.where)
            del self.dead.messages[message.where]
            for group in self.dead.groups.values():
                self.erase(group, message)
            group, where = message.origin
            if not group.gone and where[1] >= group.start[where[0]]:
                group.settled.discard(where)
                self.revive(group, where)
        self.dead_stable = 0

    def erase(self, group, message):
        group.fresh[message.part].discard(message.off)
        group.leases.pop(message.where, None)
        group.settled.discard(message.where)
        group.maybe.pop(message.where, None)
        group.frontier = {}

    def await_moves(self):
        """In the end all are moved."""
        until = time.monotonic() + PATIENCE
        while self.dying() and time.monotonic() < until:
            self.learn()
            time.sleep(0.01)
        left = [(topic.name, group.name, lease.where, lease.state)
                for topic in self.topics for group in topic.groups.values()
                for lease in group.leases.values() if lease.is_dying()]
        expect(not left, "dead letters are not moved: %s", left[:5])
