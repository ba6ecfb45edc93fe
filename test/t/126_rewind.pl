# Copyright (c) 2026, the Narad authors
#
# I1, I5, I6: an old primary that went on alone, and is taken back by pg_rewind,
#     has what the new one has, and nothing of its own: messages, acks, groups,
#     topics.
# I10, I11: that holds also where its own retention had cut a topic's file and
#     made it longer again.
#
# pg_rewind copies the blocks that the old primary's WAL names since the two
# parted.  So whatever changes a page has to be named there.

use strict;
use warnings;
use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use NaradTest;

my $old = narad_node('old', streaming => 1, conf => [ 'autovacuum = off', 'wal_keep_size = 512MB' ]);
$old->start;
create_work($old);
$old->safe_psql('postgres', q{
CREATE PROCEDURE drop_all(topic regclass) LANGUAGE plpgsql AS $$
BEGIN
	PERFORM narad.alter_topic(topic, retention => '1 ms');
	PERFORM pg_sleep(0.01);
	PERFORM narad.apply_retention(topic);
	ROLLBACK;
END $$;
SELECT narad.create_topic(t, segment_size => '256kB') FROM unnest(ARRAY['cut', 'dropped', 'emptied', 'frozen', 'shared', 'reused', 'zeroed']) t;
SELECT fill(t::regclass, 3000) FROM unnest(ARRAY['cut', 'dropped', 'emptied', 'frozen', 'shared']) t;
});
# Two segments that are not full: five of the eight pages of each.
foreach my $topic ('reused', 'zeroed')
{
	$old->safe_psql('postgres', qq{
SELECT narad.alter_topic('$topic', segment_age => '1 ms');
SELECT fill('$topic', 40);
SELECT pg_sleep(0.01);
SELECT narad.apply_retention('$topic');
SELECT fill('$topic', 40);
SELECT pg_sleep(0.01);
SELECT narad.apply_retention('$topic');
SELECT narad.alter_topic('$topic', reset => '{segment_age}');
});
}
$old->safe_psql('postgres', q{
CREATE FUNCTION stop_arm(text) RETURNS void AS '$libdir/narad', 'narad_stop_arm' LANGUAGE C STRICT;
CREATE FUNCTION stop_release(text) RETURNS void AS '$libdir/narad', 'narad_stop_release' LANGUAGE C STRICT;
}) if $ENV{NARAD_TESTING};
$old->backup('base');
my $new = PostgreSQL::Test::Cluster->new('new');
$new->init_from_backup($old, 'base', has_streaming => 1);
$new->start;
$old->safe_psql('postgres', 'CALL work(100)');
$old->wait_for_catchup($new);
$new->promote;
$new->poll_query_until('postgres', 'SELECT NOT pg_is_in_recovery()');

# ---- both go on alone -------------------------------------------------------------

# The old one, in every way it can.
my $receipt = one_value($old, q{SELECT receipt FROM narad.consume('q')});
$old->safe_psql('postgres', q{
CALL work(200);
SELECT narad.seek('q', 'second', 0, 0);
SELECT narad.create_group('q', 'own', 'latest');
SELECT narad.drop_group('q', 'second');
SELECT narad.alter_topic('shared', partitions => 3);
INSERT INTO shared (partition, value) VALUES (2, '"lost"');
SELECT narad.create_topic('own');
SELECT narad.produce('own', '1');
SELECT narad.drop_topic('dropped');
SELECT narad.purge_topic('emptied');
SELECT fill('emptied', 100);
});
$old->safe_psql('postgres', 'VACUUM FREEZE frozen');
my $size = one_value($old, q{SELECT pg_relation_size('cut')});
$old->safe_psql('postgres', q{CALL drop_all('cut')});
cmp_ok(one_value($old, q{SELECT pg_relation_size('cut')}), '<', $size / 4, 'the old primary cuts a file');
# Up to where the new one has its messages, but not all of these pages get some.
my $n = 0;
$old->safe_psql('postgres', q{SELECT fill('cut', 100)})
  while one_value($old, q{SELECT pg_relation_size('cut')}) < $size / 2 && ++$n < 100;
