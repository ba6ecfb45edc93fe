# Copyright (c) 2026, the Narad authors
"""Retention: what it drops nobody gets, and what a group had not settled of
it is counted, in one step.

Where it goes by what is settled, the worker does it whenever it likes, and
nothing may be lost by it.  Where it goes by size it is done here, in one
transaction with the change of the setting, so that the worker never sees that:
then what is leased or pinned below is void at once.
"""

from books import Message, expect

SIZE = 7500                     # of a value: one fills a page
MOST = 400                      # that a record has besides
BATCH = 65536                   # narad.max_batch_size


class Retention:

    def make_value(self):
        """A message's value that does not compress."""
        self.must(self.control, "DROP FUNCTION IF EXISTS m_value()")
        self.must(self.control, "CREATE FUNCTION m_value() RETURNS jsonb"
                  " LANGUAGE sql IMMUTABLE AS $$ SELECT to_jsonb(left("
                  "string_agg(encode(sha512(i::text::bytea), 'base64'), ''),"
                  " %d)) FROM generate_series(1, 100) i $$" % SIZE)

    def make_groups_count(self, topic):
        """What a group has not settled stays once it has settled something."""
        message = Message(*self.must(
            self.control, "SELECT * FROM narad.produce('%s', %s,"
            " partition => 0)" % (topic.name, topic.value()))[0])
        message.seq, message.state = 0, "committed"
        topic.high[message.part] = message.off
        topic.messages[message.where] = message
        self.must(self.control, "BEGIN")
        self.must(self.control, "SELECT txid_current()")
        for name in topic.groups:
            self.must(self.control, "SELECT narad.ack(receipt) FROM"
                      " narad.consume('%s', consumer_group => '%s')"
                      % (topic.name, name))
        self.must(self.control, "COMMIT")
        for group in topic.groups.values():
            group.settled.add(message.where)

    def is_full(self, group, rows):
        """Did it end for its size?  The first is always taken."""
        if not group.topic.drops:
            return False
        expect(len(rows) <= 1 or len(rows) * SIZE <= BATCH,
               "%d messages of %d bytes in a batch", len(rows), SIZE)
        return (len(rows) + 1) * (SIZE + MOST) > BATCH

    def retain(self, session):
        topics = [topic for topic in self.topics if topic.drops]
        topic = self.rng.choice(topics)
        if self.stirs(topic):
            return
        self.see_dropped(topic)
        self.history.append(("control", "retention of " + topic.name))
        if topic.drops == "settled":
            self.must(self.control, "SELECT * FROM narad.apply_retention('%s')"
                      % topic.name)
            return self.see_dropped(topic)
        lost = self.lost(topic)
        size = self.rng.choice((100000, 300000, 600000))
        self.must(self.control, "BEGIN")
        self.must(self.control, "SELECT narad.alter_topic('%s',"
                  " retention_bytes => %d)" % (topic.name, size))
        self.must(self.control, "SELECT * FROM narad.apply_retention('%s')"
                  % topic.name)
        self.must(self.control, "SELECT narad.alter_topic('%s',"
                  " reset => '{retention_bytes}')" % topic.name)
        self.must(self.control, "COMMIT")
        self.durable = self.serial
        return self.see_dropped(topic, lost)

    def lost(self, topic):
        rows = self.must(self.control, "SELECT consumer_group, partition,"
                         " lost_to_retention, frontier FROM narad.groups"
                         " WHERE topic = '%s'::regclass" % topic.name)
        return {(name, part): (count, frontier)
                for name, part, count, frontier in rows}

    def see_dropped(self, topic, lost=None):
        """What is not there any more; lost: as it was before."""
        if not topic.drops:
            return
        rows = self.must(self.control, "SELECT partition, earliest FROM"
                         " narad.offsets('%s')" % topic.name)
        now = self.lost(topic)
        for part, earliest in rows:
            if earliest <= topic.earliest[part]:
                continue
            still_open = [w for w in topic.open if w[0] == part and
                          w[1] < earliest]
            expect(not still_open, "retention: %s %s is dropped, and open",
                   topic.name, still_open)
            for group in topic.groups.values():
                self.overtake(group, part, earliest, lost, now)
            for where in [w for w in topic.messages
                          if w[0] == part and w[1] < earliest]:
                del topic.messages[where]
                self.ndropped += 1
            topic.earliest[part] = earliest
            topic.base[part] = max(topic.base[part], earliest)

    def overtake(self, group, part, earliest, lost, now):
        topic = group.topic
        unsettled = [w for w in topic.messages
                     if w[0] == part and group.start[part] <= w[1] < earliest
                     and w not in group.settled]
        expect(topic.drops != "settled" or not unsettled,
               "retention: %s %s: %s is dropped, and not settled",
               topic.name, group.name, unsettled[:5])
        if lost is not None:
            self.check_lost(group, part, earliest, unsettled,
                            lost.get((group.name, part), (0, -1)),
                            now.get((group.name, part), (0, -1)))
        self.nlost += len(unsettled)
        for where in unsettled:
            lease = group.leases.pop(where, None)
            if lease is not None and lease.receipt is not None:
                topic.stale.append(lease.receipt)
                lease.receipt = None
        group.fresh[part] = {off for off in group.fresh[part]
                             if off >= earliest}
        group.settled = {w for w in group.settled
                         if w[0] != part or w[1] >= earliest}
        group.maybe = {w: t for w, t in group.maybe.items()
                       if w[0] != part or w[1] >= earliest}
        group.start[part] = max(group.start[part], earliest)

    def check_lost(self, group, part, earliest, unsettled, before, after):
        """All that was dropped unsettled is counted, dead ones perhaps, and
        the group is past it.  A group without a position loses nothing."""
        count = after[0] - before[0]
        sure = {w for w in group.settled
                if group.maybe.get(w, 0.0) is not None}
        first = max(group.start[part], group.topic.earliest[part])
        most = sum(1 for off in range(first, earliest)
                   if (part, off) not in sure)
        has_position = part in group.used
        expect(count <= most and
               (len(unsettled) <= count or not has_position),
               "retention: %s %s %d lost %d of %d to %d", group.topic.name,
               group.name, part, count, len(unsettled), most)
        expect(not has_position or after[1] >= earliest - 1,
               "retention: the frontier of %s %s %d is %s, and %d the earliest",
               group.topic.name, group.name, part, after[1], earliest)