cmp_ok(one_value($old, q{SELECT pg_relation_size('cut')}), '>=', $size / 2, 'and makes it longer again');
# A place is taken again, and filled in part.  The pages behind stay as they are;
# or are zeros, where the file system cannot fill holes.
$old->safe_psql('postgres', q{CALL drop_all('reused'); SELECT fill('reused', 1)});
$old->safe_psql('postgres', q{SELECT stop_arm('no-reserve')}) if $ENV{NARAD_TESTING};
$old->safe_psql('postgres', q{CALL drop_all('zeroed'); SELECT fill('zeroed', 1)});
$old->safe_psql('postgres', q{SELECT stop_release('no-reserve')}) if $ENV{NARAD_TESTING};
is(one_value($old, qq{SELECT count(*) FROM $_}), 1, "$_: a freed place is taken again") foreach ('reused', 'zeroed');
my $topic_id = one_value($old, q{SELECT topic_id FROM narad.topics WHERE topic = 'emptied'::regclass});

# The new one a little.
$new->safe_psql('postgres', q{
CALL work(50);
SELECT narad.produce('shared', to_jsonb('3000.'::text));
SELECT narad.produce('emptied', to_jsonb('3000.'::text));
});
flush_wal($old);
$old->stop('immediate');
$new->safe_psql('postgres', 'CHECKPOINT');

# ---- back ------------------------------------------------------------------------

# After a crash pg_rewind has a single-user server recover first.
command_ok([ 'pg_rewind', '--source-server', $new->connstr('postgres'),
		'--target-pgdata', $old->data_dir, '--no-sync' ], 'pg_rewind');
$old->append_conf('postgresql.conf', 'port = ' . $old->port . "\nunix_socket_directories = '" . $old->host . "'");
$old->enable_streaming($new);
$old->set_standby_mode;
$old->start;
$new->safe_psql('postgres', q{CALL work(50); SELECT narad.produce('cut', to_jsonb('3000.'::text))});
$new->wait_for_catchup($old);

# As a standby.
my $messages = q{SELECT tableoid::regclass, count(*), md5(string_agg(partition || ':' || msg_offset || ':' || value, '' ORDER BY partition, msg_offset))
FROM %s GROUP BY 1};
foreach my $topic ('q', 'cut', 'dropped', 'emptied', 'frozen', 'shared', 'reused', 'zeroed', map { "churn$_" } (0 .. 7))
{
	my ($ret, $out, $error) = $old->psql('postgres', sprintf($messages, $topic));
	is($out, one_value($new, sprintf($messages, $topic)), "$topic: has the new primary's messages") or diag($error);
}
is(one_value($old, q{SELECT to_regclass('own') IS NULL}), 't', 'a topic of its own is lost');
my $groups = q{SELECT string_agg(concat_ws(' ', topic, consumer_group, partition, frontier, end_offset, paused), ', '
	ORDER BY topic::text, consumer_group, partition) FROM narad.groups};
like(one_value($old, $groups), qr/q second 0 \d+ \d+/, 'there are groups');
is(all_findings($old), '', 'on the standby verify finds nothing');

# And as the primary, once more.
$new->stop;
$old->promote;
$old->poll_query_until('postgres', 'SELECT NOT pg_is_in_recovery()');
work_is_exact($old, 'rewound, then promoted');
is(one_value($old, q{SELECT string_agg(consumer_group, ' ' ORDER BY consumer_group)
FROM (SELECT DISTINCT consumer_group FROM narad.groups WHERE topic = 'q'::regclass) g}),
	'default second', 'the groups are those of the new primary');
is(one_value($old, q{SELECT partitions FROM narad.topics WHERE topic = 'shared'::regclass}), 1, 'and so are the partitions');
isnt(one_value($old, q{SELECT topic_id FROM narad.topics WHERE topic = 'emptied'::regclass}), $topic_id,
	'what was emptied is the topic it was before');
my ($ret, $out, $error) = $old->psql('postgres', "SELECT narad.ack('$receipt')");
like($error, qr/receipt is no longer valid/, 'a receipt from before is worth nothing');
is(one_value($old, q{SELECT bool_and(epoch = 3)::text || ' ' || bool_and(narad.offset_for_epoch('q', partition, 1)
	< narad.offset_for_epoch('q', partition, 2))::text FROM narad.offsets('q') WHERE partition = 0}), 'true true',
	'it is in the third epoch');
foreach my $topic ('cut', 'dropped', 'emptied', 'frozen', 'shared')
{
	is(one_value($old, "SELECT fill('$topic', 2000)"),
		one_value($old, "SELECT earliest + count FROM narad.offsets('$topic'), (SELECT count(*) FROM $topic) c"),
		"$topic: takes messages");
}
$old->safe_psql('postgres', q{CALL churn(8); VACUUM FREEZE frozen});
is(all_findings($old), '', 'and is sound');
$old->stop;
command_ok([ 'pg_checksums', '--check', '-D', $old->data_dir ], 'checksums');
logs_are_clean('rewind', $old, $new);
done_testing();
